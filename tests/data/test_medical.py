"""DICOM and NIfTI files: values, orientation, groups by patient, and one line for files that cannot be read."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedloom.cli.app import app
from fedloom.core.errors import ConfigError, DataError, FedloomError
from fedloom.data.sources import medical
from fedloom.data.sources.files import Files
from fedloom.data.sources.image_folders import ImageFolder
from fedloom.data.sources.listed import FileNames
from fedloom.data.sources.pixels import PictureNotes, decode, read_pixels
from fedloom.data.sources.source import load_splits

RAMP = np.arange(64, dtype=np.int16).reshape(8, 8)


def dicom(path: Path, pixels: np.ndarray = RAMP, patient: str | None = "JONES-7", **elements: Any) -> bytes:
    pydicom = pytest.importorskip("pydicom", reason="needs the extra medical")
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = elements.pop("syntax", pydicom.uid.ExplicitVRLittleEndian)
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = "1.2.3"
    data.PatientName, bits = "Jones^Mary", 8 * pixels.dtype.itemsize
    if patient is not None:
        data.PatientID = patient
    data.Rows, data.Columns = pixels.shape[:2]
    data.SamplesPerPixel, data.PlanarConfiguration = pixels.shape[2] if pixels.ndim == 3 else 1, 0
    data.PhotometricInterpretation = "RGB" if pixels.ndim == 3 else "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit = bits, bits, bits - 1
    data.PixelRepresentation, data.PixelData = int(pixels.dtype.kind == "i"), pixels.tobytes()
    for name, value in elements.items():
        if value is None:
            delattr(data, name)
        else:
            setattr(data, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return path.read_bytes()


def nifti(path: Path, values: np.ndarray, affine: np.ndarray | None = None) -> bytes:
    nibabel = pytest.importorskip("nibabel", reason="needs the extra medical")
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine), path)
    return path.read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve patients with three slices each, and a third of the files without a suffix."""
    rng = np.random.default_rng(0)
    for patient in range(12):
        for number in range(3):
            pixels = rng.integers(0, 800, (8, 8)).astype(np.int16) + 200 * (patient % 2)
            name = f"{'ill' if patient % 2 else 'well'}/im{patient}_{number}{'.dcm' if number else ''}"
            dicom(tmp_path / "scans" / name, pixels, f"SECRET{patient}", WindowCenter=500, WindowWidth=1000)
    return tmp_path / "scans"


def pixels_of(raw: bytes, name: str = "a.dcm", channels: int | None = 1) -> np.ndarray:
    return read_pixels(raw, name, channels, PictureNotes())


def test_the_first_window_is_applied_to_rescaled_levels(tmp_path: Path) -> None:
    keys = {"RescaleSlope": 2, "RescaleIntercept": -10, "WindowCenter": [50, 900], "WindowWidth": [41, 1]}
    # DICOM PS3.3 C.11.2.1.2.1: ((x - (c - 0.5)) / (w - 1) + 0.5) * 255, in [0, 255]
    expected = np.clip(((2.0 * RAMP - 10) - 49.5) / 40 + 0.5, 0, 1) * 255
    np.testing.assert_allclose(pixels_of(dicom(tmp_path / "a.dcm", **keys)), expected, atol=1e-4)
    inverse = pixels_of(dicom(tmp_path / "b.dcm", PhotometricInterpretation="MONOCHROME1", **keys))
    np.testing.assert_allclose(inverse, 255 - expected, atol=1e-4)


def test_without_a_window_the_stored_bits_are_the_range(tmp_path: Path) -> None:
    pixels = pixels_of(dicom(tmp_path / "a.dcm", RAMP - 32, BitsStored=12, HighBit=11, WindowCenter="", WindowWidth=""))
    np.testing.assert_allclose(pixels, (RAMP - 32.0 + 2048) / 4095 * 255, atol=1e-4)
    bytes_ = pixels_of(dicom(tmp_path / "b.dcm", RAMP.astype(np.uint8)))
    assert bytes_.dtype == np.uint8
    assert (bytes_ == RAMP).all()


def test_colours_are_read_as_those_of_other_pictures(tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    raw = dicom(tmp_path / "a.dcm", colours)
    assert (pixels_of(raw, channels=3) == colours).all()
    assert pixels_of(raw, channels=1).shape == (8, 8)


def test_voxels_are_turned_to_right_anterior_superior(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(4, 4, 4)).astype(np.float32)
    to_left = np.diag([-2.0, 1, 3, 1])  # the first axis runs from right to left
    notes = PictureNotes()
    read = decode(nifti(tmp_path / "a.nii.gz", values, to_left), "a.nii.gz", 4, 1, notes)
    np.testing.assert_allclose(read[0], values[::-1].transpose(2, 1, 0), atol=1e-6)
    assert "3 x 1 x 2 in 1" in notes.sentences()[0]
    assert decode(nifti(tmp_path / "b.nii", values[:, :, :1]), "b.nii", 4, 3, notes).shape == (3, 4, 4)


def test_patients_are_groups_unless_a_key_says_none(folder: Path) -> None:
    splits = load_splits(ImageFolder(path=folder, size=8, channels=1))
    assert len(splits.train) + len(splits.test) == 36
    assert splits.train.group is not None
    assert splits.test.group is not None
    assert not {*splits.train.group.tolist()} & {*splits.test.group.tolist()}
    assert any("12 patients (PatientID) of 36 DICOM files" in note for note in splits.notes)
    assert "SECRET" not in repr(splits)
    assert "Jones" not in " ".join(splits.notes)
    assert load_splits(ImageFolder(path=folder, size=8, group="none")).train.group is None
    dicom(folder / "ill/x.dcm", patient=None)
    with pytest.raises(DataError, match="PatientID: 1 of 37 files have none"):
        load_splits(ImageFolder(path=folder, size=8, group="PatientID"))


def test_a_table_lists_scans_with_their_patients(folder: Path) -> None:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("im*"))
    rows = [f"{name},{name.split('/')[0]},{number}" for number, name in enumerate(names)]
    (folder / "labels.csv").write_text("\n".join(["file,label,PatientID", *rows]))
    keys: dict[str, Any] = {"path": folder / "labels.csv", "label": "label", "size": 8, "channels": 1}
    assert len(load_splits(FileNames(**keys, group="PatientID")).train.group.unique()) > 12  # the column
    (folder / "labels.csv").write_text("\n".join(["file,label", *(row.rpartition(",")[0] for row in rows)]))
    for group in (None, "PatientID"):
        splits = load_splits(FileNames(**keys, group=group))
        assert len({*splits.train.group.tolist(), *splits.test.group.tolist()}) == 12


def test_init_run_and_predict_read_scans(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ["init", "--from", "scans", "--out", "a.yaml"],
        ["run", "a.yaml", "--out", "r", "rounds=1"],
        ["predict", "r", "scans/ill/im1_0", "scans/ill/im1_1.dcm"],
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert not [path for path in (tmp_path / "r").rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()]


BAD_SCANS = {
    "no pixels": ({"PixelData": None}, "its header has no PixelData"),
    "frames": ({"NumberOfFrames": 3}, "3 frames; save each frame as a file"),
    "huge": ({"Rows": 65535, "Columns": 65535}, "65535 x 65535 pixels are too many"),
    "short": ({"Rows": 9}, "cannot be decoded"),
    "palette": ({"PhotometricInterpretation": "PALETTE COLOR"}, "save MONOCHROME2 or RGB"),
    "slope": ({"RescaleSlope": 0, "RescaleIntercept": 1}, "RescaleSlope is not above 0"),
    "width": ({"WindowCenter": 5, "WindowWidth": 0}, "Window Width"),
}


@pytest.mark.parametrize("kind", BAD_SCANS)
def test_a_bad_scan_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    elements, message = BAD_SCANS[kind]
    raw = dicom(tmp_path / "a.dcm", **elements)
    with pytest.raises(DataError, match=message) as error:
        pixels_of(raw)
    assert str(error.value).startswith("a.dcm: ")
    assert "\n" not in str(error.value)
    assert "Jones" not in str(error.value)


def test_other_bytes_are_no_scans(tmp_path: Path) -> None:
    whole = dicom(tmp_path / "a.dcm")
    deflated = whole[:132] + b"1.2.840.10008.1.2.1.99" + zlib.compress(bytes(100))
    for raw in (b"", b"PK\x03\x04" + bytes(300), whole[:200], deflated):
        with pytest.raises(DataError, match=r"^a\.dcm: cannot be decoded"):
            pixels_of(raw)


def test_a_syntax_without_decoder_names_the_package(tmp_path: Path) -> None:
    pydicom = pytest.importorskip("pydicom", reason="needs the extra medical")
    if pydicom.pixels.get_decoder(pydicom.uid.JPEGLSLossless).is_available:
        pytest.skip("JPEG-LS can be decoded here")
    encoded = pydicom.encaps.encapsulate([b"no pixels"])
    raw = dicom(tmp_path / "a.dcm", syntax=pydicom.uid.JPEGLSLossless, PixelData=encoded)
    with pytest.raises(ConfigError, match=r"a\.dcm: .*JPEG-LS.*pip install 'pylibjpeg\[all\]'"):
        pixels_of(raw)


def test_bad_volumes_are_refused_in_one_line(tmp_path: Path) -> None:
    cube = np.zeros((4, 4, 4), np.float32)
    whole = nifti(tmp_path / "a.nii", cube)
    huge = bytearray(whole)
    huge[42:48] = np.array([30000] * 3, "<i2").tobytes()
    cases = {
        "several volumes": nifti(tmp_path / "b.nii", np.zeros((4, 4, 4, 2), np.float32)),
        "too many": bytes(huge),
        "too many, or no numbers": nifti(tmp_path / "d.nii", cube.astype(np.complex64)),
        "ends after": whole[:400],
        "NaN or infinite": nifti(tmp_path / "c.nii", cube * np.nan),
        "no NIfTI file": bytes(400),
        "cannot be decoded": gzip.compress(whole)[:40],
    }
    for message, raw in cases.items():
        with pytest.raises(DataError, match=message) as error:
            pixels_of(raw, "a.nii")
        assert "\n" not in str(error.value)


def test_formats_that_do_not_mix_are_refused(folder: Path) -> None:
    nifti(folder / "ill/a.nii", np.ones((4, 4, 4), np.float32))
    with pytest.raises(DataError, match="1 of 37 files are NIfTI"):
        load_splits(ImageFolder(path=folder, size=8))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(medical, "import_module", missing)
    for raw, name in ((bytes(128) + b"DICM", "a.dcm"), (bytes(400), "a.nii")):
        with pytest.raises(FedloomError, match=r"pip install 'fedloom\[medical\]'"):
            pixels_of(raw, name)


def test_files_without_a_scan_have_no_patients(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    assert medical.patients(None, Files(tmp_path), ["a.png"]) == (None, ())
