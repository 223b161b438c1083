"""The constraints of a federation on its method, beside accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from fedloom.core.errors import ConfigError
from fedloom.runs.config.explain import explain_validation_error
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
        None,
        description="Whether the clients' networks are equal or different; null reads the config's models.",
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

    def resolved(self, config: RunConfig) -> Needs:
        """Return the needs with goal and networks as the config says where they are null.

        Raises `ConfigError` for a protocol that is neither of a global nor of a personal model.
        """
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
        """Yield the needs that a method with these traits does not meet, in words."""
        if self.goal == "global" and "global" not in traits["yields"]:
            yield "one model for all"
        if self.nets == "different" and not traits["any_nets"]:
            yield "different networks"
        if self.traffic is not None and (traits["traffic"] is None or traits["traffic"] > self.traffic):
            yield f"at most {self.traffic:g} times FedAvg's traffic"
        if self.stateless and traits["state"]:
            yield "no state at clients"
        if self.newcomers and not traits["newcomers"]:
            yield "newcomers at once"
        if self.secure_sums and not traits["secure_sums"]:
            yield "secure sums"
        if self.dp and not traits["dp"]:
            yield "differential privacy"


def read_needs(values: Mapping[str, Any]) -> Needs:
    """Return the needs of keys. Raises `ConfigError`, in one line, for an unknown key and a value out of range.

    Example:
        >>> read_needs({"goal": "personal", "traffic": 0.5}).traffic
        0.5
    """
    try:
        return Needs.model_validate(dict(values))
    except ValidationError as error:
        raise explain_validation_error(error, "", Needs) from None
