"""Local training."""

from __future__ import annotations

from fedloom.core.records import Record
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Work
from fedloom.methods.contract.method import Method, Uploads, register
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import ALL_ROLES


@register
class Local(Method):
    """Local: every client trains its own net and nothing travels. The floor for personalised methods.

    All clients start from the same weights; a client trains only in rounds for which it is sampled.
    Clients may have different architectures.
    """

    spec = Spec(private=ALL_ROLES, architectures="any", sends={})
    citation = Citation("", "", None, "", {}, {}, {"P": 1}, compared_in=("feddw", "fedco2", "fedssa"))

    def server_init(self, ctx: ServerContext) -> Record:
        return {}

    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        return {}

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        return {}, {"model": work.tree}

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        return server
