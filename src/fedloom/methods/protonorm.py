import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts.prototypes import PrototypePull

SHORTEST = 1e-12  # length of a mean that has a direction
RATE_DECAY, DECAYS_EVERY = 0.95, 10  # of the released code's steps


@fm.register
class ProtoNorm(PrototypePull):
    """ProtoNorm: prototypes, spread on the sphere, pull features at a large norm. Lee et al., 2025, arXiv 2507.04310.

    Local: CE + lambda mean over the batch of |z - s row_y|^2 / d. Server: uniform means over the holders, made unit;
    then steps that push the points apart with the force 1 / distance (the Thomson problem), back on the sphere."""

    class Options(fm.Options):
        weight: float = fm.option(10.0, "lambda, the strength of the clients' pull; 0 is local training.", ge=0)
        scale: float = fm.option(80.0, "s, the length to which clients scale the unit prototypes.", gt=0)
        server_steps: int = fm.option(
            500, "Steps in a round by which the server spreads the prototypes on the sphere.", ge=0
        )
        server_lr: float = fm.option(
            0.1, "Size of the first of these steps; it is multiplied by 0.95 after steps 1, 11, 21, ...", ge=0
        )
        server_momentum: float = fm.option(0.9, "Share of a step's velocity that the next one keeps.", ge=0, lt=1)
        keep_absent: bool = fm.option(
            True, "Whether a class that no participant holds keeps its prototype. Released code drops it."
        )

    def distance(self, z: Tensor, rows: Tensor) -> Tensor:
        return super().distance(z, self.options.scale * rows)

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        options, means = self.options, self.mean(uploads, "prototypes", "uniform")
        if options.keep_absent:
            means = means.fill_missing(fm.get_table(server, "prototypes").to(torch.float64))
        rows = spread_rows(means, options.server_steps, options.server_lr, options.server_momentum)
        return {"prototypes": rows.to(torch.float32)}

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        rows = fm.get_table(server, "prototypes")
        means = fm.tables_of(uploads, "prototypes").mean_over_clients()
        found, lengths = [], means.values[means.held].double().norm(dim=1)
        if bool((lengths <= SHORTEST).any()):
            message = "a class mean has no length, hence no direction: its class gets no prototype"
            found.append(fm.Diagnostic("protonorm.no_direction", message, float(lengths.min())))
        units = rows.values[rows.held].double()
        largest = float((units @ units.T).fill_diagonal_(-1).max()) if len(units) > 1 else -1.0
        if largest > 1 - 1e-6:
            message = "two classes have one prototype: equal points exert no force on each other and never part"
            found.append(fm.Diagnostic("protonorm.equal_prototypes", message, largest))
        length = float(lengths.mean()) if len(lengths) else 0.0
        if not length / 10 <= self.options.scale <= 10 * length:
            message = f"scale = {self.options.scale:g}, but class means have the length {length:.3g} on average"
            found.append(fm.Diagnostic("protonorm.scale", message, length))
        return found


def spread_rows(means: fm.ClassTable, steps: int, lr: float, momentum: float) -> fm.ClassTable:
    """Spread the unit `means` [C, d] by `steps` of gradient descent with momentum on the energy of `forces`."""
    kept = means.keep_classes(means.values.norm(dim=1) > SHORTEST)
    points = torch.nn.functional.normalize(kept.values[kept.held].double(), dim=1)
    velocity = torch.zeros_like(points)
    for step in range(steps):
        velocity = momentum * velocity + lr * forces(points)
        points = torch.nn.functional.normalize(points + velocity, dim=1)
        lr *= RATE_DECAY if step % DECAYS_EVERY == 0 else 1
    values = torch.zeros(means.values.shape, dtype=torch.float64)
    values[kept.held] = points
    return fm.ClassTable(values, kept.held)


def forces(points: Tensor) -> Tensor:
    """Return the force on each of the unit points [n, d]; points at one place exert none on each other."""
    squares = 2 - 2 * points @ points.T
    weights = torch.where(squares > 1e-12, 1 / (squares + 1e-10), 0.0).fill_diagonal_(0)
    return weights.sum(1, keepdim=True) * points - weights @ points
