"""Methods whose server makes a step or weighs clients: golden numbers, steps by hand, limits, refusals."""

import itertools

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.trees import combine, weighted_mean
from fedloom.methods import METHODS
from fedloom.methods.contract.contexts import ServerContext, Start
from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.methods.fedavgm import FedAvgM
from fedloom.methods.fedcda import COMBINATIONS, FedCDA, closest
from fedloom.methods.feddisco import FedDisco, discrepancy
from fedloom.methods.feddyn import FedDyn
from fedloom.methods.fedexp import FedExP
from fedloom.methods.fednova import FedNova
from fedloom.methods.qfedavg import QFedAvg
from fedloom.methods.scaffold import SCAFFOLD
from fedloom.nets.net import BN_ROLES, Role
from fedloom.runs.config.run_config import parse
from golden_world import (
    WORLD,
    assert_golden,
    golden_entries,
    golden_run,
    matches,
    probe,
    refuted,
    variant_probe,
    with_steps,
)
from support import Recording, TinyBN, Uniform, after, alike, configured, furthest, same_bits, world

GOLD = golden_entries("fedavgm fedopt fedexp qfedavg fednova feddisco fedcda feddyn scaffold")


# -- fedavgm -----------------------------------------------------------------------------------------------------------
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


OPTIONS = {"beta": 0.7, "server_lr": 0.5}


@pytest.mark.parametrize("nesterov", [False, True])
def test_over_fedavg_it_is_fedavgm(nesterov):
    named = {f"servermomentum_{key}": value for key, value in OPTIONS.items()}
    methods = (
        configured("fedavgm", nesterov=nesterov, **OPTIONS),
        configured("fedavg+servermomentum", servermomentum_nesterov=nesterov, **named),
    )
    one, other = (after(world(m, LABELS, net=TinyBN, participation=0.6), 3).federation.server for m in methods)
    assert same_bits({"model": one["model"]}, {"model": other["model"]})
    assert same_bits({"": one["velocity"]}, {"": other["servermomentum.velocity"]})


@pytest.mark.parametrize("base", ["feddyn", "fedrep", "fedsc", "fednh", "scaffold"])
def test_over_other_methods_it_moves_what_clients_send(base):
    """Round 1: w - eta (1 + beta) D with Nesterov's momentum, D = w^0 - what the method alone makes."""
    named = {f"servermomentum_{key}": value for key, value in OPTIONS.items()}
    plain = after(world(configured(base), LABELS, net=TinyBN), 1)
    toy = after(
        world(configured(f"{base}+servermomentum", servermomentum_nesterov=True, **named), LABELS, net=TinyBN), 1
    )
    old, mean, new = (
        dict(tree) for tree in (toy.task.init, plain.federation.server["model"], toy.federation.server["model"])
    )
    sent = {n for n in mean if not n.startswith("norm.running") and not n.endswith("tracked")}
    sent -= {"head.weight"} if base == "fednh" else set()  # the server's own rows
    for name in mean:
        wanted = old[name].double() - 0.5 * 1.7 * (old[name].double() - mean[name].double())
        wanted = wanted if name in sent else mean[name].double()
        assert torch.allclose(new[name].double(), wanted, rtol=0, atol=1e-6), name
    velocity = toy.federation.server["servermomentum.velocity"]
    assert not [n for n in velocity if "running" in n or "tracked" in n]


def test_refusals_of_the_wrapper():
    for base, sent in (("local", "nothing"), ("fedgh", "prototypes"), ("fedkd", "model"), ("fedssa", "header")):
        with pytest.raises(ConfigError, match=rf"{base}\+servermomentum: .* clients send none \(sent: {sent}\)"):
            configured(f"{base}+servermomentum")
    with pytest.raises(ConfigError, match="fedavgm has servermomentum already"):
        configured("fedavgm+servermomentum")
    for base in ("fedadam", "fedyogi", "fedadagrad"):
        with pytest.raises(ConfigError, match=f"{base}: its server optimiser has momentum of its own"):
            configured(f"{base}+servermomentum")
    for key, value in (("beta", -0.1), ("beta", 1.0), ("server_lr", -1.0)):
        with pytest.raises(ConfigError, match=rf"servermomentum_{key} = {value}"):
            configured("fedavg+servermomentum", **{f"servermomentum_{key}": value})


# -- fedopt ------------------------------------------------------------------------------------------------------------
NAMES = ("fedadagrad", "fedadam", "fedyogi")


def options_of(name):
    known = METHODS.get(name).Options.model_fields
    return {k: v for k, v in GOLD["fedopt"]["options"].items() if k in known} | (
        {"beta1": 0.0} if name == "fedadagrad" else {}
    )


@pytest.mark.parametrize("name", NAMES)
def test_golden_adaptive_steps(name):
    gold = GOLD["fedopt"]  # Yogi's rule in Adam's place is the fingerprint of Adam itself
    variant, refutes = name.removeprefix("fed"), name != "fedadam"
    _, servers = assert_golden(METHODS.get(name), gold, variant, refutes=refutes, **options_of(name))
    assert matches(servers[1]["m"], gold[variant]["final_m"])
    assert matches(servers[1]["v"], gold[variant]["final_v"])
    others = ("WRONG_adam_bias_corrected", "WRONG_sign", "adam_uniform_probe", "adam_v0_zero_probe")
    assert refutes or all(abs(probe(servers[1]["model"]) - gold[other]) > 1e-6 for other in others)


def test_bias_correction_is_that_of_keras():
    """torch's Adam on the same pseudo-gradients: without a tau to speak of, both have the same steps."""
    kind, options = METHODS.get("fedadam"), {"tau": 1e-12, "v0": 0.0, "server_lr": 0.1, "beta1": 0.9, "beta2": 0.999}
    _, servers = golden_run(kind, rounds=2, bias_correction=True, **options)
    weights = {name: value.clone() for name, value in golden_run(kind, rounds=1, lr=0.0)[1][0]["model"].items()}
    adam = torch.optim.Adam(list(weights.values()), lr=0.1, betas=(0.9, 0.999), eps=1e-12)
    last = {name: torch.zeros_like(value) for name, value in weights.items()}
    for server in servers:
        for name, value in weights.items():
            value.grad = -(server["m"][name] - 0.9 * last[name]) / 0.1  # the round's mean change, out of m
        adam.step()
        last = server["m"]
        assert furthest(weights, server["model"]) < 1e-6


# -- fedexp ------------------------------------------------------------------------------------------------------------
EPS, EPOCHS = GOLD["fedexp"]["options"]["eps"], GOLD["fedexp"]["options"]["steps"]


@pytest.mark.parametrize(("way", "weights"), [("out", "samples"), ("uniform", "uniform")])
def test_golden_rates_of_fedexp(way, weights):
    federation, servers = assert_golden(FedExP, GOLD["fedexp"], way, epochs=EPOCHS, eps=EPS, weights=weights)
    assert [server["rate"] for server in servers] == pytest.approx(GOLD["fedexp"][way]["rates"], abs=1e-7)
    offered = federation.method.predictors(servers[-1], None, federation.server_context())
    assert matches(offered["global"].tree, GOLD["fedexp"][way]["average_of_last_two"])


def moved(method, *moves):
    """The server's state after uploads that moved `fc.bias` so."""
    toy = world(method, LABELS)
    server, ctx = toy.federation.server, toy.federation.server_context()
    uploads = {}
    for client, move in enumerate(moves):
        model = dict(server["model"])
        model["fc.bias"] = model["fc.bias"] + torch.tensor(move)
        square = torch.tensor(move, dtype=torch.float64).square().sum()
        uploads[client] = {"model": model, "squared_length": square, "samples": 3}
    return server, method.aggregate(server, uploads, ctx)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_orthogonal_changes_take_half_their_number_as_step(count):
    moves = [[2.0 if i == k else 0.0 for i in range(6)] for k in range(count)]
    old, new = moved(configured("fedexp", eps=0.0), *moves)
    rate = max(1.0, count / 2)
    assert new["rate"] == pytest.approx(rate, rel=1e-6)
    change = new["model"]["fc.bias"] - old["model"]["fc.bias"]
    assert torch.allclose(change, torch.tensor(moves).mean(0) * rate, atol=1e-6)


def test_equal_changes_and_no_change_take_the_mean():
    move = [1.0, 0.0, 0.0, 0.0, 0.0, 2.0]
    assert moved(configured("fedexp"), move, move)[1]["rate"] == 1.0
    assert moved(configured("fedexp", eps=0.0), [0.0] * 6, [0.0] * 6)[1]["rate"] == 1.0


def test_the_next_round_starts_from_the_last_iterate():
    toy = after(world(configured("fedexp"), LABELS), 2)
    server, ctx = toy.federation.server, toy.federation.server_context()
    assert toy.method.down(server, 0, ctx).keys() == {"model"}
    assert toy.method.down(server, 0, ctx)["model"] is server["model"]
    assert toy.method.figures(server, ctx) == {"server_step": server["rate"]}
    plain = configured("fedexp", average=False)
    assert plain.predictors(server, None, ctx)["global"].tree is server["model"]


def test_momentum_at_the_clients_is_reported():
    (found,) = world(configured("fedexp"), LABELS, optimizer=OptimizerSpec(momentum=0.9)).federation.initial_diagnostics
    assert found.code == "fedexp.not_plain_sgd"
    assert "momentum 0.9" in found.message


# -- qfedavg -----------------------------------------------------------------------------------------------------------


class Noting(QFedAvg):
    """Notes what clients send as h, and their losses."""

    seen: list = []  # noqa: RUF012

    def end(self, work, state, ctx):
        payload, state = super().end(work, state, ctx)
        moments = work.collected["loss"]
        self.seen.append((ctx.round, ctx.client, float(moments["sum"][0] / moments["count"]), float(payload["h"])))
        return payload, state


def test_golden_losses_of_qfedavg():
    Noting.seen.clear()
    others = ["fedlab_training_loss_of_last_epoch_probe", "flower_one_loss_for_all_probe"]
    assert_golden(Noting, GOLD["qfedavg"], others=others, **GOLD["qfedavg"]["options"])
    assert len(Noting.seen) == 4
    for round_, client, loss, h in Noting.seen:
        gold = GOLD["qfedavg"]["out"][f"round{round_}"]["clients"][str(client)]
        assert loss == pytest.approx(gold["loss"], abs=1e-7)
        assert h == pytest.approx(gold["h"], abs=1e-6)


@pytest.mark.parametrize("rate", [0.1, 4.0])
def test_with_q_0_it_is_the_plain_mean_with_buffers(rate):
    """h is 1 / rate, above and below 1."""

    sgd = OptimizerSpec(lr=rate)
    toys = [
        after(world(m, LABELS, net=TinyBN, epochs=2 if rate < 1 else 1, optimizer=sgd), 2)
        for m in (Uniform(), configured("qfedavg", q=0.0))
    ]
    models = [toy.federation.server["model"] for toy in toys]
    assert furthest(*models) < 1e-5
    assert torch.equal(*(model["norm.num_batches_tracked"] for model in models))


def test_the_rate_of_the_round_counts():
    """With q = 0 the rate cancels, whatever it decays to."""
    decaying = OptimizerSpec(lr=0.1, decay=0.5)
    toys = [
        after(world(configured(n, **o), LABELS[:1], optimizer=decaying), 3)
        for n, o in [("fedavg", {}), ("qfedavg", {"q": 0.0})]
    ]
    assert furthest(*(toy.federation.server["model"] for toy in toys)) < 1e-5


@pytest.mark.parametrize(
    ("optimizer", "found"),
    [(OptimizerSpec(momentum=0.9), "momentum = 0.9"), (OptimizerSpec(name="adam"), "name = adam")],
)
def test_what_is_not_plain_sgd_is_refused(optimizer, found):
    with pytest.raises(ConfigError, match=rf"optimizer\.{found}: qfedavg takes 1 / rate"):
        world(configured("qfedavg"), LABELS, optimizer=optimizer)


def test_a_rate_whose_inverse_overflows_is_refused():
    decaying = OptimizerSpec(lr=0.1, decay=1e-60)
    with pytest.raises(ConfigError, match=r"optimizer\.decay = 1e-60: the rate of the last round is .*; need 1e-100"):
        world(configured("qfedavg"), LABELS, optimizer=decaying, rounds=3)
    after(world(configured("qfedavg"), LABELS, optimizer=decaying, rounds=2), 2)


@pytest.mark.parametrize(("q", "spread"), [(0.0, 1), (0.5, 2), (1.0, 4), (3.0, 64)])
def test_changes_may_lie_apart_by_the_power_of_the_losses(q, spread):
    """With q of 1 a federation refuses an upload 100 times too large: 5 times 4 is the most."""
    sends = configured("qfedavg", q=q).spec.sends
    assert (sends["model"].spread, sends["model"].form, sends["h"].spread) == (spread, "change", 1000)


# -- fednova -----------------------------------------------------------------------------------------------------------


def test_a_client_without_a_step_changes_nothing():
    """Of two clients with as many samples, one steps 4 times and one, a batch of one under batch norm, not at all."""
    toy = world(configured("fednova"), [[0, 1, 2, 3], [1]], net=TinyBN, batch_size=2)
    moved = toy.worker.run(toy.job(0)).upload["model"]
    toy.federation.step()
    for name in ("fc.weight", "norm.weight", "head.bias"):
        whole = moved[name] - toy.task.init[name]  # p (tau_eff / a) = 0.8 * 0.8
        assert torch.allclose(toy.federation.server["model"][name], toy.task.init[name] + 0.64 * whole, atol=1e-6)


def test_adam_is_refused():
    with pytest.raises(ConfigError, match=r"optimizer\.name = adam: fednova divides .*; use sgd"):
        world(configured("fednova"), LABELS, optimizer=OptimizerSpec("adam"))


# -- feddisco ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distance", "wanted"), [("l2", GOLD["feddisco"]["discrepancy"]), ("kl", GOLD["feddisco"]["kl"])]
)
def test_discrepancies(distance, wanted):
    ours = [discrepancy(torch.tensor(counts), distance) for counts in WORLD["class_counts"]]
    assert ours == pytest.approx(wanted, abs=1e-8)


def test_a_client_of_weight_zero_does_not_move_the_model():
    """Client 1 has all classes alike, client 0 one: with a = 2 it weighs max(0, 1/3 - 2 * 0.866) = 0."""
    toy = world(configured("feddisco", a=2.0, b=0.0), [[0, 0], [0, 1, 2, 3]])
    alone = toy.worker.run(toy.job(1)).upload["model"]
    toy.federation.step()
    assert furthest(toy.federation.server["model"], alone) < 1e-7


# -- fedcda ------------------------------------------------------------------------------------------------------------


def test_golden_choices_of_fedcda():
    options = dict(GOLD["fedcda"]["options"])
    _, servers = assert_golden(FedCDA, GOLD["fedcda"], drawn=options.pop("rounds"), batches=1, **options)
    for number, server in enumerate(servers, 1):
        chosen = {str(client): pick for client, pick in enumerate(server["choice"].tolist()) if pick >= 0}
        assert chosen == GOLD["fedcda"]["out"][f"round{number}"]["choice"]


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_an_old_model_that_is_near_is_chosen():
    fixed = [(vector(0, 0), 1.0), (vector(0, 1), 1.0)]
    options = [[(vector(4, 4), 1.0), (vector(0, 0.5), 1.1)], [(vector(1, 0), 1.0), (vector(9, 9), 0.0)]]
    assert closest(fixed, options, 1.0) == [1, 0]
    assert closest(fixed, options, 0.0) == [0, 1]  # losses alone
    assert closest([], [[(vector(1), 2.0), (vector(2), 2.0)]], 1.0) == [0]  # alone, all are as near: the newest


def test_the_choice_is_the_best_of_all_combinations():
    rng = torch.Generator().manual_seed(4)
    draw = lambda: (torch.randn(3, generator=rng, dtype=torch.float64), float(torch.rand(1, generator=rng)))  # noqa: E731
    fixed, options = [draw() for _ in range(2)], [[draw() for _ in range(n)] for n in (3, 2, 3)]

    def cost(picked):
        every = [*fixed, *(client[pick] for client, pick in zip(options, picked, strict=True))]
        weights = torch.stack([w for w, _ in every])
        spread = (weights - weights.mean(0)).square().sum(1).mean()
        return sum(loss for _, loss in every) / len(every) + 0.35 * float(spread)

    best = min(itertools.product(range(3), range(2), range(3)), key=cost)
    assert best != (0, 0, 0)
    assert closest(fixed, options, 0.7) == list(best)


def test_the_model_is_the_mean_of_all_choices_absent_clients_included():
    toy = world(configured("fedcda", warmup=1, kept=2), LABELS, net=TinyBN, participation=0.6, epochs=2)
    for round_ in range(1, 6):
        toy.federation.step()
        server = toy.federation.server
        picked = {k: int(pick) for k, pick in enumerate(server["choice"]) if pick >= 0}
        if round_ > 1:
            trees = [server[f"kept.{k}.{pick}"] for k, pick in picked.items()]
            assert furthest(server["model"], weighted_mean(trees, [1.0] * len(trees))) < 1e-6
            assert len(trees) > 3
        assert all(f"kept.{k}.2" not in server for k in range(5))


@pytest.mark.parametrize(("warmup", "codes"), [(4, ["fedcda.only_warmup"]), (3, [])])
def test_a_run_that_is_all_warm_up_says_so(warmup, codes):
    toy = world(configured("fedcda", warmup=warmup), LABELS, rounds=4)
    assert [diagnostic.code for diagnostic in toy.method.examine([toy.task], 5)] == codes


@pytest.mark.parametrize(("kept", "batches", "clients"), [(3, 3, 5), (3, 1, 40), (2, 1, 12), (1, 2, 9), (4, 3, 2)])
def test_groups_hold_everybody_once_and_few_combinations(kept, batches, clients):
    method = configured("fedcda", kept=kept, batches=batches)
    toy = world(method, [[0, 1]])
    groups = method._groups(list(range(10, 10 + clients)), ServerContext(toy.task, 4))
    assert sorted(itertools.chain(*groups)) == list(range(10, 10 + clients))
    assert len(groups) >= min(batches, clients)
    assert max(kept ** len(group) for group in groups) <= COMBINATIONS
    assert min(len(group) for group in groups) > 0


@pytest.mark.parametrize("engine", ["processes", "stacked"])
def test_engines_agree(engine):
    toys = [world(configured("fedcda", warmup=1), LABELS, net=TinyBN, participation=0.8) for _ in range(2)]
    after(toys[0], 3)
    after(toys[1], 3, engine)
    if engine == "processes":
        assert alike(*toys, engine)
    assert furthest(*(toy.federation.server["model"] for toy in toys)) < 1e-5
    assert torch.equal(*(toy.federation.server["choice"] for toy in toys))


# -- feddyn ------------------------------------------------------------------------------------------------------------


def test_golden_states_of_feddyn():
    _, servers = assert_golden(FedDyn, GOLD["feddyn"], kept="g", **GOLD["feddyn"]["options"])
    assert matches(servers[1]["h"], GOLD["feddyn"]["out"]["h"])


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
    plain, other = (
        golden_run(method, rounds=2, **GOLD["feddyn"]["options"])[1][1]["model"] for method in (FedDyn, kind)
    )
    assert abs(probe(other) - GOLD["feddyn"][part]) < 1e-7
    assert abs(probe(plain) - GOLD["feddyn"][part]) > 1e-3


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


# -- scaffold ----------------------------------------------------------------------------------------------------------
CASES = {
    "out": (SCAFFOLD, {}),
    "unequal_steps": (with_steps(SCAFFOLD, [3, 1, 2]), {}),
    "option_1": (SCAFFOLD, {"option": 1}),
}
BN_STATISTICS = BN_ROLES - {Role.BN_AFFINE}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rounds", [1, 2])
def test_scaffold_golden(case, rounds):
    kind, options = CASES[case]
    federation, servers = golden_run(kind, rounds=rounds, **GOLD["scaffold"]["options"], **options)
    server, wanted = servers[-1], GOLD["scaffold"][case][f"round{rounds}"]
    assert matches(server["model"], wanted["server"])
    assert matches(server["control"], wanted["control"])
    assert abs(probe(server["model"]) - wanted["probe"]) < 1e-7
    for client, own in wanted["own"].items():
        assert matches(federation.states[int(client)]["control"], own)
    assert rounds == 1 or refuted(server["model"], GOLD["scaffold"])


@pytest.mark.parametrize("option", [1, 2])
def test_the_servers_control_is_the_mean_over_all_clients(option):
    """Whatever was drawn, and with clients of a batch of one, which batch norm leaves without a step."""
    toy = world(configured("scaffold", option=option), LABELS, net=TinyBN, participation=0.5, epochs=2)
    for _ in range(5):
        toy.federation.step()
        own = [toy.federation.state_of(toy.federation.client_context(k, 1))["control"] for k in range(len(LABELS))]
        assert furthest(combine(own, [1 / len(own)] * len(own)), toy.federation.server["control"]) < 1e-6


def test_a_client_without_a_step_keeps_its_control():
    toy = world(configured("scaffold"), [[0, 1, 2], [1]], net=TinyBN, engine=Recording)
    toy.federation.step()
    payload = toy.federation.engine.done[1].upload
    assert not any(value.any() for value in payload["control"].values())


def test_the_server_rate_is_a_step_towards_the_mean_and_leaves_buffers_to_it():
    half, whole = (world(configured("scaffold", server_lr=rate), LABELS, net=TinyBN) for rate in (0.5, 1.0))
    for toy in (half, whole):
        toy.federation.step()
    one, other = half.federation.server["model"], whole.federation.server["model"]
    for name, value in half.task.init.items():
        halfway = other[name] if toy.task.roles[name] in BN_STATISTICS else (value + other[name]) / 2
        assert torch.allclose(one[name].double(), halfway.double(), atol=1e-6), name


@pytest.mark.parametrize(
    ("optimizer", "key"),
    [
        (OptimizerSpec(momentum=0.9), r"optimizer\.momentum = 0\.9"),
        (OptimizerSpec(weight_decay=1e-4), r"optimizer\.weight_decay = 0\.0001"),
        (OptimizerSpec(decay=0.99), r"optimizer\.decay = 0\.99"),
        (OptimizerSpec("adam"), r"optimizer\.name = adam"),
    ],
)
def test_option_2_needs_plain_sgd(optimizer, key):
    with pytest.raises(ConfigError, match=rf"{key}: scaffold's option 2 .*scaffold\.option=1"):
        world(configured("scaffold"), LABELS, optimizer=optimizer)
    world(configured("scaffold", option=1), LABELS, optimizer=optimizer)


def test_a_config_without_an_optimiser_is_one_that_option_2_takes():
    config = parse({"method": "scaffold", "scenario": {"source": "digits", "partition": "iid"}})
    assert config.optimizer.momentum == 0


# -- golden numbers of several ----------------------------------------------------------------------------------------
KL = {"distance": "kl", "normalised": True}


@pytest.mark.parametrize(
    ("kind", "name", "variant", "run"),
    [
        (FedAvgM, "fedavgm", "out", {}),
        (with_steps(FedNova, GOLD["fednova"]["options"]["steps"]), "fednova", "out", {}),
        (with_steps(FedNova, GOLD["fednova"]["options"]["steps"]), "fednova", "momentum_0.9", {"momentum": 0.9}),
        (FedDisco, "feddisco", "out", GOLD["feddisco"]["options"]),
        (FedDisco, "feddisco", "authors_kl", GOLD["feddisco"]["options"] | KL),
    ],
)
def test_golden_rounds(kind, name, variant, run):
    assert_golden(kind, GOLD[name], variant, **(GOLD[name]["options"] if kind is FedAvgM else run))


@pytest.mark.parametrize(
    ("kind", "name", "variant", "run"),
    [
        (FedAvgM, "fedavgm", "nesterov_probe", GOLD["fedavgm"]["options"] | {"nesterov": True}),
        (FedExP, "fedexp", "authors_eps_times_m_probe", {"epochs": EPOCHS, "eps": EPS, "eps_by_participants": True}),
        (QFedAvg, "qfedavg", "q_0.2_probe", {"q": 0.2}),
        (METHODS.get("fedadam"), "fedopt", "adam_v0_zero_probe", options_of("fedadam") | {"v0": 0.0}),
    ],
)
def test_golden_variants(kind, name, variant, run):
    found = variant_probe(kind, GOLD[name], "adam" if name == "fedopt" else "out", **run)
    assert abs(found - GOLD[name][variant]) < 1e-7
