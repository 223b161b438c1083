"""FedAvgM, and its server momentum as a wrapper of other methods: `fedprox+servermomentum`."""

import fedloom.methods as fm
from fedloom.methods.parts.parameters import FedOpt, parameters

_WORD = "servermomentum"


class ServerMomentum(fm.Method):
    """Momentum over the server's step of any method: D = w^t minus the method's new weights. It moves the parameters
    that clients send; buffers and other entries are the method's. Server state: the velocity."""

    class Options(fm.Options):
        beta: float = fm.option(0.9, "Share of the last direction that the velocity keeps.", ge=0, lt=1)
        server_lr: float = fm.option(1.0, "The server's step. With beta 0 and a step of 1 the method is FedAvg.", gt=0)
        nesterov: bool = fm.option(False, "Step from where the momentum alone would lead.")

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        self.momentum_names = fm.names_of(self, _WORD)
        self.momentum = self.momentum_names.options(ServerMomentum.Options, self.options)
        sent = self.spec.sends.get("model")
        if sent is None or sent.form != "whole":
            entries = ", ".join(self.spec.sends) or "nothing"
            raise fm.ConfigError(
                f"{self.name()}: {_WORD} is over the mean of weights, and clients send none (sent: {entries})"
            )

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        server = super().server_init(ctx)
        zeros = {name: value.new_zeros(value.shape) for name, value in _moved(server, ctx).items()}
        return server | {self.momentum_names.entry("velocity"): zeros}

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        return super().down(self._without_velocity(server), client, ctx)

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        options, entry = self.momentum, self.momentum_names.entry("velocity")
        next_server = super().aggregate(self._without_velocity(server), uploads, ctx)
        sent = fm.get_tree(uploads[next(iter(uploads))], "model")
        old_parameters, mean = (fm.select(_moved(record, ctx), sent) for record in (server, next_server))
        change = fm.combine([old_parameters, mean], [1, -1])
        velocity = fm.combine([fm.select(fm.get_tree(server, entry), sent), change], [options.beta, 1])
        step = fm.combine([change, velocity], [1, options.beta]) if options.nesterov else velocity
        model = fm.get_tree(next_server, "model") | fm.combine([old_parameters, step], [1, -options.server_lr])
        return next_server | {"model": model, entry: velocity}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        return super().predictors(self._without_velocity(server), state, ctx)

    def _without_velocity(self, server: fm.Record) -> fm.Record:
        return self.momentum_names.without(server, "velocity")


def _moved(record: fm.Record, ctx: fm.ServerContext) -> fm.Tree:
    return parameters(fm.get_tree(record, "model"), ctx.task)


@fm.register
class FedAvgM(ServerMomentum):
    """FedAvgM: momentum at the server. Hsu et al., 2019, arXiv 1909.06335.

    Server: D = w^t - mean_k(w_k), weighted by samples; v <- beta v + D; w <- w - eta v. With `nesterov`: w <- w - eta
    (D + beta v). v starts at 0. Buffers are averaged."""

    spec = fm.Spec(labels="multi")


@fm.WRAPPERS.register(_WORD)
def with_server_momentum(base: type[fm.Method]) -> type[fm.Method]:
    """`base` with momentum at the server. Raises `ConfigError` for a base that has a server optimiser."""
    if issubclass(base, FedOpt):
        raise fm.ConfigError(
            f"{base.name()}: its server optimiser has momentum of its own (beta1): {_WORD} would be a second"
        )
    return fm.wrapped(ServerMomentum, base, _WORD, ServerMomentum.Options)
