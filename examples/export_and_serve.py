"""Train, export, and answer requests over HTTP with the exported file alone.

    python examples/export_and_serve.py            # trains on digits, then serves on a free port of this machine
    curl --data '[[[0, 5, 13, ...], ...]]' localhost:PORT    # one or more samples as stored; here 8x8 pixels, 0 .. 16

A public server also needs TLS, limits and authentication.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch

import fedloom as fl
from fedloom.runs.export.trained import Trained, of_result, read

MOST_BYTES = 2**20


def train_and_export(weights: Path, rounds: int) -> None:
    """Train FedSC on ten unequal clients and export the model of the best round on validation data."""
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.1, clients=10)
    result = fl.run("fedsc", scenario=scenario, rounds=rounds, evaluation={"select": "best_val"})
    of_result(result, at="best_val").save(weights)


def answer(trained: Trained, body: bytes) -> list[dict[str, float]]:
    """Return class probabilities by name for each sample of a JSON list. Raises `ValueError` for anything else."""
    samples = torch.tensor(json.loads(body), dtype=torch.float32)
    if samples.dim() == len(trained.metadata.input.shape):  # pictures without their channel axis
        samples = samples.unsqueeze(1)
    if tuple(samples.shape[1:]) != trained.metadata.input.shape or not len(samples):
        raise ValueError(f"samples of shape {list(samples.shape[1:])}; need {list(trained.metadata.input.shape)}")
    return [dict(zip(trained.metadata.classes, row, strict=True)) for row in trained.probabilities(samples).tolist()]


def server(weights: Path, port: int = 0) -> ThreadingHTTPServer:
    """Return a server on the loopback address; port 0 takes a free one."""
    trained = read(weights)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                length = int(self.headers.get("Content-Length", 0))
                if not 0 < length <= MOST_BYTES:
                    raise ValueError(f"a body of {length} bytes; need 1 to {MOST_BYTES}")
                status, found = 200, json.dumps(answer(trained, self.rfile.read(length)))
            except (ValueError, TypeError) as error:
                status, found = 400, json.dumps({"error": str(error)})
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(found.encode())

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=Path("model.safetensors"))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    train_and_export(given.weights, given.rounds)
    with server(given.weights, given.port) as running:
        print(f"listening on http://127.0.0.1:{running.server_port}; Ctrl-C ends it")
        running.serve_forever()


if __name__ == "__main__":
    main()
