"""FedPer."""

from __future__ import annotations

from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.method import Method, register
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import Role


@register
class FedPer(Method):
    """FedPer: a shared body under a private head. Arivazhagan et al., 2019, arXiv 1912.00818.

    Down: the body.   Up: the body, number of samples.   Server: mean of bodies by samples (Algorithm 1).
    Body and head are trained together. The head is the net's classifier: how many layers it has is the model's.
    A client is tested with the server's body and its own head; one that never took part, with the first head.
    """

    spec = Spec(private=frozenset({Role.HEAD}))
    citation = Citation(
        "Arivazhagan et al.",
        "preprint",
        2019,
        "arXiv 1912.00818",
        {"B": 1},
        {"B": 1},
        {"H": 1},
        compared_in=("feddw", "fedco2"),
    )
