"""Methods whose clients keep heads, vectors or gates: golden numbers, what stays, what is reported."""

import math

import pytest
import torch

from fedloom.core.records import get_tensor, get_tree
from fedloom.methods import METHODS, Batch, OptimizerSpec
from fedloom.methods.fedcp import context_of, discrepancy, gated_logits
from fedloom.methods.feddbe import BIAS
from fedloom.methods.gpfl import conditions
from golden_world import (
    WORLD,
    GoldenNet,
    golden_entries,
    golden_run,
    golden_scenario,
    matches,
    mistakes,
    probe,
    refuted,
)
from support import Tiny, TinyBN, after, configured, same_bits, same_tree, world

GOLD = golden_entries("copa fedas fedcp gpfl feddbe")


# -- copa --------------------------------------------------------------------------------------------------------------
COPA = METHODS.get("copa")
LABELS_COPA = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
BODY_COPA, HEAD_COPA = ("fc.weight", "fc.bias"), ("head.weight", "head.bias")


def test_copa_golden_rounds():
    federation, servers = golden_run(COPA, rounds=2, **GOLD["copa"]["options"])
    for number, server in enumerate(servers, 1):
        wanted = GOLD["copa"]["out"][f"round{number}"]
        assert matches(server["model"], wanted["server"], tolerance=5e-9)
        assert server["model"].keys() == set(BODY_COPA)
        assert abs(probe(server["model"], BODY_COPA) - wanted["probe"]) < 5e-8
        for client, head in enumerate(wanted["heads"]):
            assert matches(server[f"head.{client}"], head, tolerance=5e-9)
    assert refuted(servers[-1]["model"], GOLD["copa"], BODY_COPA)
    tree = federation.method.predictors(federation.server, None, federation.server_context())["global"].tree
    x = golden_scenario().train_set.x[WORLD["n"][0] : WORLD["n"][0] + WORLD["n"][1]]
    logits = federation.server_context().net.logits(tree, x)
    wanted = torch.tensor(GOLD["copa"]["out"]["ensemble_logits_on_x_of_client_1"], dtype=torch.float64)
    assert torch.allclose(logits, wanted, rtol=0, atol=1e-7)


def test_the_ensemble_is_the_mean_of_all_heads_logits():
    toy = after(world(configured("copa"), LABELS_COPA, net=TinyBN), 2)
    server, x = toy.federation.server, toy.data.x
    offered = toy.method.predictors(server, None, toy.federation.server_context())
    frozen = toy.net.functional
    each = [frozen.logits(server["model"] | server[f"head.{k}"], x) for k in range(4)]
    assert torch.allclose(frozen.logits(offered["global"].tree, x), torch.stack(each).mean(0), atol=1e-6)
    assert toy.method.predictors(server, {}, toy.federation.server_context(1)) == {}


def test_the_loss_sums_over_the_others_and_leaves_their_heads_alone():
    toy = world(configured("copa", weight=0.5), LABELS_COPA)
    job = toy.job(1)
    for client in (0, 2, 3):  # heads that differ
        job.payload[f"head.{client}"] = {n: v + 0.1 * client + 0.3 for n, v in job.payload[f"head.{client}"].items()}
    start = toy.method.begin(job.payload, {}, job.ctx)
    x, y = toy.samples(1)
    terms = toy.method.loss(toy.net, Batch(x, y), start.consts).terms
    z = toy.net.features(x)
    each = [
        torch.nn.functional.cross_entropy(z @ head["head.weight"].T + head["head.bias"], y)
        for head in (job.payload[f"head.{client}"] for client in (0, 2, 3))
    ]
    assert float(terms["ce_foreign"].detach()) == pytest.approx(0.5 * float(sum(each).detach()), rel=1e-5)
    gradients = torch.autograd.grad(terms["ce_foreign"], list(toy.net.parameters()), allow_unused=True)
    moved = {n for (n, _), g in zip(toy.net.named_parameters(), gradients, strict=True) if g is not None}
    assert moved == set(BODY_COPA)


def test_alone_it_is_fedavg():
    ours, plain = (after(world(configured(name), LABELS_COPA[:1], net=TinyBN), 2) for name in ("copa", "fedavg"))
    offered = ours.method.predictors(ours.federation.server, None, ours.federation.server_context())
    assert same_tree(offered["global"].tree, plain.federation.server["model"])
    assert set(ours.reports[-1].terms) == {"ce"}


# -- fedas -------------------------------------------------------------------------------------------------------------
FEDAS = METHODS.get("fedas")
LABELS = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3]]


def test_fedas_golden_rounds():
    traces, aligned = {}, {}

    class Noting(FEDAS):
        def begin(self, payload, state, ctx):
            self.place = ctx.round, ctx.client
            return super().begin(payload, state, ctx)

        def loss(self, net, batch, consts):
            aligned.setdefault(self.place, {n: value.detach().clone() for n, value in net.named_parameters()})
            return super().loss(net, batch, consts)

        def end(self, work, state, ctx):
            upload, state = super().end(work, state, ctx)
            traces[ctx.round, ctx.client] = upload["trace"]
            return upload, state

    for rounds in (1, 2):
        federation, servers = golden_run(Noting, rounds, **GOLD["fedas"]["options"])
        wanted = GOLD["fedas"]["out"][f"round{rounds}"]
        assert matches(servers[-1]["model"], wanted["server"], tolerance=2e-6)
        for client, trace in wanted["traces"].items():
            assert traces[rounds, int(client)] == pytest.approx(trace, abs=2e-6)
            assert matches(aligned[rounds, int(client)], wanted["aligned"][client], tolerance=2e-6)
            assert matches(federation.states[int(client)]["model"], wanted["own"][client], tolerance=2e-6)
        assert abs(probe(servers[-1]["model"]) - wanted["probe"]) < 2e-6
    assert refuted(servers[-1]["model"], GOLD["fedas"])
    others = [name for name in GOLD["fedas"] if name.endswith("_probe")]
    assert all(abs(probe(servers[-1]["model"]) - value) > 1e-5 for value in mistakes(GOLD["fedas"], *others))


def test_golden_traces_of_single_samples():
    _, servers = golden_run(FEDAS, 2, trace="samples", **GOLD["fedas"]["options"])
    assert abs(probe(servers[-1]["model"]) - GOLD["fedas"]["trace_per_sample_probe"]) < 2e-6


def test_traces_are_weights_and_one_that_is_no_number_counts_for_nothing():
    toy = world(configured("fedas"), LABELS)
    tree = toy.task.init
    uploads = {
        k: {"model": {n: torch.full_like(v, float(k)) for n, v in tree.items()}, "samples": 5, "trace": trace}
        for k, trace in enumerate((1.0, 3.0, math.nan))
    }
    ctx = toy.federation.server_context()
    assert float(toy.method.aggregate({}, uploads, ctx)["model"]["fc.bias"][0]) == pytest.approx(0.75)
    assert toy.method.diagnostics({}, uploads, ctx) == []
    uploads[0]["trace"] = uploads[1]["trace"] = 0.0
    assert float(toy.method.aggregate({}, uploads, ctx)["model"]["fc.bias"][0]) == pytest.approx(1.0)
    uploads[1]["trace"] = 9.0
    assert [d.code for d in toy.method.diagnostics({}, uploads, ctx)] == ["fedas.one_client"]


# -- fedcp -------------------------------------------------------------------------------------------------------------
FEDCP = METHODS.get("fedcp")
BODY_FEDCP, HEAD_FEDCP = ["fc.weight", "fc.bias"], ["head.weight", "head.bias"]
GATE = [f"extra.{name}" for name in GOLD["fedcp"]["gate_init"]]


class GoldenFedcp(FEDCP):
    def extra(self, net):
        module = super().extra(net)
        with torch.no_grad():
            for name, value in module.named_parameters():
                value.copy_(torch.tensor(GOLD["fedcp"]["gate_init"][name], dtype=torch.float64))
        return module


def golden(rounds):
    return golden_run(GoldenFedcp, rounds, noise=False, weight=GOLD["fedcp"]["options"]["lambda"])


def fingerprint(federation, server, participants):
    trees = [(server["model"], BODY_FEDCP), (server["head"], HEAD_FEDCP), (server["model"], GATE)]
    trees += [(federation.states[client]["model"], HEAD_FEDCP) for client in participants]
    return sum(probe(tree, names) for tree, names in trees)


def test_fedcp_golden_rounds():
    for rounds in (1, 2):
        federation, servers = golden(rounds)
        wanted, server = GOLD["fedcp"]["out"][f"round{rounds}"], servers[-1]
        assert matches(server["model"], wanted["body"])
        assert matches(server["head"], wanted["head"])
        assert matches(server["model"], wanted["gate"], prefix="extra.")
        for client, head in wanted["own"].items():
            assert matches(federation.states[int(client)]["model"], head)
        found = fingerprint(federation, server, WORLD["rounds"][rounds - 1])
        assert abs(found - wanted["probe"]) < 1e-7
    assert all(abs(found - value) > 1e-6 for value in mistakes(GOLD["fedcp"]))
    ctx = federation.client_context(0, 2)
    offered = federation.method.predictors(server, federation.state_of(ctx), federation.server_context(0))["personal"]
    live = federation.engine.worker.net_of_client(0)
    live.load(offered.tree)
    logits = offered.logits(live.net.eval(), torch.tensor(WORLD["x"][0], dtype=torch.float64))
    assert matches({"": logits}, {"": GOLD["fedcp"]["out"]["logits_of_client_0"]})


def test_golden_discrepancy_of_two_views():
    net, x = GoldenNet(), torch.tensor(WORLD["x"][0], dtype=torch.float64)
    z, second = (net.features(view) for view in (x, torch.tensor(WORLD["second_view"][0], dtype=torch.float64)))
    found = discrepancy(z, second, Batch(x, torch.tensor(WORLD["y"][0])))
    assert float(found.detach()) == pytest.approx(GOLD["fedcp"]["first_mmd"], abs=1e-7)


def test_golden_share_under_given_noise(monkeypatch):
    federation, _ = golden(1)
    live = federation.engine.worker.net_of_client(0)
    live.load(federation.tasks[0].init)
    z = live.net.features(torch.tensor(WORLD["x"][0], dtype=torch.float64))
    noise = torch.tensor(GOLD["fedcp"]["with_noise"]["noise"], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand_like", lambda scores: (-(-noise).exp()).exp())  # of which the noise is made
    scores = live.net.extra(z * context_of(federation.tasks[0].init)) + noise
    assert matches({"": torch.softmax(scores, 1)[:, 0]}, {"": GOLD["fedcp"]["with_noise"]["r"]})
    head = {name: federation.tasks[0].init[name] for name in HEAD_FEDCP}
    context = context_of(federation.tasks[0].init)
    share = torch.tensor(GOLD["fedcp"]["with_noise"]["r"], dtype=torch.float64)
    wanted = live.net.head(share * z) + live.net.head((1 - share) * z)
    assert matches({"": gated_logits(live.net, z, head, context, noise=True)}, {"": wanted.tolist()}, tolerance=1e-6)


def test_the_discrepancy_by_hand_and_under_a_mask():
    a, b = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]])
    batch = Batch(a, torch.tensor([0, 0]))
    assert float(discrepancy(a, a, batch)) == 0

    def k(square):
        return sum(float(torch.tensor(-square / 2 / width).exp()) for width in (10, 15, 20, 50))

    by_hand = (2 * k(0) + 2 * k(4)) / 4 + k(0) - 2 * k(1)
    assert float(discrepancy(a, b, batch)) == pytest.approx(by_hand, abs=1e-6)
    padded = Batch(torch.ones(3, 1), torch.zeros(3, dtype=torch.int64), torch.tensor([True, True, False]))
    rows = [torch.cat([part, torch.full((1, 1), 9.0)]) for part in (a, b)]
    assert float(discrepancy(*rows, padded)) == pytest.approx(by_hand, abs=1e-6)


def test_noise_is_in_training_and_not_in_tests():
    toy = world(configured("fedcp"), LABELS, net=Tiny)
    job, batch = toy.job(0), Batch(*toy.samples(0))
    consts = toy.method.begin(job.payload, job.state, job.ctx).consts
    with torch.no_grad():
        toy.net.head.weight.add_(torch.randn(4, 6))  # with equal heads the shares do not matter
    for training, values in ((True, 2), (False, 1)):
        net = toy.net.train(training)
        found = {toy.method.loss(net, batch, consts).terms["ce"].item() for _ in range(2)}
        assert len(found) == values


# -- gpfl --------------------------------------------------------------------------------------------------------------
GPFL = METHODS.get("gpfl")
LABELS_GPFL = [[0, 1, 2, 3], [1, 1, 3], [0, 2, 3, 3]]


def in_our_words(tree):
    return {f"extra.{n}" if n.startswith(("embedding", "gamma", "beta")) else n: v for n, v in tree.items()}


SHARED = list(in_our_words(GOLD["gpfl"]["out"]["round1"]["server"]))
HEAD_GPFL = ("head.weight", "head.bias")
HEADS = [f"{client}.{name}" for client in range(3) for name in HEAD_GPFL]


class GoldenGpfl(GPFL):
    def extra(self, net):
        module = super().extra(net).double()
        first = {"embedding": GOLD["gpfl"]["first_embedding"], **GOLD["gpfl"]["first_conditional"]}
        with torch.no_grad():
            for name, value in module.named_parameters():
                value.copy_(torch.tensor(first[name], dtype=torch.float64))
        return module


def outputs(federation, client):
    """What a client's test gives for the public inputs."""
    facts, context = federation.client_context(client, federation.round), federation.server_context(client)
    state = federation.state_of(facts)
    offered = federation.method.predictors(federation.server, state, context)["personal"]
    live = federation.engine.worker.net_of_client(client)
    live.load(offered.tree)
    return offered.logits(live.net.eval(), torch.tensor(WORLD["public"], dtype=torch.float64))


@pytest.mark.parametrize(("way", "inputs"), [("out", "received"), ("released", "own")])
def test_gpfl_golden_rounds(way, inputs):
    federation, servers = golden_run(GoldenGpfl, 2, inputs=inputs, **GOLD["gpfl"]["options"])
    for number, server in enumerate(servers, 1):
        assert matches(server["model"], in_our_words(GOLD["gpfl"][way][f"round{number}"]["server"]))
    tree = dict(servers[-1]["model"])
    for client, wanted in GOLD["gpfl"][way]["heads"].items():
        head = federation.states[int(client)]["model"]
        assert matches(head, wanted)
        tree |= {f"{client}.{name}": value for name, value in head.items()}
        assert matches({"": outputs(federation, int(client))}, {"": GOLD["gpfl"][way]["logits_on_public"][client]})
    assert abs(probe(tree, SHARED + HEADS) - GOLD["gpfl"][way]["round2"]["probe"]) < 1e-7  # so mistakes can be told
    early, (server,) = golden_run(GoldenGpfl, 1, inputs=inputs, **GOLD["gpfl"]["options"])
    first = {
        f"{k}.{name}": early.state_of(early.client_context(k, 1))["model"][name] for k in range(3) for name in HEAD_GPFL
    }
    assert abs(probe(server["model"] | first, SHARED + HEADS) - GOLD["gpfl"][way]["round1"]["probe"]) < 1e-7
    assert refuted(tree, GOLD["gpfl"], SHARED + HEADS)


def test_with_equal_shares_both_conditions_are_one():
    embedding = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    general, personal = conditions(embedding, torch.tensor([5, 5, 5, 5]))
    assert torch.allclose(general, personal)
    general, personal = conditions(embedding, torch.tensor([0, 3, 0, 0]))
    assert torch.equal(personal, embedding[1])
    assert torch.equal(conditions(embedding, torch.zeros(4, dtype=torch.int64))[1], torch.zeros(6))


def test_a_class_that_nobody_holds_moves_by_the_softmax():
    toy = world(configured("gpfl", decay=0.0, weight=0.0), [[0, 1, 2], [1, 0]])
    before = toy.federation.server["model"]["extra.embedding"]
    toy.federation.step()
    moved = (toy.federation.server["model"]["extra.embedding"] - before).abs().sum(1)
    assert (moved > 0).all()


def test_the_pull_is_the_root_of_the_sum_over_the_batch_and_has_a_slope_at_its_end():
    toy = world(configured("gpfl", weight=2.0), LABELS_GPFL, net=Tiny)
    start = toy.method.begin({"model": toy.task.init}, toy.method.client_init(toy.job(0).ctx), toy.job(0).ctx)
    x, y = toy.samples(0)
    z = toy.net.extra(toy.net.features(x), start.consts["general"])
    wanted = 2 * torch.linalg.vector_norm(z - start.consts["anchors"][y])
    assert torch.allclose(toy.method.loss(toy.net, Batch(x, y), start.consts).terms["pull"], wanted)
    padded = Batch(torch.cat([x, x[:1] + 3]), torch.cat([y, y[:1]]), torch.tensor([True] * len(y) + [False]))
    assert torch.allclose(toy.method.loss(toy.net, padded, start.consts).terms["pull"], wanted)
    anchors = {**start.consts, "anchors": z.detach()}  # features lie where they are pulled to
    term = toy.method.loss(toy.net, Batch(x, torch.arange(len(x))), anchors).terms["pull"]
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(term, list(toy.net.extra.gamma.parameters())))


def test_embeddings_of_one_point_are_said_to_give_one_condition():
    toy = world(configured("gpfl"), LABELS_GPFL)
    server, ctx = dict(toy.federation.server), toy.federation.server_context()
    assert toy.method.diagnostics(server, {}, ctx) == []
    alike = server["model"] | {"extra.embedding": torch.ones(4, 6)}
    assert [d.code for d in toy.method.diagnostics({"model": alike}, {}, ctx)] == ["gpfl.one_condition"]


# -- feddbe ------------------------------------------------------------------------------------------------------------
FEDDBE = METHODS.get("feddbe")


def both(federation, clients):
    """The fingerprint of the server's model and that of the vectors of some clients."""
    biases = torch.cat([get_tensor(federation.states[client], "bias") for client in clients])
    return probe(get_tree(federation.server, "model")) + probe({"": biases}, [""])


def test_feddbe_golden_rounds():
    for rounds, drawn in enumerate(WORLD["rounds"][:2], 1):
        federation, servers = golden_run(FEDDBE, rounds, **GOLD["feddbe"]["options"])
        wanted = GOLD["feddbe"]["out"][f"round{rounds}"]
        assert matches(servers[-1]["model"], wanted["server"])
        assert matches({"": servers[-1]["goal"]}, {"": GOLD["feddbe"]["out"]["goal"]})
        for client, bias in wanted["bias"].items():
            assert matches({"": get_tensor(federation.states[int(client)], "bias")}, {"": bias})
        assert [*wanted["bias"]] == [str(client) for client in drawn]
        assert abs(both(federation, drawn) - wanted["probe"]) < 1e-6
    assert all(abs(both(federation, drawn) - value) > 1e-5 for value in mistakes(GOLD["feddbe"]))
    assert refuted(servers[-1]["model"], GOLD["feddbe"])


def test_golden_without_the_consensus():
    federation, _ = golden_run(FEDDBE, 2, **GOLD["feddbe"]["options"] | {"kappa": 0.0})
    assert abs(both(federation, WORLD["rounds"][1]) - GOLD["feddbe"]["kappa_0_probe"]) < 1e-6
    assert "goal" not in federation.server


def test_without_consensus_and_with_a_still_vector_it_is_fedavg():
    ours, theirs = (
        after(world(configured(name, **options), LABELS, net=TinyBN, participation=0.7), 3)
        for name, options in (("feddbe", {"kappa": 0.0, "bias": False}), ("fedavg", {}))
    )
    assert same_bits(ours.federation.server, theirs.federation.server)
    assert not any(get_tensor(state, "bias").any() for state in ours.federation.states.values())
    assert [found.code for found in ours.federation.initial_diagnostics] == ["feddbe.no_consensus"]


def test_weight_decay_leaves_the_vector_alone_and_nothing_private_travels():
    decayed = OptimizerSpec(lr=0.1, weight_decay=0.5)
    toy = after(world(configured("feddbe", bias=False), LABELS, optimizer=decayed), 1)
    state = {"bias": torch.ones(6)}
    done = toy.worker.run(toy.job(0, round_=2, state=state))
    assert same_tree(done.state, state)
    assert not any(name.startswith("extra") for name in done.upload["model"])


def test_the_model_for_all_has_the_first_vector_and_a_personal_one_its_own():
    toy = after(world(configured("feddbe"), LABELS, net=TinyBN), 2)
    server, method, context = toy.federation.server, toy.method, toy.federation.server_context()
    state = {"bias": torch.full_like(toy.task.init[BIAS], 0.5)}
    (model,) = method.predictors(server, None, context).items()
    (own,) = method.predictors(server, state, context).items()
    assert (model[0], own[0]) == ("global", "personal")
    assert torch.equal(model[1].tree[BIAS], toy.task.init[BIAS])
    assert torch.equal(own[1].tree[BIAS], state["bias"])


def test_a_client_that_missed_the_opening_trains_without_the_pull():
    toy = world(configured("feddbe"), LABELS)
    assert set(toy.worker.run(toy.job(0)).terms) == {"ce"}
    toy.federation.step()
    assert set(toy.worker.run(toy.job(0)).terms) == {"ce", "consensus"}
