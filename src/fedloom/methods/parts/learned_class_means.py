"""Class means that clients take of features which they train: the options and phases of FedProc and FPL."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedloom.methods.contract import method
from fedloom.methods.contract.phases import Collect, LossFunction, Phase, Train
from fedloom.methods.contract.sample_statistics import ClassMeans
from fedloom.methods.parts.measures import features

Origin = Literal["after_training", "last_epoch"]


class Options(method.Options):
    """Options about class means as prototypes."""

    prototypes_from: Origin = Field(
        "after_training",
        description="Where class means come from: a pass after training, or the last epoch's own forward passes.",
    )
    keep_absent: bool = Field(
        True,
        description="Whether a class that no participant holds keeps its prototypes. Released code drops them.",
    )


def training_with_class_means(loss: LossFunction, epochs: int, origin: Origin) -> list[Phase]:
    """Return the phases of training that leave the class means of features as "prototypes".

    Args:
        loss: the objective, with the tap "features".
        epochs: passes over the client's data.
        origin: the option `prototypes_from`.
    """
    if origin == "last_epoch":
        return [Train(loss, epochs, collect={"prototypes": ClassMeans("features")})]
    return [Train(loss, epochs), Collect({"prototypes": ClassMeans(features)})]
