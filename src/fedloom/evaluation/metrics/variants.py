"""The metrics that are variants of another one: `variants.toml` has their attributes and descriptions."""

from pathlib import Path
from typing import Any

from fedloom.core.files import package_table
from fedloom.evaluation.metric import METRICS
from fedloom.evaluation.metrics.by_class import ClassCounts, MacroF1, MicroF1, PositivePredictiveValue
from fedloom.evaluation.metrics.calibration import CalibrationSlope
from fedloom.evaluation.metrics.ranks import OperatingPoint

_KINDS = (CalibrationSlope, ClassCounts, MacroF1, MicroF1, OperatingPoint, PositivePredictiveValue)
_BASES: dict[str, Any] = {kind.__name__: kind for kind in _KINDS}

for _name, _keys in package_table(Path(__file__).with_suffix(".toml")).items():
    _base, _class_name = _BASES[_keys.pop("base")], _keys.pop("class")
    _attributes = {"__module__": __name__, "__doc__": _keys.pop("description"), **_keys}
    _BASES[_class_name] = METRICS.register(_name)(type(_base)(_class_name, (_base,), _attributes))

globals().update(_BASES)  # where pickle finds them
