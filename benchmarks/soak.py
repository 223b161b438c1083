"""A real federation on this machine whose nodes are killed at random: lost rounds, and memory over time.

    python -m benchmarks soak --minutes 30 --out runs/soak

TLS and node keys are on. A node is killed with all its processes, and starts again some seconds later. A round is lost
if its number is missing in the run's metrics, or if the run ended early. The last line is JSON.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedloom.core.errors import RunFolderError
from fedloom.flower.processes import family
from fedloom.flower.status import Status, read_status
from fedloom.flower.up import LocalFederation
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.storage.log import MetricsLog

ALIVE, DEAD = (60.0, 300.0), (1.0, 20.0)  # range of seconds from a start to a kill, and from a kill to a start
AGAIN = 5.0  # seconds until a node that ended is started again, as a service manager does
EVERY = 5.0  # seconds between two measurements of memory


def config_of(nodes: int) -> RunConfig:
    """SCAFFOLD, whose clients have private states; more rounds than time."""
    return parse(
        {
            "method": "scaffold",
            "model": "mlp",
            "rounds": 1_000_000,
            "local_epochs": 1,
            "scenario": {"source": "digits", "partition": "iid", "clients": nodes, "val": 0.0},
            "evaluation": {"every": 10},
            "flower": {"min_clients": 1, "round_timeout": 300.0, "join_timeout": 300.0},
            "engine": "serial",
        }
    )


def kilobytes(pid: int) -> int:
    """Return the memory that a process holds now; 0 if it has ended."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
    return 0


def memory(federation: LocalFederation) -> dict[str, float]:
    """Return the megabytes of SuperLink, of the server's app (its largest child), and of all SuperNodes."""
    superlink = federation.processes.pid_of("superlink")
    nodes = [federation.processes.pid_of(f"node-{client:06d}") for client in range(federation.clients)]
    children = [kilobytes(pid) for pid in family(superlink) - {superlink}]
    kilobytes_by_part = {
        "superlink": kilobytes(superlink),
        "app": max(children, default=0),
        "nodes": sum(map(kilobytes, nodes)),
    }
    return {name: value / 1000 for name, value in kilobytes_by_part.items()}


def kill(federation: LocalFederation, client: int) -> None:
    """Kill a node and all processes that it started."""
    for pid in family(federation.processes.pid_of(f"node-{client:06d}")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def soak(federation: LocalFederation, out: Path, seconds: float, rng: random.Random) -> dict[str, Any]:
    """Run for so many seconds and return what happened."""
    process, began = federation.run(out), time.monotonic()
    due = {
        client: (began + rng.uniform(*ALIVE), True) for client in range(federation.clients)
    }  # when, and whether to kill
    kills, turned_away, samples, last_look = 0, 0, list[dict[str, float]](), began
    while process.poll() is None and (seconds_now := time.monotonic()) - began < seconds:
        for client, (when, alive) in due.items():
            if alive and kilobytes(federation.processes.pid_of(f"node-{client:06d}")) == 0:
                due[client] = seconds_now + AGAIN, False  # turned away: Flower does not know yet that it was killed
                turned_away += 1
            elif seconds_now >= when:
                if alive:
                    kill(federation, client)
                    kills += 1
                else:
                    federation.start_node(client)
                due[client] = seconds_now + rng.uniform(*(DEAD if alive else ALIVE)), not alive
        if seconds_now - last_look >= EVERY:
            last_look = seconds_now
            samples.append({"seconds": round(seconds_now - began, 1), "round": round_of(out), **memory(federation)})
            print(json.dumps(samples[-1]), flush=True)
        time.sleep(0.5)
    outcome = result(read_status(out), MetricsLog(out / "metrics.jsonl"), process.poll() is not None, samples)
    return {"kills": kills, "turned_away": turned_away, **outcome}


def round_of(out: Path) -> int:
    """Return the last finished round; 0 before the first status."""
    with contextlib.suppress(RunFolderError):
        return read_status(out).round
    return 0


def result(status: Status, log: MetricsLog, ended: bool, samples: list[dict[str, float]]) -> dict[str, Any]:
    """Return the outcome of a soak. Memory: the peaks in the second and in the last quarter of the time."""
    rounds = {row["round"] for row in log.rows()}
    missing = len(set(range(1, status.round + 1)) - rounds)
    quarter = max(1, len(samples) // 4)
    parts = {"second_quarter": samples[quarter : 2 * quarter], "last_quarter": samples[-quarter:]}
    return {
        "rounds": status.round,
        "rounds_lost": missing + int(ended),
        "refused": status.refused,
        "failures": status.failures,
        "last_error": status.last_error.text if status.last_error else None,
        "memory_mb": {
            part: {name: round(max(sample[name] for sample in group)) for name in ("superlink", "app", "nodes")}
            for part, group in parts.items()
            if group
        },
    }


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/soak"))
    arguments = parser.parse_args(words)
    folder = arguments.out.with_name(arguments.out.name + ".flower")
    with LocalFederation(config_of(arguments.nodes), folder, insecure=False, port=None, say=print) as federation:
        print(json.dumps(soak(federation, arguments.out, 60.0 * arguments.minutes, random.Random(arguments.seed))))
