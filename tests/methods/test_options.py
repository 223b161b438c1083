"""Every option of every method changes what a run gives: weights, states, loss terms, bytes or tests.

An option that is read nowhere, or whose default is mistyped in a formula, would pass all other tests of its method.
"""

import functools
from typing import Any, Literal, get_args, get_origin

import pytest

from fedloom.core.records import to_bytes
from fedloom.data.augment import Augmentation
from fedloom.methods.contract.method import METHODS, WRAPPERS
from fedloom.methods.contract.phases import OptimizerSpec
from support import Tiny, TinyBN, configured, handmade, sampled_cases, world

# The last client alone has class 3, and sits out the third round.
LABELS = [[0, 1, 2, 0, 1, 1], [1, 1, 2, 2, 0, 1], [0, 0, 0, 1], [2, 2, 2, 1, 0, 2, 0, 2, 1], [1, 2, 1], [2, 3, 0, 1, 3]]
ROUNDS = 4

# Values to compare with the default where it is None, or where a small change of it would not do.
BY_METHOD: dict[str, dict[str, list[Any]]] = {
    "apfl": {"alpha_lr": [0.3]}, "ccvr": {"server_lr": [0.3]},
    "cfl": {"eps1": [0.0], "eps2": [1000000000.0], "min_size": [6]}, "fedadagrad": {"v0": [0.0]},
    "fedadam": {"v0": [0.0]}, "fedala": {"first": [1]},
    "fedasync": {"a": [1.0], "b": [0]}, "fedbuff": {"buffer": [2]},
    "fedavg+dp": {"dp_delta": [0.001], "dp_row_clip": [0.5]},
    "fedavg+dw": {"dw_mu_decay": [(1, 10.0)]}, "fedavg+finetune": {"finetune_lr": [0.3]},
    "fedavg+geomedian": {"geomedian_steps": [1]}, "fedavg+lpft": {"lpft_lr": [0.3]},
    "fedavg+multikrum": {"multikrum_faulty": [0], "multikrum_kept": [2]}, "fedavg+trimmed": {"trimmed_share": [0.4]},
    "fedcda": {"batches": [6], "kept": [1], "smoothness": [1000.0], "warmup": [1]}, "fedclassavg": {"base_tau": [0.5]},
    "feddbe": {"bias_lr": [0.3], "mu": [0.3]}, "feddf": {"server_batch_size": [2], "steps": [2]},
    "feddw": {"mu_decay": [(1, 10.0)]}, "feddyn": {"clip": [0.01]},
    "fedfomo": {"explore": [1.0], "explore_decay": [1.0], "models": [1]}, "fedkd": {"mentee": ["logistic"]},
    "fedl2g": {"clip": [0.0001], "quiz": [1], "warm_up": [1]}, "fedmd": {"digest_lr": [0.5], "inputs": [2]},
    "fedmrl": {"clip": [0.01], "small": ["logistic"]}, "fedpac": {"cut": [0.4]},
    "fedsc": {"neighbours": [1], "rpcl_ramp": [3]}, "fedskc": {"gpr_clip": [(0.9, 1.1)], "lcl_ramp": [3]},
    "fedssa": {"clip": [0.01]}, "fedtgp": {"margin": [0.01], "server_lr": [0.5]}, "fedyogi": {"v0": [0.0]},
    "floco": {"tau": [2]}, "fml": {"meme": ["logistic"]}, "perfedavg": {"beta": [0.2]}, "pfedfda": {"beta": [0.3]},
    "protonorm": {"server_steps": [3]},
}  # fmt: skip
VALUES = {(name, option): values for name, given in BY_METHOD.items() for option, values in given.items()}
SPLITS = {"eps1": 1e9, "eps2": 0.0, "first_split": 1}  # of CFL, at once
# Options under which an option matters, set in both runs.
UNDER: dict[tuple[str, str], dict[str, Any]] = {
    ("fedamp", "own_share"): {"kernel": "cosine"},
    ("fedasync", "b"): {"staleness": "hinge"},
    ("fedbuff", "scaled"): {"buffer": 2},
    ("fedavg+dw", "dw_relin_every"): {"dw_linearised": "gram"},
    **{("cfl", option): SPLITS for option in ("eps1", "eps2", "first_split", "min_size")},
    ("fedcda", "batches"): {"warmup": 1},
    ("fedcda", "kept"): {"warmup": 1},
    ("fedcda", "smoothness"): {"warmup": 1},
    ("fedco2", "replace_intra"): {"intra_to_online": False},
    ("fedfomo", "explore"): {"models": 1},
    ("fedfomo", "explore_decay"): {"models": 1, "explore": 1.0},
    ("floco", "rho"): {"tau": 2},
    ("fedsam", "eta"): {"adaptive": True},
    ("fedsc", "neighbour"): {"neighbours": 1},
    ("feddw", "relin_every"): {"linearised": "gram"},
    ("fedsc", "detach_scale"): {"scale": "batch"},
    ("fedskc", "detach_scale"): {"scale": "batch"},
    ("perfedavg", "delta"): {"variant": "hf"},
}
# Options about another net of the run, which only a registered net has.
REGISTERED = {("fedkd", "mentee"), ("fedmrl", "small"), ("fml", "meme")}
# Options that these runs cannot show, with the reason; each has a test of its own.
ELSEWHERE: dict[tuple[str, str], str] = {
    ("fedavg+bulyan", "bulyan_faulty"): "1 needs more clients than are here: wrappers/test_robust.py has the numbers",
    ("fedavg+dp", "dp_table_clip"): "FedAvg sends no class table: wrappers/test_privacy.py takes FedProto",
    ("fedavg+dp", "dp_row_clip"): "as well: wrappers/test_noisy_uploads.py has the lengths",
    ("fedavg+krum", "krum_faulty"): "the upload that is taken is the same here: wrappers/test_robust.py has the scores",
    ("cfl", "linkage"): "the groups are the same here: test_cfl.py has golden ones that differ",
    ("fedco2", "offline_init"): "the net was not built from a blueprint: test_fedco2.py builds one",
    ("fedmd", "start"): "the net was not built from a blueprint: test_fedmd.py asks for one",
    ("fedexp", "average"): "it changes the test of the global model: test_fedexp.py has the mean of two iterates",
    ("fedorgp", "distance_share"): "no class has a feature apart here: test_fedorgp.py has some",
    ("fedorgp", "filtered"): "no class has a feature apart here: test_fedorgp.py has golden ones",
    ("fedpac", "unknown"): "no class comes up in a late round at two clients: test_fedpac.py has golden numbers",
    ("fedcompass", "a"): "devices are equal here, so nothing is stale: test_asynchronous.py has the numbers",
    ("fedcompass", "least_work"): "devices are equal here: engine/test_clock.py has schedules by hand",
    ("heterofl", "scaler"): "all clients have one width here: test_heterofl.py has golden numbers of three",
    ("fml", "start"): "the net was not built from a blueprint: test_fml.py builds one",
}


def cases() -> list[tuple[str, str]]:
    """All options of all methods, and of all wrappers around FedAvg."""
    names = [*METHODS.names(), *(f"fedavg+{wrapper}" for wrapper in WRAPPERS.names())]
    return [(name, option) for name in names for option in METHODS.get(name).Options.model_fields]


def alternatives(name: str, option: str) -> list[Any]:
    """Values of the option to compare with its default."""
    if (name, option) in VALUES:
        return VALUES[name, option]
    value = getattr(configured(name, "paper").options, option)
    annotation = METHODS.get(name).Options.model_fields[option].annotation
    if get_origin(annotation) is Literal:
        return [choice for choice in get_args(annotation) if choice != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value / 2 if value else 0.5]
    raise AssertionError(f"{name}.{option}: name a value to compare with {value} in VALUES")


@functools.cache
def outcome(name: str, options: tuple[tuple[str, Any], ...], registered: bool) -> bytes:
    """All that a run of `ROUNDS` rounds gives. registered: on a registered net instead of one made by hand."""
    make = configured if registered else handmade
    method = make(name, "paper", **dict(options))
    nets: dict[str, Any] = {"net": Tiny if "dp" in method.wrappers else TinyBN}
    if registered or method.spec.views > 1:
        nets = {"net": "mlp", "shape": (1, 6, 6), "augment": Augmentation(crop=2)}
    participation = {"fedavg+multikrum": 1.0, "cfl": 1.0, "fedcda": 1.0}.get(name, 0.5)
    optimizer = OptimizerSpec(lr=0.05)
    toy = world(method, LABELS, rounds=ROUNDS, epochs=2, participation=participation, optimizer=optimizer, **nets)
    federation = toy.federation
    reports = [federation.step() for _ in range(ROUNDS)]
    records = [federation.server, *(federation.states[client] for client in sorted(federation.states))]
    facts = [(r.participants, r.bytes_up, r.bytes_down, r.terms, r.steps, r.samples, r.figures) for r in reports]
    for job in federation.tests("test"):  # the models that would be tested, adapted where the method does so
        state = federation.state_of(job.ctx)
        predictors = method.predictors(federation.server, state, federation.server_context(job.ctx.client))
        for name, predictor in predictors.items():
            loaded_net = toy.worker.net_of_client(job.ctx.client)
            toy.worker.adapt(loaded_net, predictor, job.ctx, job.indices)
            records.append({"model": {key: value.clone() for key, value in loaded_net.tree.items()}, name: 0})
    return b"".join(map(to_bytes, records)) + repr(facts).encode()


@pytest.mark.parametrize(
    ("name", "option"), sampled_cases([case for case in cases() if case not in ELSEWHERE], "ccvr", "feddyn", "fedgen")
)
def test_every_option_changes_what_a_run_gives(name: str, option: str) -> None:
    under, registered = UNDER.get((name, option), {}), (name, option) in REGISTERED
    base = outcome(name, tuple(under.items()), registered)
    for value in alternatives(name, option):
        other = outcome(name, tuple({**under, option: value}.items()), registered)
        assert hash(other) != hash(base), f"{option} = {value} changes nothing"


def test_the_lists_name_options_that_exist() -> None:
    assert {*VALUES, *UNDER, *ELSEWHERE, *REGISTERED} <= set(cases())
