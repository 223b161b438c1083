"""The bytes of a real client's payloads and state are those of the formulas in `Citation`, in both directions."""

import math

import pytest

from fedloom.core.records import to_bytes
from fedloom.data.augment import Augmentation
from fedloom.methods import METHODS
from fedloom.nets.blueprint import prepare_net
from fedloom.nets.net import BN_ROLES, Role
from support import CLASSES, FEDERATED, ROW_METHODS, Recording, TinyBN, handmade, world

EVERYTHING = [[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 2], [0, 1, 1, 2, 3, 3]]
NOBODY_HOLDS_3 = [[0, 1, 2, 0, 1], [2, 1, 0, 2], [0, 1, 2, 1]]
CLIENTS = len(EVERYTHING)
TABLES = {"Cd", "CC", "CH", "mCd"}
WHOLE = {"feddistill", "fedorgp", "fedtgp"}  # identity rows, and generated prototypes
WIDE = 6  # features of the toy net
GENERATOR = (32 + CLASSES) * 256 + 256 + 256 * WIDE + WIDE  # noise and class -> 256 -> features
CONDITIONS = CLASSES * WIDE + 2 * (WIDE * WIDE + 3 * WIDE)  # an embedding, and two layers with layer norm
ENDS = 10  # of Floco's simplex
GATE = 2 * WIDE * WIDE + 6 * WIDE  # a layer to twice the width, with layer norm
MEASURED = [name for name in ROW_METHODS if name in FEDERATED and METHODS.get(name).citation is not None]


def values_of(record):
    """Bytes of a record's tensors as they travel: the file without the length of its header, and without that."""
    if not record:
        return 0
    sent = to_bytes(record)
    return len(sent) - 8 - int.from_bytes(sent[:8], "little")


def sizes(name, held, participants=CLIENTS):
    """Bytes of each symbol on the toy net, of whose classes `held` are held: 4 for a number, 8 for an integer."""
    net = prepare_net(TinyBN(), head_bias=METHODS.get(name).spec.head_bias)
    entries = {name: value.numel() * value.element_size() for name, value in net.state_dict().items()}
    roles = net.roles()

    def of(*wanted):
        return sum(size for name, size in entries.items() if roles[name] in wanted)

    head = of(Role.HEAD)
    return {
        "P": sum(entries.values()),
        "W": sum(4 * p.numel() for p in net.parameters()),
        "B": sum(entries.values()) - head,
        "BN": of(*BN_ROLES),
        "H": head,
        "Q": {
            "apfl": 4,  # alpha
            "fedala": head,  # weights of the head
            "fedgen": 4 * GENERATOR,
            "gpfl": 4 * CONDITIONS,
            "fedcp": 4 * GATE,
            "floco": 4 * (ENDS - 1) * CLASSES * WIDE,  # the other ends
        }.get(name, sum(entries.values())),  # a second net
        "d": 4 * WIDE,
        "Cd": 4 * held * WIDE,
        "CC": 4 * held * CLASSES,
        "CH": 4 * held * (WIDE + 1),
        "map": 4 * (2 * WIDE + 1) * WIDE,
        "Jd": 4 * held * WIDE + CLASSES,  # three clients: one prototype a class
        "KCd": CLIENTS * (4 * held * WIDE + CLASSES),
        "mCd": participants * 4 * held * WIDE,
        "public": 4 * 6 * 5,  # six samples of five numbers
        "outputs": 4 * 6 * CLASSES,
        "all Cd": 4 * CLASSES * WIDE,
        "dd": 4 * WIDE * WIDE,
        "shares": 4 * CLASSES,
        "betas": 4 * 2,
        "vectors": 4 * CLASSES * CLASSES,
        "study": 0,  # as many rows as the batch has classes
        "MP": (CLIENTS - 1) * sum(entries.values()),
        "weights": 4 * CLIENTS,
        "centre": 4 * ENDS,
        "foreign": (CLIENTS - 1) * head,
        "mask": CLASSES,
        "masks": participants * CLASSES,
        "number": 8,
        "counts": 8 * CLASSES,
    }


def told(formula, size):
    return sum(count * size[symbol] for symbol, count in formula.items())


def low_rank(payload):
    """Bytes of FedKD's form: r (a + b + 1) numbers for a matrix [a, b] of rank r, all else whole."""
    (tree,) = (value for value in payload.values() if isinstance(value, dict))
    shapes = {name: tuple(value.shape) for name, value in TinyBN().state_dict().items()}
    singular = {name.removesuffix(":s").removeprefix("mentee."): v for name, v in tree.items() if name.endswith(":s")}
    ranks = {name: len(values) for name, values in singular.items()}
    assert set(ranks) == {"fc.weight", "head.weight"}
    whole = sum(8 if name.endswith("tracked") else 4 * math.prod(s) for name, s in shapes.items() if name not in ranks)
    return whole + sum(4 * rank * (sum(shapes[name]) + 1) for name, rank in ranks.items())


def third_round(name, labels):
    """What goes down, up, and stays with client 0, once tables and states are there."""
    toy = world(handmade(name), labels, net=TinyBN, engine=Recording, rounds=4)
    for _ in range(3):
        toy.federation.engine.done.clear()
        job = toy.job(0, round_=toy.federation.round + 1)
        toy.federation.step()
    (done,) = (one for one in toy.federation.engine.done if one.client == 0)
    return job.payload, done.upload, done.state


@pytest.mark.parametrize("name", MEASURED)
def test_every_payload_has_the_bytes_of_its_formula(name):
    citation, size = METHODS.get(name).citation, sizes(name, CLASSES)
    found = third_round(name, EVERYTHING)
    if name == "fedl2g":
        size["study"] = 4 * CLASSES * int(found[1]["guiding"].held.sum())
    for formula, record in zip((citation.down, citation.up, citation.state), found, strict=True):
        if name == "fedkd" and formula is citation.state:  # the mentor, the mentee received, and a map between features
            size["Q"] = (size["Q"] + 4 * WIDE * WIDE) / 2
        assert values_of(record) == (low_rank(record) if "X" in formula else told(formula, size))


@pytest.mark.parametrize("name", [name for name in MEASURED if TABLES & METHODS.get(name).citation.up.keys()])
def test_of_a_table_only_the_rows_of_held_classes_travel(name):
    """Nobody holds class 3. What the server makes for all classes (`WHOLE`) goes down in all its rows."""
    citation = METHODS.get(name).citation
    down, up, _ = third_round(name, NOBODY_HOLDS_3)
    assert values_of(up) == told(citation.up, sizes(name, 3))
    whole = name in WHOLE or "H" in citation.down
    assert values_of(down) == told(citation.down, sizes(name, CLASSES if whole else 3))


def test_every_method_of_this_house_states_its_traffic():
    assert {name for name, kind in METHODS if kind.__module__.startswith("fedloom.")} == {
        name for name, kind in METHODS if kind.citation is not None
    }


def test_a_method_of_two_views_has_the_bytes_of_its_formula():
    """FedClassAvg needs images: its head, of 3 features and 4 classes."""
    citation = METHODS.get("fedclassavg").citation
    assert (dict(citation.down), dict(citation.up)) == ({"H": 1}, {"H": 1})
    flips, shape = Augmentation(flip=True), (1, 2, 2)
    toy = world(handmade("fedclassavg"), EVERYTHING, net="logistic", shape=shape, engine=Recording, augment=flips)
    job = toy.job(0)
    toy.federation.step()
    head = sum(4 * toy.task.init[name].numel() for name in toy.task.names(frozenset({Role.HEAD})))
    assert values_of(job.payload) == values_of(toy.federation.engine.done[0].upload) == head > 0
