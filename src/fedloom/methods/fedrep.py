from typing import Literal

import fedloom.methods as fm


@fm.register
class FedRep(fm.Method):
    """FedRep: a client fits its own head, then moves the shared body under it. Collins et al., ICML 2021, 2102.07078.

    First the private head alone, then the body alone, both with batch norm in training mode, as in released code.
    Server: the mean of bodies (Algorithm 1: uniform). A client that never took part is tested with the first head."""

    spec = fm.Spec(
        requires=("trained_body",),
        private=frozenset({fm.Role.HEAD}),
        sends={"model": fm.Sent(spread=2.0)},
        labels="multi",
    )

    class Options(fm.Options):
        head_epochs: int = fm.option(10, "Passes that train the head, whatever local_epochs says.", ge=0)
        body_epochs: int = fm.option(1, "Passes that then train the body, whatever local_epochs says.", ge=0)
        weights: Literal["samples", "uniform"] = fm.option(
            "samples", "Weights of clients in the mean: by samples, as in released code, or equal, as in the paper."
        )

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        head, options = frozenset({fm.Role.HEAD}), self.options
        body = fm.Train(self.loss, options.body_epochs, trains=fm.TRAINABLE - head)
        # the head first: the body then follows a head that fits its features
        return [fm.Train(self.loss, options.head_epochs, trains=head), body]

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        return {"model": self.mean(uploads, weights=self.options.weights)}
