"""What the models of kept rounds show, against the weights and samples of the same run; and each figure, drawn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import fedloom as fl
from benchmarks.figures import probes, round_probes
from benchmarks.figures.drawing import figure, save
from benchmarks.figures.rows import ROUND_FIGURES
from fedloom.core.errors import ConfigError
from fedloom.core.records import get_table
from fedloom.results.result import Result


@pytest.fixture(scope="module")
def dealt() -> Any:
    return fl.scenario("digits", partition="dirichlet", alpha=0.3, clients=5).build(0)


@pytest.fixture(scope="module")
def run(dealt: Any, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return fl.run(
        "fedskc",
        scenario=dealt,
        model={"name": "mlp", "hidden": [4]},
        rounds=3,
        participation=0.6,
        batch_size=100,
        checkpoint={"keep_clients": [1, 3]},
        out=str(tmp_path_factory.mktemp("runs") / "run"),
    )


def test_landscapes_have_the_loss_of_each_model_on_its_own_data_at_the_centre(run: Result, dealt: Any) -> None:
    rows = round_probes.landscapes(run, steps=3, samples=10_000)
    models = run.round_models(3)
    by_size = sorted(models.clients, key=lambda client: -len(dealt.train[client]))
    names = list(dict.fromkeys(row["model"] for row in rows))
    clients = [f"client {client}, round 3" for client in by_size[:2]]
    assert names == ["global, round 1", *clients, "global, round 3"]
    assert len(rows) == 4 * 9

    def loss(model: torch.nn.Module, rows_of_set: np.ndarray) -> float:
        indices = torch.from_numpy(rows_of_set)
        with torch.no_grad():
            return float(cross_entropy(model(dealt.train_set.gather(indices)), dealt.train_set.y[indices]))

    centre = {row["model"]: row["loss"] for row in rows if row["x"] == row["y"] == 0}
    everyone = dealt.train.order
    assert centre["global, round 1"] == pytest.approx(loss(run.round_models(1).server(), everyone), rel=1e-4)
    assert centre["global, round 3"] == pytest.approx(loss(run.model(), everyone), rel=1e-4)
    for client, name in zip(by_size, clients, strict=False):
        assert centre[name] == pytest.approx(loss(models.client(client), dealt.train[client]), rel=1e-4)


def test_cohorts_are_the_class_counts_of_the_participants(run: Result, dealt: Any) -> None:
    rows = round_probes.cohorts(run)
    counts = np.array(dealt.class_counts())
    for round_ in (1, 3):
        clients = list(dict.fromkeys(row["client"] for row in rows if row["round"] == round_))
        assert tuple(clients) == run.round_models(round_).clients
        for client in clients:
            samples = [row["samples"] for row in rows if (row["round"], row["client"]) == (round_, client)]
            assert samples == counts[client].tolist()


def test_local_points_mark_the_classes_that_the_client_holds(run: Result, dealt: Any) -> None:
    rows = round_probes.local_points(run, samples=60)
    (client,) = {row["client"] for row in rows}
    assert len(dealt.train[client]) == max(len(dealt.train[other]) for other in run.round_models(3).clients)
    assert sum(row["kind"] == "sample" for row in rows) == 60
    held = np.flatnonzero(np.array(dealt.class_counts())[client])
    assert [row["class"] for row in rows if row["kind"] == "means"] == held.tolist()


def test_knowledge_keeps_the_distances_that_a_plane_can_keep(run: Result) -> None:
    rows = round_probes.knowledge(run)
    models = run.round_models(3)
    tables = [get_table(models.uploads[client], "knowledge") for client in models.clients]
    tables.append(get_table(models.after, "knowledge"))
    vectors = np.concatenate([table.values[table.held].double().numpy() for table in tables])
    assert len(rows) == len(vectors)
    places = np.array([[row["x"], row["y"]] for row in rows])
    spectrum = np.linalg.svd(vectors - vectors.mean(0), compute_uv=False)
    assert (places**2).sum() == pytest.approx((spectrum[:2] ** 2).sum(), rel=1e-6)
    assert {row["kind"] for row in rows if row["client"] is None} == {"server"}


@pytest.mark.parametrize("kind", ROUND_FIGURES)
def test_each_is_drawn(kind: str, run: Result, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(probes, "plane_of", lambda z, seed: z[:, :2].double().numpy())
    measured = round_probes.ROUND_PROBES[kind](run)
    rows = [{"panel": "digits", "row": name, "seed": 0, **row} for name in ("a", "b") for row in measured]
    panels = {"landscapes": 8}.get(kind, 2)
    assert len([ax for ax in figure(kind, rows).axes if ax.get_title(loc="left")]) == panels
    assert {path.name for path in save(kind, rows, tmp_path)} == {"figure.png", "figure.svg", "figure.csv"}


def test_runs_without_kept_rounds_or_class_tables_say_what_is_missing(run: Result, dealt: Any, tmp_path: Path) -> None:
    plain = fl.run("fedavg", scenario=dealt, model={"name": "mlp", "hidden": [4]}, rounds=1, batch_size=400)
    for probe in round_probes.ROUND_PROBES.values():
        with pytest.raises(ConfigError, match=r"checkpoint\.keep_clients"):
            probe(plain)
    kept = fl.run(
        *["fedavg"],
        scenario=dealt,
        model={"name": "mlp", "hidden": [4]},
        rounds=1,
        batch_size=400,
        checkpoint={"keep_clients": [1]},
        out=str(tmp_path / "run"),
    )
    with pytest.raises(ConfigError, match="no class table"):
        round_probes.knowledge(kept)
