"""First configs for a user's data: the files load, fit a network, and say why."""

import bz2
import gzip
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedloom.core.errors import FedloomError
from fedloom.runs.config.first_config import first_config, hub_keys
from fedloom.runs.config.run_config import load, parse
from fedloom.runs.run import run

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def patients(rows: int = 300) -> None:
    """A table with all that a first table has: an id, dates, texts, gaps, an owner, a rare class."""
    lines = ["id,age,job,ward,visited,note,lab,ill"]
    for row in range(rows):
        lab = "" if row % 20 == 0 else f"{RNG.random():.2f}"
        lines.append(
            f"{row},{RNG.normal(40, 10):.1f},{'cook' if row % 3 else 'nurse'},{'NSW'[row % 3]},"
            f"2024-01-{row % 28 + 1:02d},said {RNG.random()},{lab},{'yes' if row % 9 == 0 else 'no'}"
        )
    Path("patients.csv").write_text("\n".join(lines) + "\n")


def pictures(folder: str, classes: str, size: tuple[int, int], mode: str = "RGB", count: int = 20) -> None:
    for name in classes:
        (Path(folder) / name).mkdir(parents=True)
        for number in range(count):
            pixels = RNG.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).convert(mode).save(Path(folder, name, f"{number}.png"))


def runs_unchanged(data: str, **columns: Any) -> dict[str, Any]:
    """Write the config for `data`, train a round of it as it is, and return its values."""
    first = first_config(data, **columns)
    Path("first.yaml").write_text(first.text("first.yaml"))
    values = load(Path("first.yaml"))
    config = parse(values)
    assert config == first.config
    small = parse(load(Path("first.yaml"), ["rounds=1", "local_epochs=1", "engine=serial"]))
    assert run(small).numbers["rounds"] == 1
    return values


def test_a_table_with_owners_and_columns_that_teach_nothing() -> None:
    patients()
    values = runs_unchanged("patients.csv")
    assert values["scenario"] == {
        "source": "csv",
        "path": "patients.csv",
        "label": "ill",
        "owner": "ward",
        "drop": ["visited", "note", "id"],
        "incomplete": "drop",
        "partition": "natural",
    }
    assert values["model"] == "mlp"
    assert values["evaluation"]["protocol"] == "global/local"
    assert values["evaluation"]["metrics"] == ["auroc"]
    text = Path("first.yaml").read_text()
    assert "# each of the 3 owners is a client" in text
    assert "# class yes is rare (1" in text
    assert "said 0." not in text  # no cells of the user


def test_columns_that_the_user_names() -> None:
    patients()
    values = first_config("patients.csv", label="job", owner="none").config.resolved()["scenario"]
    assert (values["label"], values["owner"], values["partition"]) == ("job", None, "dirichlet")


def test_a_table_of_another_country() -> None:
    lines = ["größe;gewicht;klinik;diagnose"]
    for row in range(200):
        size = "?" if row == 7 else f"{RNG.normal(170, 10):.1f}"
        lines.append(f"{size};{RNG.normal(70, 10):.1f};{'AB'[row % 2]};{'kg'[row % 2]}".replace(".", ","))
    Path("tabelle.csv").write_bytes(("\n".join(lines) + "\n").encode("latin-1"))
    values = runs_unchanged("tabelle.csv")["scenario"]
    assert values["separator"] == ";"
    assert values["encoding"] == "latin-1"
    assert values["decimal"] == ","
    assert "missing" not in values  # among numbers ? is known
    assert values["incomplete"] == "drop"
    assert values["label"] == "diagnose"


@pytest.mark.parametrize(
    ("cell", "keys"),
    [
        ("51.5 kg", {}),
        ("51.5kg", {}),
        ("51.5%", {}),
        ("<40", {"bounds": "value"}),
        ("~51", {"bounds": "value"}),
        ("n/k", {"incomplete": "drop"}),
        ("unknown", {"incomplete": "drop"}),
        ("-", {"incomplete": "drop"}),
        ("fifty", {"missing": ["fifty"], "incomplete": "drop"}),
        ("51-53", {"missing": ["51-53"], "incomplete": "drop"}),
    ],
)
def test_odd_cells_among_numbers_are_read_or_named(cell: str, keys: dict[str, Any]) -> None:
    rows = [f"{cell if row % 25 == 3 else 40 + row / 8},{row % 11},{'kg'[row % 2]}\n" for row in range(200)]
    Path("weights.csv").write_text("weight,visits,diagnosis\n" + "".join(rows))
    values = runs_unchanged("weights.csv")["scenario"]
    assert {key: values[key] for key in ("bounds", "missing", "incomplete", "drop") if key in values} == keys


def test_tables_that_list_pictures_or_hold_texts() -> None:
    pictures("photos", "ab", (12, 12))
    names = [f"photos/{'ab'[row % 2]}/{row // 2}.png" for row in range(40)]
    Path("labels.csv").write_text("image,age,ill\n" + "".join(f"{name},{len(name)},{name[7]}\n" for name in names))
    values = runs_unchanged("labels.csv")["scenario"]
    assert (values["source"], values["file"], values["label"]) == ("file-table", "image", "ill")
    assert (values["size"], values["channels"]) == (12, 3)
    with pytest.raises(FedloomError, match=r"photos/a/3.png: is one picture; name the folder .* --from .*/photos$"):
        first_config("photos/a/3.png")
    with pytest.raises(FedloomError, match=r"as in --from labels\.csv$"):
        first_config(str(Path("photos/a/3.png").rename("3.png")))
    texts = [f"a {('good', 'bad')[row % 2]} film number {row},{('pos', 'neg')[row % 2]}\n" for row in range(60)]
    Path("reviews.csv").write_text("review,sentiment\n" + "".join(texts))
    values = runs_unchanged("reviews.csv")["scenario"]
    assert (values["source"], values["text"], values["label"]) == ("text-table", "review", "sentiment")


def test_numbers_with_marks_between_thousands() -> None:
    lines = [f"{row * 95 + 140:,}".replace(",", ".") + f";{row % 40 + 20},5;{'kg'[row % 2]}" for row in range(80)]
    Path("kosten.csv").write_text("\n".join(["kosten;alter;diagnose", *lines]) + "\n")
    values = runs_unchanged("kosten.csv", label="diagnose")["scenario"]
    assert (values["decimal"], values["thousands"]) == (",", ".")
    assert "drop" not in values
    assert "# numbers are written as 1.000" in Path("first.yaml").read_text()
    lines = [f'"{row * 95 + 1140:,}",{row % 40 + 20}.5,{"kg"[row % 2]}' for row in range(80)]
    Path("costs.csv").write_text("\n".join(["costs,age,diagnosis", *lines]) + "\n")
    values = runs_unchanged("costs.csv")["scenario"]
    assert (values["thousands"], "decimal" in values, "drop" in values) == (",", False, False)


@pytest.mark.parametrize("pack", [gzip, bz2])
def test_a_packed_table_is_looked_into(pack: ModuleType) -> None:
    lines = [f"{RNG.normal():.2f};{'äb'[row % 2]}".replace(".", ",") for row in range(90)]
    suffix = {gzip: "gz", bz2: "bz2"}[pack]
    Path(f"sizes.csv.{suffix}").write_bytes(pack.compress("\n".join(["size;ill", *lines, ""]).encode("latin-1")))
    values = runs_unchanged(f"sizes.csv.{suffix}")["scenario"]
    assert (values["separator"], values["encoding"], values["decimal"]) == (";", "latin-1", ",")


def test_owners_in_digits_stay_apart() -> None:
    lines = [f"{RNG.normal():.2f},{['01', '1', '001'][row % 3]},{'yn'[row // 3 % 2]}" for row in range(90)]
    Path("wards.csv").write_text("\n".join(["size,ward,ill", *lines]) + "\n")
    first = first_config("wards.csv")
    assert first.config.resolved()["scenario"]["owner"] == "ward"
    assert "drop" not in first.sections["scenario"]
    assert first.scenario.train_set.domains == ("001", "01", "1")


def test_a_person_is_asked_for_the_columns() -> None:
    patients()
    questions = list[tuple[str, list[str], str]]()

    def ask(question: str, choices: Any, default: str) -> str:
        questions.append((question, list(choices), default))
        return {"Which column is the class?": "job"}.get(question, "none")

    values = first_config("patients.csv", ask=ask).config.resolved()["scenario"]
    assert (values["label"], values["owner"]) == ("job", None)
    assert [default for _, _, default in questions] == ["ill", "ward"]
    assert "age" not in questions[0][1]
    with pytest.raises(FedloomError, match=r"jobs: patients.csv has no such column: did you mean 'job'"):
        first_config("patients.csv", ask=lambda *_: "jobs")


@pytest.mark.parametrize(
    ("size", "mode", "pixels", "channels", "model"),
    [((30, 28), "L", 28, 1, "lenet5"), ((40, 44), "RGB", 32, 3, "lenet5"), ((90, 80), "RGBA", 64, 3, "resnet8")],
)
def test_pictures_keep_a_sensible_size(size: Any, mode: str, pixels: int, channels: int, model: str) -> None:
    pictures("pets", "ab", size, mode)
    first = first_config("pets")
    values = first.config.resolved()["scenario"]
    assert (values["size"], values["channels"], first.config.model) == (pixels, channels, model)


def test_pictures_arrays_texts_and_built_in_sets_run() -> None:
    pictures("pets", "ab", (28, 28), "L")
    x, y = RNG.normal(size=(120, 5)).astype(np.float32), np.arange(120) % 3
    np.savez("arrays.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    Path("texts").mkdir()
    lines = [f"{'bad' if number % 2 else 'good'}\tfilm number {number % 7}" for number in range(60)]
    for name in ("train.tsv", "test.tsv"):
        Path("texts", name).write_text("\n".join(lines) + "\n")
    assert runs_unchanged("pets")["model"] == "lenet5"
    assert runs_unchanged("arrays.npz")["model"] == "mlp"
    assert runs_unchanged("texts")["model"] == "bilstm"
    assert runs_unchanged("digits")["model"] == "digits-cnn"


def test_marks_among_labels_and_numbers_of_rows() -> None:
    lines = [f"{row},{RNG.normal():.3f},{'NA' if row % 10 == 0 else 'ab'[row % 2]}" for row in range(90)]
    Path("marks.csv").write_text("\n".join(["patientId,x,species", *lines]) + "\n")
    values = runs_unchanged("marks.csv")["scenario"]
    assert values["missing"] == ["NA"]
    assert values["incomplete"] == "drop"
    assert values["drop"] == ["patientId"]


def test_few_samples_are_dealt_at_random() -> None:
    rows = "\n".join(f"{RNG.normal():.3f},{row % 2}" for row in range(24))
    Path("few.csv").write_text(f"size,kind\n{rows}\n")
    values = runs_unchanged("few.csv", label="kind")
    assert values["scenario"]["partition"] == "iid"
    assert values["scenario"]["clients"] == 2


def test_rows_of_persons_stay_together() -> None:
    rows = [f"{person},{RNG.normal():.3f},{'yn'[person % 2]}" for person in RNG.permutation(np.repeat(range(60), 5))]
    Path("visits.csv").write_text("\n".join(["person,size,ill", *rows]) + "\n")
    values = runs_unchanged("visits.csv")["scenario"]
    assert (values["group"], values["partition"], "drop" in values) == ("person", "dirichlet", False)
    assert runs_unchanged("visits.csv")["evaluation"]["intervals"] == {"by": "group"}
    values = runs_unchanged("visits.csv", owner="person")["scenario"]
    assert {key: values.get(key) for key in ("group", "owner", "partition", "clients")} == {
        "group": "person",
        "owner": None,
        "partition": "iid",
        "clients": 10,
    }


def bad_data() -> None:
    Path("one.csv").write_text("a\n1\n2\n")
    Path("empty.csv").write_text("")
    Path("bytes.csv").write_bytes(b"\x00\x01" * 99)
    Path("measured.csv").write_text("a,b\n" + "\n".join(f"{RNG.random()},{RNG.random()}" for _ in range(60)))
    Path("headless.csv").write_text("\n".join(f"{RNG.random()},{RNG.random()},1" for _ in range(60)))
    Path("single.csv").write_text("a,class\n" + "\n".join(f"{RNG.random()},x" for _ in range(60)))
    Path("unclear.csv").write_text("a,b,c\n" + "\n".join(f"{n % 2},{n % 3},{RNG.random()}" for n in range(60)))
    Path("ragged.csv").write_text("a,b\n1,2\n1,2,3\n")
    Path("sheet.xlsx").write_bytes(b"PK\x03\x04")
    Path("array.npy").write_bytes(b"")
    Path("half.npz").write_bytes(b"PK")
    pictures("single", "a", (9, 9), count=3)
    for name in "ab":
        pictures("sparse", name, (9, 9), count=1)
    Path("nothing").mkdir()
    Path("tables").mkdir()
    Path("tables/a.csv").write_text("a,b\n1,2\n")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("one.csv", r"has 1 column \('a'\); need a label and at least one column"),
        ("empty.csv", "cannot be read as csv"),
        ("bytes.csv", "NUL byte"),
        ("measured.csv", "no column looks like a class .* name it with --label"),
        ("headless.csv", "its first line looks like a row; put a line with the columns' names there"),
        ("single.csv", "no column looks like a class"),
        ("unclear.csv", "name the column of the class with --label: a, b"),
        ("ragged.csv", "Expected 2 columns, got 3"),
        ("sheet.xlsx", "save the sheet as CSV"),
        ("array.npy", "save samples and labels in one .npz"),
        ("half.npz", "cannot be read as .npz"),
        ("single", "all pictures are of one class, 'a'"),
        ("sparse", "all training samples are of one class .*, and more samples of [ab]: all that there are are kept"),
        ("nothing", "holds no pictures"),
        ("tables", "holds a.csv; name the file, as in --from tables/a.csv"),
        ("nowhere.csv", "no such file or folder"),
        ("digit", "did you mean 'digits'"),
        ("csv", "this source reads your own data"),
        ("given", "this source reads your own data"),
    ],
)
def test_data_that_cannot_be_read_give_one_line(data: str, says: str) -> None:
    bad_data()
    with pytest.raises(FedloomError, match=says) as caught:
        first_config(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"label": "il"}, "did you mean 'ill'"),
        ({"owner": "wards"}, "did you mean 'ward'"),
        ({"label": "ward", "owner": "ward"}, "no such column apart from the label"),
    ],
)
def test_wrong_columns_give_one_line(columns: dict[str, str], says: str) -> None:
    patients()
    with pytest.raises(FedloomError, match=says):
        first_config("patients.csv", **columns)
    with pytest.raises(FedloomError, match="which this is not"):
        first_config("digits", **columns)


# -- the hub -----------------------------------------------------------------------------------------------------------
def ask_the_hub(monkeypatch: pytest.MonkeyPatch, features: dict[str, Any] | None, splits: Any = ()) -> None:
    """Replace the package datasets by one that knows a single set."""

    def load_dataset_builder(name: str) -> Any:
        if features is None:
            raise ConnectionError("no network\nat all")
        return SimpleNamespace(info=SimpleNamespace(features=features, splits=dict.fromkeys(splits)))

    module = ModuleType("datasets")
    module.load_dataset_builder = load_dataset_builder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


class ClassLabel:
    """A column of classes, as the package datasets has it."""


class Value(SimpleNamespace):
    """A column of plain values of a dtype."""


Picture = type("Image", (), {})


def test_the_hub_says_which_columns_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_the_hub(monkeypatch, {"img": Picture(), "fine": ClassLabel()}, ["train", "test"])
    assert {key: value for key, (value, _) in hub_keys("some/pictures", None).items()} == {
        "source": "hf",
        "dataset": "some/pictures",
        "label": "fine",
        "image": "img",
        "train_split": "train",
        "test_split": "test",
    }
    ask_the_hub(monkeypatch, {"title": Value(dtype="string"), "stars": Value(dtype="int64")}, ["train"])
    keys = hub_keys("some/texts", "stars")
    assert [keys[key][0] for key in ("text", "label", "test_split")] == ["title", "stars", None]
    assert "a fifth of each class is held out" in keys["test_split"][1]
    findings = {"img": Picture(), "age": Value(dtype="int64"), "findings": Value(feature=ClassLabel())}
    ask_the_hub(monkeypatch, findings | dict.fromkeys("ab", Value(dtype="int64")))
    for label, expected in ((None, "findings"), ("a,b", ["a", "b"])):
        keys = hub_keys("some/scans", label)
        assert (keys["labels"][0], keys["label"][0]) == ("multi", expected)
    with pytest.raises(FedloomError, match="--label c: some/scans has no such column"):
        hub_keys("some/scans", "a,c")


@pytest.mark.parametrize(
    ("features", "label", "says"),
    [
        (None, None, r"the hub cannot be asked for it \(no network at all\)"),
        ({"text": Value(dtype="string")}, None, "no column of classes; name it with --label: text"),
        ({"label": ClassLabel()}, "labels", "did you mean 'label'"),
        ({"label": ClassLabel(), "height": Value(dtype="float32")}, None, "has no pictures and no texts"),
    ],
)
def test_a_set_of_the_hub_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, features: Any, label: str | None, says: str
) -> None:
    ask_the_hub(monkeypatch, features)
    with pytest.raises(FedloomError, match=says) as caught:
        hub_keys("some/set", label)
    assert "\n" not in str(caught.value)


def test_missing_cells_cost_columns_before_rows_and_rows_only_where_they_are_few() -> None:
    def table(name: str, lacking_age: int) -> dict[str, Any]:
        rows = [
            f"{'' if row < lacking_age else f'{RNG.normal():.2f}'},{'' if row % 20 < 9 else row % 13},"
            f"{RNG.normal():.2f},{'' if row == 77 else 'ab'[row % 2]}"
            for row in range(100)
        ]
        Path(name).write_text("\n".join(["age,chol,size,ill", *rows]) + "\n")
        return runs_unchanged(name)["scenario"]

    values = table("few.csv", 4)
    assert (values["drop_columns"], values["incomplete"], "drop" in values) == ({"above": 0.4}, "drop", False)
    text = Path("first.yaml").read_text()
    assert "# leaves out chol (45)" in text
    assert "# missing cells of 100 rows: chol 45, age 4, ill 1; 4 labelled rows (4.0%) lack a feature" in text
    values = table("many.csv", 6)
    assert (values["incomplete"], values["impute"]["indicator"]) == ("impute", True)
