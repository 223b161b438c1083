"""LG-FedAvg."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import Diagnostic, Task
from fedloom.methods.contract.heads import require_same_heads
from fedloom.methods.contract.method import Method, register
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import ALL_ROLES, Role


@register
class LGFedAvg(Method):
    """LG-FedAvg: a shared head over private bodies. Liang et al., 2020, arXiv 2001.01523.

    Down: the head.   Up: the head, number of samples.   Server: mean of heads by samples (Algorithm 1).
    Body and head are trained together. Clients may have different bodies, if their heads have the same shapes.
    A client is tested with its own body and the server's head.
    """

    spec = Spec(private=ALL_ROLES - {Role.HEAD}, architectures="any")
    citation = Citation(
        "Liang et al.", "preprint", 2020, "arXiv 2001.01523", {"H": 1}, {"H": 1}, {"B": 1}, compared_in=("fedssa",)
    )

    def examine(self, tasks: Sequence[Task], participants: int) -> list[Diagnostic]:
        require_same_heads(tasks, self.name())
        return super().examine(tasks, participants)
