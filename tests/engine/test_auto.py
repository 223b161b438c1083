"""The engine that compares whole rounds: which one it takes, when it looks again, what becomes of one that fails."""

import itertools

import pytest

from fedloom.core.errors import ClientError
from fedloom.engine import choose as auto
from fedloom.engine import jobs
from fedloom.engine.choose import Auto, Candidate, EngineChoice, choose_engine
from fedloom.engine.jobs import JobResult
from fedloom.engine.speedups import Speedups
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.fedavg import FedAvg
from support import configured, same_bits, world

JOBS = ["a", "b", "c"]


class Clock:
    """Time that passes only when somebody works."""

    now = 0.0

    def perf_counter(self):
        return self.now


class Fake:
    """An engine that takes `seconds` a sample, notes its rounds and may fail in some of them."""

    reason = None

    def __init__(self, name, seconds, clock, *, fails_in=()):
        self.name, self.seconds, self.clock, self.fails_in = name, seconds, clock, fails_in
        self.rounds, self.tests, self.kept, self.closed = [], [], [], 0

    def run(self, jobs):
        jobs = list(jobs)
        self.rounds.append(jobs)
        for place, job in enumerate(jobs):
            if len(self.rounds) in self.fails_in and place == 1:
                raise ClientError(1, len(self.rounds), "phase 0", ValueError("no rule for that operator"))
            self.clock.now += 10 * self.seconds
            yield JobResult(job, {}, {}, {}, 1, 10, 0.0)

    def test(self, tests):
        for test in tests:
            self.tests.append(test)
            yield jobs.EvalResult(test, {}, 0)

    def keep(self, record):
        self.kept.append(record)
        return record

    def notes(self):
        return [Diagnostic(self.name, self.name, 0.0)]

    def close(self):
        self.closed += 1


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(auto, "time", made)
    return made


def candidate(engine, *, reference=True):
    return Candidate(f"by {engine.name}", lambda: engine, reference)


def run(engine, rounds):
    """The names of the engines that ran each round."""
    ran = []
    for _ in range(rounds):
        done = list(engine.run(list(JOBS)))
        assert sorted(one.client for one in done) == JOBS
        ran.append(engine.name)
    return ran


@pytest.mark.parametrize("faster", ["processes", "serial"])
def test_it_begins_with_the_first_and_settles_on_the_faster(clock, faster):
    engines = [Fake(name, 1.0 if name == faster else 1.5, clock) for name in ("processes", "serial")]
    engine = Auto([candidate(one) for one in engines], 20)
    assert run(engine, 20) == ["processes"] * 2 + ["serial"] * 2 + [faster] * 16
    assert engine.reason.startswith("whole rounds took ")
    slow, fast = ("1500000.0", "1000000.0") if faster == "serial" else ("1000000.0", "1500000.0")
    assert f"{slow} us a sample by processes ({len(engines[0].rounds)} rounds)" in engine.reason
    assert f"{fast} us a sample by serial ({len(engines[1].rounds)} rounds)" in engine.reason


def test_the_first_round_which_pays_for_start_up_does_not_decide(clock):
    class Slow(Fake):
        def run(self, jobs):
            self.clock.now += 0 if self.rounds else 1000
            return super().run(jobs)

    engine = Auto([candidate(Fake("processes", 1.5, clock)), candidate(Slow("serial", 1.0, clock))], 15)
    assert run(engine, 15)[4:] == ["serial"] * 11


def test_it_looks_again_now_and_then_and_less_often_at_a_slower_one(clock):
    ran = {}
    for slower in (1.1, 4.0):
        engine = Auto([candidate(Fake("processes", 1.0, clock)), candidate(Fake("serial", slower, clock))], 400)
        ran[slower] = [n for n, name in enumerate(run(engine, 400)) if name == "serial"]
    assert [len(rounds) for rounds in ran.values()] == [2 + 16, 2 + 3]
    for slower, rounds in ran.items():
        waits = [after - before for before, after in itertools.pairwise(rounds[1:])]
        assert set(waits) == {int(20 * slower) + 1}


def test_it_changes_its_mind_when_the_other_has_become_faster(clock):
    first, second = Fake("processes", 1.0, clock), Fake("serial", 1.5, clock)
    engine = Auto([candidate(first), candidate(second)], 400)
    assert run(engine, 10)[-1] == "processes"
    first.seconds = 3.0
    ran = run(engine, 200)
    assert ran[-1] == "serial"
    assert ran.count("serial") > 150


def test_the_end_of_a_run_is_no_time_to_look(clock):
    engine = Auto([candidate(Fake("processes", 1.0, clock)), candidate(Fake("serial", 1.1, clock))], 40)
    assert run(engine, 40)[4:] == ["processes"] * 36


@pytest.mark.parametrize(("rounds", "others"), [(7, 0), (8, 2)])
def test_short_runs_keep_the_first(clock, rounds, others):
    first, second = Fake("processes", 1.0, clock), Fake("serial", 2.0, clock)
    engine = Auto([candidate(first), candidate(second)], rounds)
    assert run(engine, rounds).count("serial") == others
    assert (engine.reason is None) == (others == 0)
    assert len(second.rounds) == others


def test_one_that_fails_is_dismissed_and_its_round_runs_once_on_the_first(clock):
    first, broken = Fake("serial", 1.0, clock), Fake("batched", 0.1, clock, fails_in=(1,))
    engine = Auto([candidate(first), candidate(broken, reference=False)], 20)
    for _ in range(2):
        list(engine.run(list(JOBS)))
    asked = []

    class Once(list):
        def __iter__(self):
            asked.append(1)
            return super().__iter__()

    done = list(engine.run(Once(JOBS)))
    assert sorted(one.client for one in done) == JOBS  # each once
    assert asked == [1]  # their jobs are made once: what is counted when they are made counts once
    assert engine.name == "serial"
    assert (len(broken.rounds), broken.closed, len(first.rounds)) == (1, 1, 3)
    assert run(engine, 17) == ["serial"] * 17
    assert "by batched cannot run this: client 1 failed in round 1" in engine.reason if engine.reason else True
    assert engine._failures == [f"by batched cannot run this: {engine._failures[0].partition(': ')[2]}"]
    assert "no rule for that operator" in engine._failures[0]


def test_one_that_fails_late_is_dismissed_too(clock):
    """It had run the round before as well: what it fails in must not run on it again."""
    first, broken = Fake("serial", 1.0, clock), Fake("batched", 0.1, clock, fails_in=(5, 6))
    engine = Auto([candidate(first), candidate(broken, reference=False)], 20)
    assert run(engine, 12) == ["serial"] * 2 + ["batched"] * 4 + ["serial"] * 6
    assert (len(broken.rounds), broken.closed) == (5, 1)


def test_two_that_fail_in_one_round_leave_the_first(clock):
    first = Fake("serial", 1.0, clock)
    broken = [Fake(name, 0.1, clock, fails_in=(3,)) for name in ("own kernels", "batched")]
    broken[1].fails_in = (1,)
    engine = Auto([candidate(first), *(candidate(one, reference=False) for one in broken)], 20)
    assert run(engine, 8) == ["serial"] * 2 + ["own kernels"] * 2 + ["serial"] * 4
    assert [one.closed for one in broken] == [1, 1]


def test_the_serial_engines_own_failures_are_the_runs(clock):
    """Where the reference fails, nothing else may hide it."""
    engine = Auto([candidate(Fake("processes", 1.0, clock, fails_in=(1,))), candidate(Fake("serial", 1.0, clock))], 20)
    with pytest.raises(ClientError, match="no rule"):
        list(engine.run(list(JOBS)))


def test_engines_start_when_their_first_round_comes_and_all_are_closed(clock):
    engines, made = [Fake(name, 1.0, clock) for name in ("a", "b", "c")], []
    candidates = [Candidate(e.name, lambda e=e: made.append(e.name) or e) for e in engines]
    engine = Auto(candidates, 20)
    assert made == []
    run(engine, 1)
    assert made == ["a"]
    run(engine, 2)
    assert made == ["a", "b"]
    engine.close()
    assert [one.closed for one in engines] == [1, 1, 0]


def test_tests_notes_and_records_go_to_the_engine_of_the_round(clock):
    engines = [Fake("processes", 1.0, clock), Fake("serial", 2.0, clock)]
    engine = Auto([candidate(one) for one in engines], 20)
    for number, name in enumerate(["processes", "processes", "serial"], start=1):
        run(engine, 1)
        engine.keep({"round": number})
        assert [done.client for done in engine.test(["x", "y"])] == ["x", "y"]
        assert [diagnostic.code for diagnostic in engine.notes()] == [name]
    assert [len(one.tests) for one in engines] == [4, 2]
    assert [len(one.kept) for one in engines] == [2, 1]


def test_rounds_without_clients_are_not_timed(clock):
    engine = Auto([candidate(Fake("processes", 1.0, clock)), candidate(Fake("serial", 2.0, clock))], 40)
    for _ in range(5):
        assert list(engine.run([])) == []
        assert (engine.name, engine.reason) == ("processes", None)
    assert run(engine, 6) == ["processes"] * 2 + ["serial"] * 2 + ["processes"] * 2


# -- in a federation ---------------------------------------------------------------------------------------------------
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0, 3]]


@pytest.fixture
def no_threads(monkeypatch):
    monkeypatch.setattr(Speedups, "threads_obstacle", lambda self: "a test")


def test_a_run_that_changes_engines_has_the_bits_of_the_serial_one(no_threads):
    toys = [world(configured("fedsc"), LABELS, rounds=12) for _ in range(2)]
    toys[1].federation.engine = choose_engine(toys[1].federation, toys[1].worker, EngineChoice(workers=2)).engine
    names = []
    try:
        for _ in range(6):
            toys[0].federation.step()
            toys[1].federation.step()
            names.append(toys[1].federation.engine.name)
    finally:
        toys[1].federation.engine.close()
    assert names[:3] == ["processes"] * 2 + ["serial"]
    assert same_bits(*(toy.federation.server for toy in toys))


def test_a_run_that_goes_on_counts_the_rounds_that_are_left(no_threads):
    toy = world(configured("fedavg"), LABELS, rounds=20)
    toy.federation.round = 16
    toy.federation.engine = choose_engine(toy.federation, toy.worker, EngineChoice(workers=2)).engine
    try:
        for _ in range(4):
            toy.federation.step()
            assert toy.federation.engine.name == "processes"
    finally:
        toy.federation.engine.close()


class Unstackable(FedAvg):
    """Its loss looks at a value, which nothing that is stacked may."""

    calls = 0

    def loss(self, net, batch, consts):
        type(self).calls += float(batch.y.sum()) >= 0
        return super().loss(net, batch, consts)


def test_a_method_that_cannot_be_stacked_runs_on_and_the_reason_says_so():
    toys = [world(Unstackable(), LABELS, rounds=10) for _ in range(2)]
    choice = EngineChoice(workers=1, same_bits=False)
    toys[1].federation.engine = choose_engine(toys[1].federation, toys[1].worker, choice).engine
    for toy in toys:
        reports = [toy.federation.step() for _ in range(4)]
    plain = [report.bytes_down for report in [toys[0].federation.step()]]
    assert [report.bytes_down for report in reports] == plain * 4  # the round that was repeated counts once
    toys[1].federation.step()
    assert toys[1].federation.engine.name == "serial"
    assert same_bits(*(toy.federation.server for toy in toys))


# -- an engine that needs no comparison --------------------------------------------------------------------------------
def test_the_preferred_engine_takes_over_when_it_is_ready_and_leaves_when_it_does_not_serve(clock):
    ready, serves = [], [True]
    fakes = [Fake("threads", 1.0, clock), Fake("processes", 1.0, clock)]
    preferred = Candidate("on threads", lambda: fakes[0], ready=lambda: bool(ready), serves=lambda engine: serves[0])
    engine = Auto([preferred, Candidate("in 2 processes", lambda: fakes[1])], 20)
    names = []
    for round_ in range(6):
        if round_ == 2:
            ready.append(True)
        if round_ == 5:
            serves[0] = False
        list(engine.run(JOBS))
        names.append(engine.name)
    assert names == ["processes"] * 2 + ["threads"] * 3 + ["processes"]
    engine.close()
    assert [fake.closed for fake in fakes] == [1, 1]


@pytest.mark.parametrize(("seconds", "last"), [(2.0, "processes"), (0.5, "threads")])
def test_a_preferred_engine_that_does_not_serve_is_compared_with_the_others(clock, seconds, last):
    serves = [True]
    fakes = [Fake("threads", seconds, clock), Fake("processes", 1.0, clock)]
    preferred = Candidate("on threads", lambda: fakes[0], ready=lambda: True, serves=lambda engine: serves[0])
    engine = Auto([preferred, Candidate("in 2 processes", lambda: fakes[1])], 20)
    names = []
    for round_ in range(8):
        serves[0] = round_ < 4
        list(engine.run(JOBS))
        names.append(engine.name)
    assert names == ["threads"] * 4 + ["processes"] * 2 + [last] * 2
    assert "on threads (" in engine.reason
