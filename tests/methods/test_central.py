"""Training on the pooled data: golden numbers, as many sample visits as the federated run, and nothing that travels."""

import pytest

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.flower.in_process import run_in_process
from fedloom.methods.contract.method import METHODS
from fedloom.runs.config.run_config import parse
from golden_world import SHARED_BASELINES, WORLD, golden_run, matches, probe
from support import configured, same_bits, world

GOLD = SHARED_BASELINES["centralised"]
LABELS = [[0, 1, 2, 0, 1, 1], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1]]


class FullBatch(METHODS.get("central")):
    """With one batch of all samples, as the golden world has them, whatever share a round would take."""

    def down(self, server, client, ctx):
        return super().down(server, client, ctx) | {"share": 1.0}


def test_golden_numbers():
    steps = GOLD["options"]["steps"]
    _, servers = golden_run(FullBatch, steps, drawn=[[0]] * steps, epochs=1, batch_size=sum(WORLD["n"]))
    assert matches(servers[0]["model"], GOLD["one_step"])
    assert matches(servers[-1]["model"], GOLD["out"])
    assert abs(probe(servers[-1]["model"]) - GOLD["WRONG_mean_of_client_losses"]) > 1e-5


def test_one_full_step_is_a_round_of_fedavg_with_everybody():
    pooled, _ = golden_run(FullBatch, 1, drawn=[[0]], epochs=1, batch_size=sum(WORLD["n"]))
    fedavg, _ = golden_run(METHODS.get("fedavg"), 1, drawn=[[0, 1, 2]], epochs=1)
    assert matches(pooled.server["model"], {n: v.tolist() for n, v in fedavg.server["model"].items()}, tolerance=1e-12)


@pytest.mark.parametrize(("participation", "expected"), [(1.0, 22), (2 / 3, 15), (1 / 3, 8)])
def test_it_visits_as_many_samples_as_the_federated_run(participation, expected):
    toy = world(configured("central"), LABELS, epochs=2, participation=participation)
    report = toy.federation.step()
    assert report.samples == 2 * expected  # two epochs over that share of the 22 samples, rounded up
    assert (report.participants, report.bytes_up, report.bytes_down) == ((0,), 0, 0)


def test_how_the_samples_were_dealt_makes_no_difference_to_their_number_or_classes():
    toy = world(configured("central"), LABELS)
    ctx = toy.federation.job(0, 1).ctx
    assert ctx.samples == 22
    assert ctx.class_counts.tolist() == [4, 8, 7, 3]
    assert sorted(toy.federation.job(0, 1).indices.tolist()) == list(range(22))


@pytest.mark.parametrize("word", ["finetune", "lpft"])
def test_each_client_tunes_the_model_on_its_own_samples(word):
    keys = {"scenario": fl.scenario("digits", partition="dirichlet", alpha=0.3, clients=4), "model": "mlp", "rounds": 1}
    protocols = {"protocols": ["personal/local", "personal/global"]}
    options = {f"central+{word}": {f"{word}_epochs": 1}}
    result = fl.run(f"central+{word}", **keys, evaluation=protocols, engine="serial", progress=False, **options)
    assert result.numbers["accuracy"] > 0.5
    toy = world(configured(f"central+{word}"), LABELS)
    assert [job.ctx.samples for job in toy.federation.tests("test")] == [6, 7, 9]
    assert next(job.ctx.class_counts.tolist() for job in toy.federation.tests("test")) == [2, 3, 1, 0]


def test_engines_and_a_resume_have_the_same_bits(tmp_path):
    keys = {
        "scenario": fl.scenario("digits", partition="dirichlet", alpha=0.3, clients=5),
        "model": "mlp",
        "rounds": 3,
        "participation": 0.6,
        "evaluation": {"protocol": "global/local"},
    }
    serial = fl.run("central", engine={"name": "serial"}, **keys)
    processes = fl.run("central", engine={"name": "processes", "workers": 2}, **keys)
    assert serial.numbers["accuracy"] == processes.numbers["accuracy"]
    assert serial.numbers["test_loss"] == processes.numbers["test_loss"]

    class Stop(fl.Callback):
        def on_round(self, config, round_, rows):
            if round_ == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fl.run("central", out=tmp_path / "run", checkpoint={"seconds": 0}, callbacks=[Stop()], **keys)
    resumed = fl.run("central", out=tmp_path / "run", existing="resume", checkpoint={"seconds": 0}, **keys)
    assert resumed.numbers["test_loss"] == serial.numbers["test_loss"]
    assert serial.numbers["flops"] > 0


def test_an_attack_forges_no_upload_where_none_travels():
    toys = [world(configured("central"), LABELS) for _ in range(2)]
    object.__setattr__(toys[1].scenario, "bad", (0,))
    for toy in toys:
        toy.federation.step()
    assert same_bits(toys[0].federation.server, toys[1].federation.server)


def test_it_is_refused_over_nodes_and_for_personal_protocols():
    scenario = {"source": "digits", "partition": "iid", "clients": 3}

    with pytest.raises(ConfigError, match="pooled data of all clients, which a federation never moves"):
        run_in_process(parse({"method": "central", "scenario": scenario, "rounds": 1}))
    with pytest.raises(ConfigError, match="has no personal model"):
        fl.run("central", scenario=fl.scenario(**scenario), rounds=1, evaluation={"protocol": "personal/local"})
