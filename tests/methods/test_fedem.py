"""FedEM against golden numbers of two rounds: shares, models and predictions."""

import torch

from fedloom.core.records import get_number
from fedloom.methods import METHODS
from fedloom.methods.fedem import children, responsibilities, sample_shares
from golden_world import SHARED_BASELINES, WORLD, golden_run, matches, probe
from support import after, configured, furthest, world

GOLD = SHARED_BASELINES["fedem"]
SECOND = SHARED_BASELINES["world"]["init_2"]
LABELS = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3], [0, 1, 2, 3]]
FEDEM = METHODS.get("fedem")


class Golden(FEDEM):
    """Begins with the two golden models."""

    def server_init(self, ctx):
        second = {f"component1.{n}": torch.tensor(v, dtype=torch.float64) for n, v in SECOND.items()}
        return {"model": super().server_init(ctx)["model"] | second}


def model(server, number):
    prefix = f"component{number}."
    return {n.removeprefix(prefix): v for n, v in server["model"].items() if n.startswith(prefix)}


def fingerprint(server):
    return probe(model(server, 0)) + 2 * probe(model(server, 1))


def test_golden_rounds():
    first = {}

    class Noting(Golden):
        def begin(self, payload, state, ctx):
            self.place = ctx.round, ctx.client
            return super().begin(payload, state, ctx)

        def loss(self, net, batch, consts):
            first.setdefault(self.place, sample_shares(net, batch, {"prior": consts["prior"]}).detach())
            return super().loss(net, batch, consts)

    for rounds in (1, 2):
        federation, servers = golden_run(Noting, rounds, **GOLD["options"])
        wanted = GOLD["out"][f"round{rounds}"]
        assert all(matches(model(servers[-1], j), wanted["models"][j], tolerance=1e-6) for j in range(2))
        for client, shares in wanted["pi"].items():
            state = federation.states[int(client)]
            assert max(abs(float(get_number(state, f"share.{j}")) - share) for j, share in enumerate(shares)) < 1e-6
        assert abs(fingerprint(servers[-1]) - wanted["probe"]) < 1e-5
        for client, q in wanted["q"].items():
            found = first[rounds, int(client)]
            assert matches({"": found[found[:, 0].argsort()]}, {"": sorted(q)}, tolerance=1e-6)  # batches are shuffled
    mistakes = ("WRONG_hard_assignment", "federatedscope_pi_for_q_probe", "authors_all_clients_in_the_mean_probe")
    assert all(abs(fingerprint(servers[-1]) - GOLD[name]) > 1e-3 for name in mistakes)


def test_golden_predictions_mix_probabilities_and_not_logits():
    federation, _ = golden_run(Golden, 2, **GOLD["options"])
    facts, ctx = federation.client_context(2, 2), federation.server_context(2)
    offered = federation.method.predictors(federation.server, federation.state_of(facts), ctx)["personal"]
    live = federation.engine.worker.net_of_client(2)
    live.load(offered.tree)
    probabilities = offered.logits(live.net.eval(), torch.tensor(WORLD["x"][2], dtype=torch.float64)).detach().exp()
    wanted = torch.tensor(GOLD["out"]["probabilities_of_client_2"], dtype=torch.float64)
    assert torch.allclose(probabilities, wanted, rtol=0, atol=1e-6)
    assert abs(probe({"": probabilities}, [""]) - GOLD["probabilities_probe"]) < 1e-5
    shares = GOLD["out"]["round2"]["pi"]["2"]
    x = torch.tensor(WORLD["x"][2], dtype=torch.float64)
    logits = sum(share * net(x) for share, net in zip(shares, children(live.net), strict=True))
    mistaken = probe({"": logits.softmax(1).detach()}, [""])
    assert abs(mistaken - GOLD["WRONG_mixed_logits_probe"]) < 1e-6, "the mistake is what this entry says"
    assert abs(probe({"": probabilities}, [""]) - mistaken) > 1e-3


def test_equal_models_leave_the_shares_and_components_start_apart():
    shares = torch.tensor([0.2, 0.5, 0.3])
    assert torch.allclose(responsibilities(torch.ones(4, 3), shares), shares.expand(4, 3))
    toy = world(configured("fedem"), LABELS)
    starts = [model(toy.federation.server, number) for number in range(3)]
    assert min(furthest(starts[0], starts[1]), furthest(starts[1], starts[2])) > 1e-3
    assert "fedem.noisy_starts" in {found.code for found in toy.federation.initial_diagnostics}


def test_a_newcomer_finds_its_shares_before_its_test():
    toy = after(world(configured("fedem"), LABELS), 2)
    ctx, live = toy.federation.client_context(0, 2), toy.worker.loaded_nets[0]
    offered = toy.method.predictors(toy.federation.server, {}, toy.federation.server_context(0))["personal"]
    predictor, _ = toy.worker.adapt(live, offered, ctx, toy.job(0).indices)
    x = toy.data.x[:4]
    assert not torch.allclose(offered.logits(live.net.eval(), x), predictor.logits(live.net, x))
    assert torch.allclose(predictor.logits(live.net, x).exp().sum(1), torch.ones(4), atol=1e-5)
