"""The rows without which no gain of a method means anything: what a comparison adds as its references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.core.errors import ConfigError
from fedloom.runs.config.grid import variants
from fedloom.runs.config.run_config import RunConfig

# By the model that a protocol tests. A gain of a global model is one over FedAvg, and the pooled data are the most that
# it could use; a gain of personal models is one over training alone and over a tuned copy of the global model.
REFERENCES: dict[str, tuple[str, ...]] = {
    "global": ("fedavg", "central"),
    "personal": ("local", "fedavg+finetune", "fedavg+lpft"),
}


def variants_with_references(
    values: Mapping[str, Any], methods: Sequence[str] | None = None, seeds: int | Sequence[int] | None = None
) -> list[RunConfig]:
    """Return the configs of `variants`, and those of the references that they lack, by each config's protocol.

    Of several protocols a reference is tested in those for which it is one. FedAvg tuned at each client has FedAvg's
    global model: as one more method of the global tables it would only correct the others more strictly.

    Args:
        values: a config in which any key may be a list to compare.
        methods: names of methods; None takes the config's.
        seeds: the seeds, or how many from the config's on; None takes the config's.

    Raises `ConfigError` as `variants`, and where no protocol of these configs has references.
    """
    configs = variants(values, methods, seeds)
    protocols = {protocol for config in configs for protocol in config.evaluation.tested_protocols}
    if not any(_references(protocol) for protocol in protocols):
        raise ConfigError(f"references: there are none for the protocol {', '.join(sorted(protocols))}; leave them out")
    names = dict.fromkeys(name for protocol in sorted(protocols) for name in _references(protocol))
    known = {config.fingerprint() for config in configs}
    for config in variants(values, list(names), seeds):
        tested = tuple(name for name in config.evaluation.tested_protocols if config.method in _references(name))
        if tested and config.fingerprint() not in known:
            known.add(config.fingerprint())
            protocols_of_it = {"protocol": tested[0], "protocols": tested if len(tested) > 1 else ()}
            evaluation = config.evaluation.model_copy(update=protocols_of_it)
            configs.append(config.model_copy(update={"evaluation": evaluation}))
    return configs


def _references(protocol: str) -> tuple[str, ...]:
    return REFERENCES.get(protocol.partition("/")[0], ())
