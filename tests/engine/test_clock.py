"""Virtual time: schedules by hand, deadlines, the same bits on every engine and after a resume, bad input."""

import cProfile
import pstats

import pytest

from fedloom.core.errors import ConfigError
from fedloom.core.records import from_bytes, to_bytes
from fedloom.core.streams import Streams
from fedloom.core.trees import weighted_mean
from fedloom.engine.clock import Devices
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from fedloom.runs.storage.checkpoint import rewind
from support import Recording, after, configured, same_bits, same_on, world

LABELS = [[0, 1, 2, 3], [1, 1, 0, 2], [3, 2, 1, 0]]  # four samples each: at speeds 1, 2, 4 an epoch takes 4, 2, 1 s
SCENARIO = {"source": "digits", "clients": 5, "alpha": 0.5}
INSTANT = {"down_mbit": 1e12, "up_mbit": 1e12, "latency": 0.0}
SPEEDS = {**INSTANT, "profiles": [{"samples_per_second": speed} for speed in (1, 2, 4)]}


def on_clock(name, steps, labels=LABELS, devices=None, options=None, **settings):
    """The reports of some rounds, and the federation."""
    method = configured(name, **(options or {}))
    toy = after(world(method, labels, devices=Devices(**(devices or SPEEDS)), **settings), steps)
    return toy.reports, toy


def times(reports):
    """Clients and seconds of each round, which are near whole numbers of quarters."""
    return [(report.participants, round(report.figures["virtual_seconds"], 4)) for report in reports]


# -- schedules by hand -------------------------------------------------------------------------------------------------
def test_a_synchronous_round_takes_as_long_as_its_slowest_client():
    reports, _ = on_clock("fedavg", 2)
    assert times(reports) == [((0, 1, 2), 4.0)] * 2


def test_a_job_takes_two_latencies_its_bytes_and_its_samples():
    line = {"down_mbit": 8.0, "up_mbit": 4.0, "latency": 0.25, "samples_per_second": 2.0}
    (report,), toy = on_clock("fedavg", 1, [[0, 1, 2]], line, epochs=2)
    by_hand = 0.5 + report.bytes_down / 1e6 + report.bytes_up / 0.5e6 + 6 / 2
    assert report.figures["virtual_seconds"] == pytest.approx(by_hand, rel=1e-12)
    assert toy.federation.clock.now == pytest.approx(by_hand, rel=1e-12)


def test_fedasync_by_hand():
    """Client 2 arrives at 1, 2, 3, 4; client 1 at 2, 4; client 0 at 4. Of equal times the smaller id is first."""
    reports, _ = on_clock("fedasync", 7, rounds=7)
    assert times(reports) == [
        *[((2,), 1.0), ((1,), 1.0), ((2,), 0.0), ((2,), 1.0), ((0,), 1.0), ((1,), 0.0), ((2,), 0.0)]
    ]
    assert [report.figures["staleness"] for report in reports] == [0, 1, 1, 0, 4, 3, 2]


def test_fedbuff_by_hand():
    """K = 2. At 2: clients 2 and 1, which start again. At 4: 2 (since 3) and 0. At 5: 1 (since 4) and 2."""
    reports, _ = on_clock("fedbuff", 3, options={"buffer": 2})
    assert times(reports) == [((1, 2), 2.0), ((0, 2), 2.0), ((1, 2), 1.0)]
    assert [report.figures["staleness"] for report in reports] == [0, 0.5, 0.5]


def test_fewer_at_work_than_there_are_clients():
    """Two of three work at a time: a client that arrives makes room for one that is idle."""
    reports, toy = on_clock("fedbuff", 4, options={"buffer": 1}, participation=2 / 3)
    assert all(len(report.participants) == 1 for report in reports)
    assert len(toy.federation.clock.flights) == 1


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        # Steps of 1, 1/2, 1/4 s: with 4, 2 and 1 of 4 usual steps all arrive at 1.
        (0.25, [((0, 1, 2), 1.0), ((0, 1, 2), 1.0)]),
        # Nobody may take fewer than 3: 4 steps each end at 4, 2 and 1; at 1, client 2 joins client 1, who arrives at 2.
        (0.75, [((2,), 1.0), ((1, 2), 1.0), ((2,), 1.0), ((0, 1, 2), 1.0)]),
    ],
)
def test_fedcompass_by_hand(least, expected):
    reports, _ = on_clock("fedcompass", len(expected), options={"least_work": least}, batch_size=1)
    assert times(reports) == expected


def test_fedcompass_gives_slow_clients_fewer_steps():
    (report,), _ = on_clock("fedcompass", 1, options={"least_work": 0.25}, batch_size=1)
    assert report.steps == 1 + 2 + 4


# -- deadlines ---------------------------------------------------------------------------------------------------------
def test_uploads_after_the_deadline_are_dropped_and_counted():
    reports, toy = on_clock("fedavg", 2, devices={**SPEEDS, "deadline": 2.5})
    assert times(reports) == [((1, 2), 2.5)] * 2
    assert [report.figures["late"] for report in reports] == [1, 1]
    assert not toy.federation.clock.flights


def test_a_dropped_upload_is_in_no_mean_and_its_client_keeps_its_state():
    _, toy = on_clock("fedavg", 1, devices={**SPEEDS, "deadline": 2.5}, engine=Recording)
    uploads = {done.client: done.upload["model"] for done in toy.federation.engine.done}
    assert len(uploads) == 3
    expected = weighted_mean([uploads[1], uploads[2]], [4, 4])
    assert same_bits({"model": expected}, {"model": toy.federation.server["model"]})
    _, toy = on_clock("fedproto", 1, devices={**SPEEDS, "deadline": 2.5})
    assert sorted(toy.federation.states) == [1, 2]


def test_late_uploads_count_in_the_round_in_which_they_arrive():
    reports, _ = on_clock("fedproto", 4, devices={**SPEEDS, "deadline": 2.5, "late": "next_round"})
    # client 0 works from 0 to 4, and then from 5 to 9; a round in which it works waits no longer than for the others
    assert times(reports) == [((1, 2), 2.5), ((0, 1, 2), 2.0), ((1, 2), 2.5), ((0, 1, 2), 2.0)]
    assert [report.figures["staleness"] for report in reports] == [0, pytest.approx(1 / 3), 0, pytest.approx(1 / 3)]
    assert [report.figures["late"] for report in reports] == [1, 0, 1, 0]


@pytest.mark.parametrize("name", ["fednova", "fedprox"])
def test_slow_clients_take_the_steps_that_fit(name):
    devices = {**SPEEDS, "deadline": 2.5, "late": "fewer_steps"}
    (report,), _ = on_clock(name, 1, devices=devices, batch_size=1)
    assert (report.steps, report.figures["late"]) == (2 + 4 + 4, 0)
    assert report.figures["virtual_seconds"] == pytest.approx(2.0, abs=1e-3)


def test_a_deadline_that_nobody_can_meet_is_named_and_nothing_changes():
    (report,), toy = on_clock("fedavg", 1, devices={**SPEEDS, "deadline": 0.5})
    assert [note.message for note in report.diagnostics if note.code.startswith("devices")] == [
        "devices.deadline = 0.5: no upload of round 1 arrives in time; the fastest client takes 1 s"
    ]
    assert same_bits({"model": toy.task.init}, {"model": toy.federation.server["model"]})
    late = {**SPEEDS, "deadline": 1e-9, "late": "fewer_steps"}
    (report,), _ = on_clock("fedprox", 1, devices=late)
    assert any("no client has time for a single step" in note.message for note in report.diagnostics)


def test_clients_that_cannot_be_reached_are_counted():
    reports, _ = on_clock("fedavg", 20, devices={**SPEEDS, "available": 0.5}, rounds=20)
    counts = [(len(report.participants), report.figures["unavailable"]) for report in reports]
    assert all(sum(pair) == 3 for pair in counts)
    assert 10 < sum(missing for _, missing in counts) < 50


# -- devices -----------------------------------------------------------------------------------------------------------
def test_slow_clients_of_a_smaller_share_are_slow_in_a_larger_one():
    slow = [
        {k for k, v in enumerate(Devices(slow_share=s).of_clients(20, Streams(1))["up_mbit"]) if v < 5}
        for s in (0.3, 0.6)
    ]
    assert [len(clients) for clients in slow] == [6, 12]
    assert slow[0] < slow[1]


def test_a_csv_file_gives_devices_one_by_one(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_text("samples_per_second,up_mbit\n10,1\n20,2\n")
    devices = Devices(profiles=str(path), latency=0.5)
    of = devices.of_clients(3, Streams(0))
    assert of["samples_per_second"].tolist() == [10, 20, 10]
    assert of["latency"].tolist() == [0.5] * 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("speed\n1\n", "unknown key 'devices.profiles.0.speed'"),
        ("up_mbit,latency\n1\n", "devices.profiles.0.latency = None"),
        ("up_mbit\n1,2\n", "more cells than columns"),
        ("up_mbit\n-1\n", "devices.profiles.0.up_mbit = '-1'"),
        ("up_mbit\nnan\n", "devices.profiles.0.up_mbit = 'nan'"),
        ("up_mbit\n", "no rows"),
        (None, "cannot be read"),
    ],
)
def test_a_csv_file_that_cannot_be_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "devices.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        parse({"scenario": SCENARIO, "model": "mlp", "devices": {"profiles": str(path)}})
    assert "\n" not in str(caught.value)


def test_without_the_section_nothing_changes():
    config = {"scenario": SCENARIO, "model": "mlp"}
    assert "devices" not in parse(config).resolved()
    assert parse(config).fingerprint() != parse({**config, "devices": True}).fingerprint()
    assert "virtual_seconds" not in after(world(configured("fedavg"), LABELS), 1).reports[0].figures


@pytest.mark.parametrize(
    ("method", "section", "message"),
    [
        ("fedavg", {"late": "next_round"}, "nothing is late without a deadline"),
        ("scaffold", {"deadline": 3, "late": "next_round"}, "scaffold does not say that its server may use"),
        ("fedavg", {"deadline": 3, "late": "fewer_steps"}, "fednova, fedprox do"),
        ("fedbuff", {"deadline": 3}, "fedbuff has no rounds that wait"),
        ("fedavg", {"deadline": 0}, "greater than 0"),
        ("fedavg", {"samples_per_second": "fast"}, "devices.samples_per_second = 'fast'"),
        ("fedavg", {"profiles": [3]}, "devices.profiles"),
        ("fedavg", {"speed": 3}, "devices.speed"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(method, section, message):
    config = {"method": method, "scenario": SCENARIO, "model": "mlp", "devices": section}
    with pytest.raises(ConfigError, match=message) as caught:
        run(parse(config))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("more", [{"drift": True}, {"checkpoint": {"keep_clients": [1]}}])
def test_observers_of_whole_rounds_are_refused_where_rounds_overlap(more):
    base = {"scenario": SCENARIO, "model": "mlp", **more}
    for kind in ({"method": "fedbuff"}, {"devices": {"deadline": 3, "late": "next_round"}}):
        with pytest.raises(ConfigError, match="here rounds overlap"):
            run(parse({**base, **kind}))


def test_a_federation_of_real_nodes_has_no_virtual_time():
    for kind in ({"method": "fedbuff"}, {"devices": True}):
        with pytest.raises(ConfigError, match=r"flower\.round_timeout is the deadline"):
            run(parse({"scenario": SCENARIO, "model": "mlp", **kind}), engine_factory=lambda *_: None)


# -- bits --------------------------------------------------------------------------------------------------------------
CASES = {
    "fedasync": SPEEDS,
    "fedbuff": SPEEDS,
    "fedcompass": SPEEDS,
    "fedproto": {**SPEEDS, "deadline": 2.5, "late": "next_round"},
    "fednova": {**SPEEDS, "deadline": 2.5, "late": "fewer_steps"},
}


@pytest.mark.parametrize("engine", ["processes", "stacked", "replayed"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_on_every_engine(name, engine):
    options = {"buffer": 2} if name == "fedbuff" else {}
    same_on(engine, configured(name, **options), LABELS, rounds=3, devices=Devices(**CASES[name]), batch_size=2)


@pytest.mark.parametrize("name", CASES)
def test_the_clock_is_the_same_after_a_checkpoint(name):
    """Uploads on their way go on from their bytes."""
    options = {"buffer": 2} if name == "fedbuff" else {}
    toys = [world(configured(name, **options), LABELS, devices=Devices(**CASES[name]), batch_size=2) for _ in range(2)]
    one, other = (after(toy, 2) for toy in toys)
    clock = other.federation.clock
    clock.restore(from_bytes(to_bytes(clock.record())))
    for toy in (one, other):
        after(toy, 3)
    assert times(one.reports) == times(other.reports)
    assert same_bits(one.federation.server, other.federation.server)


@pytest.mark.parametrize("method", ["fedasync", "fedbuff"])
def test_a_run_resumes_with_uploads_on_their_way(tmp_path, method):
    config = {
        "method": method,
        "model": "mlp",
        "rounds": 5,
        "local_epochs": 1,
        "engine": "serial",
        "checkpoint": {"seconds": 0, "keep": 4},
        "devices": {"spread": 1.0},
        "fedbuff": {"buffer": 2},
        "scenario": SCENARIO,
    }
    before = run(parse(config), out=tmp_path / "run").numbers["checkpoint_sha256"]
    rewind(tmp_path / "run", 2)
    assert run(parse(config), out=tmp_path / "run", existing="resume").numbers["checkpoint_sha256"] == before


def test_the_clock_costs_less_than_one_percent_of_a_round():
    labels = [[k % 4 for k in range(40)] for _ in range(50)]
    toy = world(configured("fedavg"), labels, devices=Devices(spread=0.5, available=0.9), epochs=2)
    with cProfile.Profile() as profile:
        after(toy, 2)
    rows = [(path, own) for (path, _, _), (_, _, own, _, _) in pstats.Stats(profile).stats.items()]
    assert sum(own for path, own in rows if path.endswith("clock.py")) < 0.01 * sum(own for _, own in rows)
