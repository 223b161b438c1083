"""Data that are wrong, at the command line: exit code 2, one line, nothing left behind."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml

from fedloom.cli.app import main

TABLE = "age,job,ward,ill\n" + "".join(f"{n % 9},{'ab'[n % 2]},{n % 4},{n // 2 % 2}\n" for n in range(40))
OWN_ROW = "age,id,ill\n" + "".join(f"{n % 9},{n},{n % 2}\n" for n in range(40))


def npz(**changed) -> bytes:
    x, y = np.zeros((40, 4), np.float32), np.arange(40) % 2
    stream = io.BytesIO()
    np.savez(stream, **({"x_train": x, "y_train": y, "x_test": x, "y_test": y} | changed))
    return stream.getvalue()


def huge() -> bytes:
    """`x_train` states 2^50 rows and holds none."""
    stream = io.BytesIO(npz())
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**50}, 4), }}"
    with zipfile.ZipFile(stream) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["x_train.npy"] = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117).encode() + b"\n"
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
    return written.getvalue()


LABELS = np.arange(40) % 2
CSV = ("label=ill",)
CASES = {
    "negative seed": ("digits", b"", ("seed=-1",), "scenario.seed = -1: input should be greater than or equal to 0"),
    "large seed": ("digits", b"", (f"seed={2**63}",), "scenario.seed = 9223372036854775808: "),
    "huge header": ("npz", huge(), (), "states shape (1125899906842624, 4)"),
    "NaN features": ("npz", npz(x_test=np.full((40, 4), np.nan)), (), "160 values are NaN or infinite"),
    "no label column": ("csv", TABLE.encode(), ("label=sick",), "label = 'sick' is no column"),
    "label not named": ("csv", TABLE.encode(), (), "scenario.label is missing"),
    "empty file": ("csv", b"", CSV, "cannot be read as csv"),
    "one row per owner": ("csv", OWN_ROW.encode(), (*CSV, "owner=id"), "no owner has samples enough"),
    "no table": ("parquet", TABLE.encode(), CSV, "cannot be read as parquet"),
    "wide separator": ("csv", TABLE.encode(), (*CSV, "separator=;;"), "scenario.separator = ';;'"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_exit_code_2(case, tmp_path: Path, monkeypatch, capsys):
    source, raw, keys, message = CASES[case]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"data.{source}"
    path.write_bytes(raw)
    given = {"source": source, "partition": "iid", "clients": 2} | ({} if source == "digits" else {"path": path.name})
    given |= {key: yaml.safe_load(value) for key, value in (word.split("=") for word in keys)}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"scenario": given}))
    with pytest.raises(SystemExit) as ended:
        main(["inspect", "run.yaml"])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert message in said.err
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "run.yaml"]
