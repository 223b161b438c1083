"""The measured evidence of advice (rules, rows of committed studies, traits of methods), and the needs of a federation.
`python -m benchmarks advice` writes rules.json; do not edit it."""

import functools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedloom.core.errors import ConfigError
from fedloom.diagnosis.diagnosis import Diagnosis
from fedloom.runs.config.keys import built
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.sections import Section

Goal = Literal["global", "personal"]
Traits = Mapping[str, Any]
GOALS: Mapping[str, str] = {"global": "one model for all", "personal": "a model for each client"}


class Needs(Section):
    """The constraints under which advice is given; none by default."""

    goal: Goal | None = Field(
        None,
        description="One model for all (global), or a model for each client (personal); null reads the config's "
        "protocol.",
    )
    nets: Literal["equal", "different"] | None = Field(
        None, description="Whether the clients' networks are equal or different; null reads the config's models."
    )
    traffic: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Most traffic of a round, as a multiple of FedAvg's.",
        examples=[0.5],
    )
    stateless: bool = Field(False, description="Clients keep nothing between rounds.")
    newcomers: bool = Field(False, description="A client that never trained gets a trained model at once.")
    secure_sums: bool = Field(False, description="The server sees sums over clients only (secure aggregation).")
    dp: bool = Field(False, description="Uploads are made differentially private (the wrapper dp).")

    def resolved(self, config: RunConfig) -> "Needs":
        """Return the needs with goal and networks as the config says where they are null; `ConfigError` if it names
        neither."""
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

    def unmet(self, traits: Traits) -> Iterator[str]:
        """Return the needs that a method with these traits does not meet, in words."""
        most = self.traffic if self.traffic is not None else math.inf
        # Traffic that was not measured is above every bound; without a bound, inf > inf is false.
        traffic = math.inf if traits["traffic"] is None else traits["traffic"]
        unmet = {
            "one model for all": self.goal == "global" and "global" not in traits["yields"],
            "different networks": self.nets == "different" and not traits["any_nets"],
            f"at most {most:g} times FedAvg's traffic": traffic > most,
            "no state at clients": self.stateless and traits["state"],
            "newcomers at once": self.newcomers and not traits["newcomers"],
            "secure sums": self.secure_sums and not traits["secure_sums"],
            "differential privacy": self.dp and not traits["dp"],
        }
        return (need for need, is_unmet in unmet.items() if is_unmet)


def read_needs(values: Mapping[str, Any]) -> Needs:
    """Return the needs of keys. Raises `ConfigError` for an unknown key and a value out of range."""
    return built(Needs, values, "")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A setting of a committed study that resembles the user's data, and why.
    setting: name, title, files and page of the setting, its baseline, and `rows`, one for each measured method. The
    points of a row are its mean difference from the baseline, highest first; None, and last, if a run diverged. why:
    the property of the user's data that led here, in words."""

    setting: Mapping[str, Any]
    why: str


@functools.cache
def rules() -> Mapping[str, Any]:
    """Return the content of the rules' file."""
    content: Mapping[str, Any] = json.loads(Path(__file__).with_name("rules.json").read_text(encoding="utf-8"))
    return content


def evidence_for(needs: Needs, diagnosis: Diagnosis) -> Evidence:
    """Return the evidence of the first rule that holds for resolved needs and the skew of the user's data."""
    for rule in rules()["rules"]:
        if rule["goal"] == needs.goal and (why := _why(rule, needs, diagnosis)) is not None:
            settings = rules()["settings"]
            named = (one for one in settings if (one["name"], one["goal"]) == (rule["setting"], needs.goal))
            return Evidence(next(named), why)
    raise AssertionError("the last rule of each goal always holds")


def _why(rule: Mapping[str, Any], needs: Needs, diagnosis: Diagnosis) -> str | None:
    """Return the property of the data that meets a rule's condition, in words; None if none does."""
    labels, features = diagnosis.labels, diagnosis.untrained
    if "nets" in rule:
        return "the clients' networks differ" if needs.nets == rule["nets"] else None
    if "tail_from" in rule:
        tail = labels.tail_ratio
        return f"a long tail: rho {tail:.1f}, from {rule['tail_from']:g}" if tail >= rule["tail_from"] else None
    if "features_from" in rule:
        distance = -1.0 if features is None else features.class_distance.value
        words = f"feature skew {distance:.2f}, from {rule['features_from']:g}"
        return words if distance >= rule["features_from"] else None
    skew, least = labels.distances["hellinger"].value, rule.get("label_skew_from")
    # The last rule of each goal has no threshold.
    if least is None:
        return f"label skew {skew:.2f} (mean Hellinger distance), below the thresholds of stronger skews"
    return f"label skew {skew:.2f} (mean Hellinger distance), from {least:g}" if skew >= least else None


def fitted(config: RunConfig, method: str, needs: Needs) -> RunConfig:
    """Return the config with another method at its default options, tested as the goal asks for."""
    yields = rules()["traits"][method]["yields"] if method in rules()["traits"] else ["global"]
    if needs.goal == "global":
        named = config.evaluation.protocol
        protocol = named if named.startswith("global/") else "global/global"
    else:
        protocol = "personal/local" if "personal" in yields else "global/local"
    # other predictors are those of the config's own method
    evaluation = config.evaluation.model_copy(update={"protocol": protocol, "protocols": (), "also": ()})
    return config.model_copy(update={"method": method, "preset": "sound", "evaluation": evaluation})
