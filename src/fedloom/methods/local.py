import fedloom.methods as fm


@fm.register
class Local(fm.Method):
    """Local: every client trains its own net and nothing travels. The floor for personalised methods.

    All clients start from the same weights; a client trains only in rounds for which it is sampled.
    Clients may have different architectures."""

    spec = fm.Spec(private=fm.ALL_ROLES, architectures="any", sends={}, labels="multi")

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return {}

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        return {}

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        return {}, {"model": work.tree}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        return server
