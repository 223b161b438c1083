"""The measured evidence of advice (forecasts of gains, traits of methods), and the needs of a federation.
`python -m benchmarks advice` writes forecast.json; do not edit it."""

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

from pydantic import Field

from fedloom.core.errors import ConfigError
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.sections import Section

Goal = Literal["global", "personal"]
GOALS: Mapping[str, str] = {"global": "one model for all", "personal": "a model for each client"}


class Needs(Section):
    """The constraints under which advice is given; none by default."""

    goal: Goal | None = None
    nets: Literal["equal", "different"] | None = None
    traffic: float | None = Field(None, ge=0, allow_inf_nan=False, examples=[0.5])
    stateless: bool = Field(False, description="Clients keep nothing between rounds.")
    newcomers: bool = Field(False, description="A client that never trained gets a trained model at once.")
    secret_labels: bool = Field(False, description="Uploads have no counts or means by class.")
    secure_sums: bool = Field(False, description="The server sees sums over clients only (secure aggregation).")
    dp: bool = Field(False, description="Uploads are made differentially private (the wrapper dp).")

    def resolved(self, config: RunConfig) -> "Needs":
        """Return the needs with goal and networks of the config where they are null; `ConfigError` if it has none."""
        model = config.evaluation.protocol.partition("/")[0]
        if self.goal is None and model not in GOALS:
            raise ConfigError(
                f"evaluation.protocol = '{config.evaluation.protocol}': advice is on methods that classify; set goal "
                "to global or personal"
            )
        differ = len({entry.title for entry in config.models()}) > 1
        nets: Literal["equal", "different"] = "different" if differ else "equal"
        goal: Goal = "personal" if model == "personal" else "global"
        return self.model_copy(update={"goal": self.goal or goal, "nets": self.nets or nets})

    def unmet(self, traits: Mapping[str, Any]) -> Iterator[str]:
        """Return the needs that a method with these traits does not meet, in words."""
        # Traffic that was not measured is above every bound.
        too_much = self.traffic is not None and (traits["traffic"] is None or traits["traffic"] > self.traffic)
        unmet = {
            "one model for all": self.goal == "global" and "global" not in traits["yields"],
            "different networks": self.nets == "different" and not traits["any_nets"],
            f"at most {self.traffic or 0:g} times FedAvg's traffic": too_much,
            "no state at clients": self.stateless and traits["state"],
            "newcomers at once": self.newcomers and not traits["newcomers"],
            "uploads without counts or means by class": self.secret_labels and traits["class_tables"],
            "secure sums": self.secure_sums and not traits["secure_sums"],
            "differential privacy": self.dp and not traits["dp"],
        }
        return (need for need, is_unmet in unmet.items() if is_unmet)


class Forecast(NamedTuple):
    """A normal forecast of a method's gain over the baseline in a new federation, in points. settings: how many
    measured it, with its lowest and highest gain there; losses above 15 points, and diverged runs, count as 15."""

    method: str
    gain: float
    sd: float
    settings: int
    lowest: float
    highest: float

    @property
    def traits(self) -> Mapping[str, Any]:
        """The method's traits as `fedloom methods` says them; traffic and compute are over FedAvg's."""
        traits: Mapping[str, Any] = evidence()["traits"][self.method]
        return traits

    def facts(self) -> dict[str, Any]:
        """All of it, with the probability of a gain (`better`) and the interval that holds it with 80 %."""
        normal = NormalDist(self.gain, self.sd)
        interval = [normal.inv_cdf(share) for share in (0.1, 0.9)]
        return self._asdict() | {"better": 1 - normal.cdf(0), "interval": interval, "traits": self.traits}


@functools.cache
def evidence() -> Mapping[str, Any]:
    """Return the content of forecast.json."""
    content: Mapping[str, Any] = json.loads(Path(__file__).with_name("forecast.json").read_text(encoding="utf-8"))
    return content


def evidence_for(needs: Needs) -> Mapping[str, Any]:
    """Return the evidence for resolved needs: baseline, settings, and forecasts as `methods`, highest gain first."""
    different = needs.nets == "different" and needs.goal == "personal"
    content = evidence()["forecasts"]["different" if different else needs.goal]
    return {**content, "methods": [Forecast(**row) for row in content["methods"]]}


def fitted(config: RunConfig, method: str, needs: Needs) -> RunConfig:
    """Return the config with another method at its default options, tested as the goal asks for."""
    yields = evidence()["traits"][method]["yields"]
    if needs.goal == "global":
        named = config.evaluation.protocol
        protocol = named if named.startswith("global/") else "global/global"
    else:
        protocol = "personal/local" if "personal" in yields else "global/local"
    # other predictors are those of the config's own method
    evaluation = config.evaluation.model_copy(update={"protocol": protocol, "protocols": (), "also": ()})
    return config.model_copy(update={"method": method, "preset": "sound", "evaluation": evaluation})
