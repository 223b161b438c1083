"""A method in 25 lines, compared with FedAvg: the server tests a running average of its models.

python examples/own_method.py          # 20 rounds, 3 seeds
python examples/own_method.py 3 1      # smaller
"""

import sys

import fedloom as fl
import fedloom.methods as fm


class SmoothOptions(fm.Options):
    """Options of the method."""

    decay: float = fm.option(0.7, "Weight of the running average, against that of the round's new model.", ge=0, lt=1)


@fm.register
class Smooth(fm.Method):
    """Smooth: FedAvg, tested with a running average of the server's models.

    Down: weights.   Up: weights, number of samples.
    Clients train from the last model as in FedAvg; the average is at the server alone.
    """

    Options = SmoothOptions

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        server = super().server_init(ctx)
        return server | {"average": server["model"]}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        new = super().aggregate(server, uploads, ctx)
        decay = self.options.decay
        average = fm.combine([fm.get_tree(server, "average"), fm.get_tree(new, "model")], [decay, 1 - decay])
        return {"model": new["model"], "average": average}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        if state is not None:
            return {}
        return {
            "global": fm.Predictor(fm.get_tree(server, "average")),
            "last": fm.Predictor(fm.get_tree(server, "model")),
        }


def main(rounds: int = 20, seeds: int = 3) -> fl.Comparison:
    """Compare both methods with equal clients, first weights and batches."""
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.05, clients=10)
    return fl.compare(["fedavg", "smooth"], scenario=scenario, rounds=rounds, seeds=seeds, participation=0.4)


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:])).table())
