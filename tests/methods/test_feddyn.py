"""FedDyn: golden numbers, and how h and the g_k hang together."""

import pytest

from fedloom.core.trees import combine, weighted_mean
from fedloom.methods.contract.contexts import ServerContext, Start
from fedloom.methods.feddyn import FedDyn
from golden_world import GOLDEN, WORLD, golden_run, matches, probe, refuted, rounds_match
from support import Recording, TinyBN, configured, furthest, world

GOLD = GOLDEN["feddyn"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def test_golden():
    federation, servers = golden_run(FedDyn, rounds=2, **GOLD["options"])
    assert rounds_match(servers, GOLD["out"])
    assert matches(servers[1]["h"], GOLD["out"]["h"])
    for client, own in GOLD["out"]["own"].items():
        assert matches(federation.states[int(client)]["g"], own)
    assert refuted(servers[1]["model"], GOLD)


class BySize(FedDyn):
    """What the golden part "size_weights" has of FL-bench, and no option has: the mean by samples. h as it is."""

    def aggregate(self, server, uploads, ctx):
        new, mean = super().aggregate(server, uploads, ctx), self.mean(uploads)
        return new | {"model": combine([mean, new["h"]], [1, -1 / self.options.alpha])}


class AlphaBySize(FedDyn):
    """What the golden part "authors_alpha_by_size" has of the released code, and no option has, because no client knows
    how many samples the others hold: a client's alpha over its share of all samples and N. The server's is alpha."""

    def own(self, client):
        share = WORLD["n"][client] / sum(WORLD["n"])
        return FedDyn(self.Options(alpha=self.options.alpha / (share * 3)))

    def begin(self, payload, state, ctx):
        start = super().begin(payload, state, ctx)
        return Start(start.tree, {**start.consts, "client": ctx.client})

    def loss(self, net, batch, consts):
        return self.own(consts["client"]).loss(net, batch, consts)

    def end(self, work, state, ctx):
        return self.own(ctx.client).end(work, state, ctx)


@pytest.mark.parametrize(
    ("kind", "part"), [(BySize, "size_weights_probe"), (AlphaBySize, "authors_alpha_by_size_probe")]
)
def test_golden_variants_of_other_code(kind, part):
    """They are our equations with the stated difference, and not what we compute."""
    plain, other = (golden_run(method, rounds=2, **GOLD["options"])[1][1]["model"] for method in (FedDyn, kind))
    assert abs(probe(other) - GOLD[part]) < 1e-7
    assert abs(probe(plain) - GOLD[part]) > 1e-3


def test_h_is_the_mean_of_all_clients_g():
    toy = world(configured("feddyn", alpha=0.3), LABELS, net=TinyBN, participation=0.5, epochs=2)
    for _ in range(5):
        toy.federation.step()
        own = [toy.federation.state_of(toy.federation.client_context(k, 1))["g"] for k in range(len(LABELS))]
        assert furthest(combine(own, [1 / len(own)] * len(own)), toy.federation.server["h"]) < 1e-6


def test_the_average_is_the_mean_of_what_was_sent():
    toy = world(configured("feddyn", alpha=0.5), LABELS, net=TinyBN, participation=0.6, engine=Recording)
    for _ in range(2):
        toy.federation.engine.done.clear()
        toy.federation.step()
    sent = [done.upload["model"] for done in toy.federation.engine.done]
    offered = toy.method.predictors(toy.federation.server, None, ServerContext(toy.task, 2))
    assert set(offered) == {"global", "average"}
    assert furthest(offered["average"].tree, weighted_mean(sent, [1.0] * len(sent))) < 1e-5
    assert furthest(offered["average"].tree, offered["global"].tree) > 1e-3


def test_clip_bounds_a_step():
    toy = world(configured("feddyn", "authors", clip=0.01), LABELS[:2])
    done = toy.worker.run(toy.job(1))
    way = sum(float((done.upload["model"][n] - v).square().sum()) for n, v in toy.task.init.items()) ** 0.5
    assert way <= 0.1 * 0.01 * done.steps * (1 + 1e-5)
