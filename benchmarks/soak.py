"""A long federation over bad links whose nodes and server are killed: lost rounds, silences, and memory over time.

    python -m benchmarks soak --minutes 60 --nodes 4 --megabytes 200 --out runs/soak

TLS and node keys are on. Nodes run under `fedloom flower node`, behind links of 20 Mbit/s and 200 ms that break off
each minute, stand half open for a while, and lose one message of each kind in turn. Nodes are killed with all their
processes, and start again some seconds later, as does the server's app. A round is lost if its number is missing in
the run's metrics, or if the run ended because of it. At the end, the last server state is compared with that of a
simulation. A row is added to the file --csv; the last line is JSON.
"""

import argparse
import bisect
import contextlib
import csv
import itertools
import json
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bad_link import OverBadLinks
from fedloom.core.errors import RunFolderError
from fedloom.flower.processes import family
from fedloom.flower.status import Status, read_status
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.run import run
from fedloom.runs.storage.log import MetricsLog

# Seconds between two events of each kind, as a share of an hour's soak; shorter soaks have them closer together.
NODE_KILL, SERVER_KILL, HALF_OPEN, LOSS = (240.0, 900.0), (600.0, 1200.0), (120.0, 400.0), (20.0, 90.0)
DEAD, SILENT, RESET = (1.0, 20.0), (20.0, 60.0), 60.0  # seconds until a start; of a half-open link; between breaks
EVERY = 5.0  # seconds between two measurements of memory
KINDS = {  # what is lost: the request, the reply to it, or a reply with a message
    "pull-messages": "message",
    "pull-object": "reply",
    "confirm-message-received": "reply",
    "push-messages": "reply",
    "push-object": "request",
    "send-node-heartbeat": "reply",
}


class Links(OverBadLinks):
    """20 Mbit/s, and 200 ms there and back."""

    rate, latency = 20e6 / 8, 0.1


def config_of(nodes: int, megabytes: float, rounds: int = 1_000_000) -> RunConfig:
    """FedAvg with a net of so many megabytes; more rounds than time, and every client is needed in each."""
    width = max(8, round((megabytes * 1e6 / 4) ** 0.5))
    return parse(
        {
            "method": "fedavg",
            "model": {"name": "mlp", "hidden": [width, width]},
            "rounds": rounds,
            "local_epochs": 1,
            "scenario": {"source": "digits", "partition": "iid", "clients": nodes, "val": 0.0},
            "evaluation": {"every": 10},
            "flower": {"min_clients": nodes, "round_timeout": None, "join_timeout": 1800.0, "stall_seconds": 60.0},
            "engine": "serial",
        }
    )


def megabytes_of(pids: set[int]) -> float:
    """Return the memory that processes hold now; those that have ended count nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
            total += int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
    return round(total / 1000, 1)


def is_server_app(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def status_of(out: Path) -> Status | None:
    """Return the server's status; None before the first one."""
    with contextlib.suppress(RunFolderError):
        return read_status(out)
    return None


class Silences:
    """Measures for how long a server that waits does not name a client in its log."""

    def __init__(self) -> None:
        self._looks = list[tuple[float, float]]()  # the time, and when the wait began, in seconds since 1970

    def look(self, status: Status | None, server_began: float) -> None:
        """Note whether the server waits. server_began: the status of an earlier server counts nothing."""
        if status is not None and status.wait is not None and status.started >= server_began:
            self._looks.append((time.time(), status.wait.since))

    def longest(self, events: Sequence[dict[str, Any]]) -> float:
        """Return the most seconds without a client's name during a wait. events: of the server's log."""
        named = [event["time"] for event in events if "client" in event.get("text", "")]
        last = [(now, max([since, *named[: bisect.bisect_right(named, now)][-1:]])) for now, since in self._looks]
        return round(max((now - spoke for now, spoke in last), default=0.0), 1)


class Faults:
    """Breaks a federation at random times. counts: how often, by kind. hurry: how many times closer together events are
    than in a soak of an hour."""

    def __init__(self, federation: OverBadLinks, rng: random.Random, hurry: float) -> None:
        self._federation, self._rng, self._hurry = federation, rng, hurry
        self.counts = dict.fromkeys(("node_kills", "server_kills", "half_open", "resets", "restarts"), 0)
        now, nodes = time.monotonic(), range(federation.clients)
        self._kill_at = {node: self._later(now, NODE_KILL) for node in nodes}
        self._start_at: dict[int, float] = {}
        self._silent_at = {node: self._later(now, HALF_OPEN) for node in nodes}
        self._heal_at: dict[int, float] = {}
        self._loss_at = {node: self._later(now, LOSS) for node in nodes}
        self._kinds = {node: itertools.cycle(rng.sample(sorted(KINDS), len(KINDS))) for node in nodes}
        self._server_kill_at, self._reset_at = self._later(now, SERVER_KILL), now + RESET

    def _later(self, now: float, seconds: tuple[float, float]) -> float:
        return now + self._rng.uniform(*seconds) / self._hurry

    def family(self, node: int) -> set[int]:
        return family(self._federation.processes.pid_of(f"node-{node:06d}"))

    def server_apps(self) -> set[int]:
        return {pid for pid in family(self._federation.processes.pid_of("superlink")) if is_server_app(pid)}

    def step(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for node in range(self._federation.clients):
            link, losses = self._federation.links[node], self._federation.losses[node]
            if node in self._start_at:
                if now >= self._start_at[node]:
                    del self._start_at[node]
                    self._federation.start_node(node)
                    self._kill_at[node] = self._later(now, NODE_KILL)
            elif now >= self._kill_at[node]:
                kill(self.family(node))
                self.counts["node_kills"] += 1
                self._start_at[node] = now + self._rng.uniform(*DEAD)
            elif megabytes_of(self.family(node)) == 0:  # it has ended, and a service manager would start it again
                self.counts["restarts"] += 1
                self._start_at[node] = now + DEAD[0]
            if now >= self._silent_at[node]:
                link.silent = {self._rng.choice(["up", "down"])} if self._rng.random() < 0.5 else {"up", "down"}
                self.counts["half_open"] += 1
                self._heal_at[node] = now + self._rng.uniform(*SILENT)
                self._silent_at[node] = self._later(self._heal_at[node], HALF_OPEN)
            if now >= self._heal_at.get(node, now + 1):
                link.silent = set()
                del self._heal_at[node]
            if now >= self._loss_at[node]:
                kind = next(self._kinds[node])
                losses.lose = {kind: KINDS[kind]}
                self._loss_at[node] = self._later(now, LOSS)
            if now >= self._reset_at:
                link.reset()
                self.counts["resets"] += 1
        if now >= self._reset_at:
            self._reset_at = now + RESET
        if now >= self._server_kill_at:
            kill(self.server_apps())
            self.counts["server_kills"] += 1
            self._server_kill_at = self._later(now, SERVER_KILL)


def soak(federation: OverBadLinks, out: Path, seconds: float, rng: random.Random) -> dict[str, Any]:
    """Run for so many seconds, and return what happened."""
    hurry = min(1.5, 3600.0 / seconds)  # nodes need a minute to join again
    faults, process, began = Faults(federation, rng, hurry), federation.run(out), time.monotonic()
    server_began, kills, ended = time.time(), 0, list[str]()
    samples, last_look, silences = list[dict[str, float]](), began, Silences()
    while (now := time.monotonic()) - began < seconds:
        faults.step()
        status = status_of(out)
        if faults.counts["server_kills"] > kills:
            server_began, kills = math.inf, faults.counts["server_kills"]  # its status is the last of a dead server
        if process.poll() is not None:
            if server_began < math.inf:  # it was not killed
                ended.append(status.last_error.text if status and status.last_error else "")
            server_began, process = time.time(), federation.run(out)
        silences.look(status, server_began)
        if now - last_look >= EVERY:
            last_look, apps = now, faults.server_apps()
            nodes = {f"node-{node}": megabytes_of(faults.family(node)) for node in range(federation.clients)}
            superlink = megabytes_of({federation.processes.pid_of("superlink")})
            round_ = status.round if status else 0
            sample = {"seconds": round(now - began, 1), "round": round_, "superlink": superlink}
            samples.append({**sample, "app": megabytes_of(apps), **nodes})
            print(json.dumps(samples[-1]), flush=True)
        time.sleep(0.5)
    lost = Counter(kind for losses in federation.losses for kind in losses.lost)
    counts = faults.counts | {"lost_messages": ", ".join(f"{kind} {lost[kind]}" for kind in KINDS)}
    counts |= {"runs_ended": len(ended), "why_ended": "; ".join(ended)}
    return counts | result(out, federation.processes.log("run"), samples, silences)


def result(out: Path, log: Path, samples: list[dict[str, float]], silences: Silences) -> dict[str, Any]:
    """Return the outcome of a soak. Memory: the peaks of each process in the second and in the last quarter."""
    status, rounds = read_status(out), Counter[int]()
    for row in MetricsLog(out / "metrics.jsonl").rows():
        if row["name"] == "participants":
            rounds[row["round"]] = int(row["value"])
    texts = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.startswith("{")]
    events = [json.loads(line) for line in texts]
    quarter = max(1, len(samples) // 4)
    parts = {"second_quarter": samples[quarter : 2 * quarter], "last_quarter": samples[-quarter:]}
    names = sorted({name for sample in samples for name in sample} - {"seconds", "round"})
    return {
        "rounds": status.round,
        "rounds_lost": len(set(range(1, status.round + 1)) - {*rounds}),
        "fewest_uploads": min(rounds.values(), default=0),
        "sent_again": sum("is sent once more" in event.get("text", "") for event in events),
        "longest_silence": silences.longest(events),
        "refused": status.refused,
        "failures": status.failures,
        "last_error": status.last_error.text if status.last_error else None,
        **{
            f"{name}_mb_{part}": round(max(sample[name] for sample in group), 1)
            for part, group in parts.items()
            for name in names
            if group
        },
    }


def has_the_bits_of_a_simulation(out: Path, config: RunConfig) -> bool:
    """Simulate as many rounds as were finished in `out`, and compare the server's last state."""
    simulated = out.with_name(out.name + ".simulated")
    run(config, out=simulated, existing="fresh")
    file = Path("checkpoint") / f"round-{config.rounds:06d}" / "server.safetensors"
    return (out / file).read_bytes() == (simulated / file).read_bytes()


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--megabytes", type=float, default=200.0, help="of the net")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/soak"))
    parser.add_argument("--csv", type=Path, help="by default soak.csv beside --out")
    asked = parser.parse_args(words)
    folder, table = asked.out.with_name(asked.out.name + ".flower"), asked.csv or asked.out.with_name("soak.csv")
    with Links(config_of(asked.nodes, asked.megabytes), folder, insecure=False, port=None, say=print) as federation:
        outcome = soak(federation, asked.out, 60.0 * asked.minutes, random.Random(asked.seed))
    same = None
    if outcome["rounds"]:
        config = config_of(asked.nodes, asked.megabytes, outcome["rounds"])
        same = has_the_bits_of_a_simulation(asked.out, config)
    row = {"minutes": asked.minutes, "nodes": asked.nodes, "megabytes": asked.megabytes, "seed": asked.seed}
    row |= {**outcome, "bits_of_the_simulation": same}
    is_new = not table.exists()
    with table.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, row)
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    print(json.dumps(row))
