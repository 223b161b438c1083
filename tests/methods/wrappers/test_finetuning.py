"""Fine-tuned copies of the global model: golden numbers, and training that stays the base's."""

from dataclasses import replace

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods.contract.method import METHODS, WRAPPERS, Method
from fedloom.methods.contract.phases import Train
from fedloom.methods.contract.spec import Spec
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from golden_world import EVERYBODY, SHARED_BASELINES, WORLD, golden_run, matches, probe
from support import Tiny, TinyBN, configured, mixed, same_bits, same_tree, world

GOLD = SHARED_BASELINES["finetuned"]
GIVEN = GOLD["options"]
LABELS = [[0, 1, 2, 0, 1, 1], [1, 1, 2, 2, 0, 1], [2, 3, 0, 1, 3]]


def tuned(federation, client):
    """The client's personal model as its test takes it."""
    ctx = federation.client_context(client, federation.round)
    state = federation.state_of(ctx)
    predictor = federation.method.predictors(federation.server, state, federation.server_context(client))["personal"]
    worker = federation.engine.worker
    loaded_net = worker.net_of_client(client)
    worker.adapt(loaded_net, predictor, ctx, federation.scenario.train.tensor(client))
    return {name: value.detach().clone() for name, value in loaded_net.tree.items()}


def golden(name, kind="fedavg", **options):
    """The golden world after two rounds of FedAvg in a wrapper."""
    federation, _ = golden_run(METHODS.get(f"{kind}+{name}"), drawn=WORLD["rounds"][:2], **options)
    assert matches(federation.server["model"], GOLD["server"])
    return federation


@pytest.mark.parametrize("client", EVERYBODY)
def test_all_weights(client):
    assert matches(tuned(golden("finetune", finetune_epochs=GIVEN["steps"]), client), GOLD["all"][str(client)])


@pytest.mark.parametrize("client", EVERYBODY)
def test_the_head_and_then_all_weights_at_a_tenth_of_the_rate(client):
    tree = tuned(golden("lpft", lpft_probe_epochs=GIVEN["steps"], lpft_epochs=GIVEN["then"]), client)
    assert GIVEN["then_lr"] == pytest.approx(WORLD["lr"] / 10)
    assert matches(tree, GOLD["lp_ft"][str(client)])
    assert abs(probe(tree) - GOLD["probe_lp_ft"][str(client)]) < 1e-7
    for wrong in ("WRONG_lp_ft_full_rate", "WRONG_lp_ft_order"):
        assert abs(probe(tree) - GOLD[wrong][str(client)]) > 1e-5


@pytest.mark.parametrize("client", EVERYBODY)
def test_the_head_alone(client):
    tree = tuned(golden("lpft", lpft_probe_epochs=GIVEN["steps"], lpft_epochs=0), client)
    assert matches(tree, GOLD["head"][str(client)])


@pytest.mark.parametrize("name", ["finetune", "lpft"])
def test_no_epochs_leave_the_global_model(name):
    options = {f"{name}_epochs": 0} | ({"lpft_probe_epochs": 0} if name == "lpft" else {})
    federation = golden(name, **options)
    assert matches(tuned(federation, 0), GOLD["server"])


@pytest.mark.parametrize("word", ["finetune", "lpft"])
@pytest.mark.parametrize("base", ["fedavg", "scaffold", "fednh", "fedrod", "ditto", "apfl", "fedbabu", "feddyn"])
def test_training_is_the_bases(base, word):
    plain, wrapped = (world(configured(name), LABELS, rounds=3) for name in (base, f"{base}+{word}"))
    for _ in range(3):
        plain.federation.step(), wrapped.federation.step()
    assert same_bits(plain.federation.server, wrapped.federation.server)
    federation = wrapped.federation
    before = federation.method.predictors(federation.server, None, federation.server_context())["global"].tree
    first = tuned(federation, 0)
    assert not same_tree(first, before)
    assert same_tree(first, tuned(federation, 0))  # the copy is thrown away
    assert same_bits(plain.federation.server, federation.server)


def test_the_body_is_in_evaluation_mode_while_the_head_is_probed():
    method = configured("fedavg+lpft", lpft_epochs=0)
    toy = world(method, LABELS, net=TinyBN, rounds=1)
    toy.federation.step()
    tree, server = tuned(toy.federation, 0), toy.federation.server["model"]
    changed = {name for name in tree if not torch.equal(tree[name], server[name])}
    assert changed == {"head.weight", "head.bias"}  # no statistic of batch norm moved


def test_the_rate_is_that_of_the_round_unless_one_is_named():
    toy = world(configured("fedavg+lpft", lpft_lr=0.3), LABELS)
    ctx = toy.federation.client_context(0, 1)
    rates = [phase.optimizer.lr for phase in toy.method.adapt(None, ctx)]
    assert rates == pytest.approx([0.3, 0.03])
    ctx = replace(ctx, round=3, task=replace(ctx.task, optimizer=replace(ctx.task.optimizer, decay=0.5)))
    for phase in configured("fedavg+finetune").adapt(None, ctx):
        assert isinstance(phase, Train)
        assert (phase.optimizer.lr, phase.optimizer.decay) == (0.1 * 0.25, 1.0)


@pytest.mark.parametrize("name", ["fedproto+finetune", "local+lpft", "fedper+finetune", "fedssa+lpft"])
def test_a_method_without_a_global_model_is_refused_before_training(name):
    toy = world(configured(name.partition("+")[0]), LABELS)
    with pytest.raises(ConfigError, match=r"tunes the global model, and this method has none; take a method") as error:
        configured(name).examine([toy.task], 3)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["fedavg+lpft+finetune", "fedavg+finetune+finetune", "fedavg+finetune+topk+lpft"])
def test_a_model_is_tuned_once(name):
    with pytest.raises(ConfigError, match="already"):
        METHODS.get(name)


def test_a_probe_needs_a_head_that_trains():
    toy = world(configured("fedavg"), LABELS, net=Tiny)
    headless = replace(toy.task, roles=dict.fromkeys(toy.task.roles, toy.task.roles["fc.weight"]))
    with pytest.raises(ConfigError, match="treats the head apart"):
        configured("fedavg+lpft").examine([headless], 3)


@pytest.mark.parametrize("method", ["fedavg+finetune", "fedavg+lpft+topk", "fedavg"])
@pytest.mark.parametrize("protocol", ["global/global", "global/local", "personal/local"])
def test_a_test_of_the_global_model_says_that_nothing_is_tuned(method, protocol):
    if (method, protocol) == ("fedavg", "personal/local"):
        return  # it has no personal model
    keys = {"method": method, "rounds": 1, "model": "mlp", "evaluation": {"protocol": protocol}}
    scenario = {"source": "digits", "partition": "iid", "clients": 2}
    notes = run(parse({**keys, "scenario": scenario})).numbers["degenerate"]
    expected = f"evaluation.protocol = '{protocol}' tests the global model, which {method} does not tune"
    assert any(note.startswith(expected) for note in notes) == ("+" in method and protocol != "personal/local")


def test_a_global_model_that_does_not_fit_every_net_is_refused_before_training():
    class OneForAll(Method):
        spec = Spec(architectures="any")

    torch.manual_seed(0)
    kind = WRAPPERS.get("finetune")(OneForAll)
    message = (
        r"finetune tunes the global model, whose head\.(weight|bias) \(.* of model 2; use one model for all clients"
    )
    with pytest.raises(ConfigError, match=message):
        mixed(kind(kind.Options()), [Tiny(), Tiny(3)], LABELS)
