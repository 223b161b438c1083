"""DICOM and NIfTI files, by the packages of the extra `medical`. Sizes in headers are bounded before they are used."""

import gzip
import hashlib
import io
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from fedloom.core.errors import DataError, MissingPackageError
from fedloom.data.sources.files import Files

PATIENT = "PatientID"
SUFFIXES = (".dcm", ".dicom", ".nii", ".nii.gz")
# No other element of a header is read, except for `PATIENT`. The first five are needed.
_PIXELS = [
    *("Rows", "Columns", "BitsStored", "PhotometricInterpretation", "PixelData", "BitsAllocated", "HighBit"),
    *("SamplesPerPixel", "NumberOfFrames", "PlanarConfiguration", "PixelRepresentation", "RescaleSlope"),
    *("RescaleIntercept", "ModalityLUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction"),
]
_MOST_PIXELS, _MOST_VOXELS, _LARGEST_OFFSET = 64_000_000, 2**28, 2**24  # the last one is in bytes


def is_dicom(raw: bytes) -> bool:
    """Tell whether these bytes begin as a DICOM file does."""
    return raw[128:132] == b"DICM"


def may_be_dicom(name: str) -> bool:
    """Tell whether a file has a suffix of DICOM, or none (digits behind a dot are none)."""
    suffix = PurePosixPath(name).suffix.lower()
    return suffix in SUFFIXES[:2] or suffix[1:].isdecimal() or not suffix


def is_nifti(name: str) -> bool:
    """Tell whether a file has a suffix of NIfTI."""
    return name.lower().endswith(SUFFIXES[2:])


def is_bare_dicom(files: Files, name: str) -> bool:
    """Tell whether a file of a folder is DICOM without a suffix; in archives none is looked for."""
    if may_be_dicom(name) and not name.upper().endswith("DICOMDIR"):
        with suppress(OSError), (files.path / name).open("rb") as stream:
            return is_dicom(stream.read(132))
    return False


def patients(group: object, files: Files, names: Sequence[str]) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return a hash of the patient's id in each of the DICOM files [n], with a note, if `group` asks for it, or no key
    does and one has several files; else None. Raises `DataError` for files without an id that must have one."""
    ids = dict.fromkeys(names, "")
    is_read = group == PATIENT or (group is None and any(map(may_be_dicom, names)))
    for name, raw in files.read_each(names) if is_read else ():
        with suppress(ValueError), warnings.catch_warnings():  # a damaged file is left to whoever decodes it
            warnings.simplefilter("ignore")  # they would print the id
            if patient := str(_dicom(raw, name, [PATIENT]).get(PATIENT) or "").strip():
                ids[name] = hashlib.sha256(patient.encode()).hexdigest()
    without, counts = [name for name in names if not ids[name]], Counter(ids.values())
    if without and group == PATIENT:
        first = files.display_name(without[0])
        raise DataError(f"scenario.group = {PATIENT}: {len(without):,} of {len(names):,} files have none, as {first}")
    if group is None and is_read and len(counts.keys() - {""}) == 1 < len(names):
        return None, (f"all DICOM files have one {PATIENT}, as anonymous ones do, so patients are not kept together",)
    if not is_read or (group is None and len(counts) + max(0, len(without) - 1) == len(names)):
        return None, ()
    known = len(names) - len(without)
    note = f"{len(counts) - bool(without):,} patients (PatientID) of {known:,} DICOM files stay in one part"
    note += f", {len(without):,} other files are a group each" if without else ""
    return np.array([ids[name] or name for name in names], np.str_), (f"{note}; `group: none` parts them",)


def _package(name: str, label: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise MissingPackageError(f"{label}: needs the package {name}: pip install 'fedloom[medical]'") from None


def _dicom(raw: bytes, label: str, elements: list[str]) -> Any:
    """Return the named elements of a DICOM file that are not empty, and no others."""
    pydicom = _package("pydicom", label)
    if not is_dicom(raw):
        raise ValueError("no DICOM file: DICM is missing at byte 128")
    if b"1.2.840.10008.1.2.1.99" in raw:  # zlib would unpack any size
        raise ValueError("deflated as a whole; save it uncompressed")
    try:
        data = pydicom.dcmread(io.BytesIO(raw), stop_before_pixels=elements is not _PIXELS, specific_tags=elements)
        for element in [element for element in data if element.is_empty]:
            del data[element.tag]
    except Exception as error:  # pydicom has no one kind of error for damaged files
        raise ValueError(f"damaged header, {type(error).__name__}") from None
    return data


def dicom_pixels(raw: bytes, label: str, notes: Any) -> np.ndarray:
    """Return the pixels of the DICOM file `label` from its bytes `raw`: grey as float32 [h, w] from 0 (black) to 255,
    through the first window; uint8 if that changes nothing; colours [h, w, 3]. `notes` count files."""
    data, pixels = _dicom(raw, label, _PIXELS), _package("pydicom.pixels", label)
    if missing := [name for name in _PIXELS[:5] if name not in data]:
        raise ValueError(f"its header has no {missing[0]}")
    kind, samples = str(data.PhotometricInterpretation), int(data.get("SamplesPerPixel", 1))
    frames, grey = int(data.get("NumberOfFrames", 1)), kind in ("MONOCHROME1", "MONOCHROME2")
    if data.Rows * data.Columns * samples > _MOST_PIXELS:
        raise ValueError(f"{data.Columns} x {data.Rows} pixels are too many")
    if frames != 1:
        raise ValueError(f"{frames:,} frames; save each frame as a file")
    if not (grey or kind.startswith(("RGB", "YBR_"))) or samples != (1 if grey else 3) or "ModalityLUTSequence" in data:
        raise ValueError(f"{samples} channels of {kind[:20]}, or a table of levels; save MONOCHROME2 or RGB")
    syntax = data.file_meta.TransferSyntaxUID
    if syntax.is_compressed and not pixels.get_decoder(syntax).is_available:
        how = f"pixels are compressed as {syntax.name}"
        raise MissingPackageError(f"{label}: {how}, which needs further packages: pip install 'pylibjpeg[all]'")
    stored, bits = np.asarray(pixels.pixel_array(data)), int(data.BitsStored)
    has_window = "WindowCenter" in data
    notes.add("dicom", label)
    if not grey or (not has_window and bits == 8 and stored.dtype == np.uint8 and "RescaleSlope" not in data):
        if stored.dtype != np.uint8:
            raise ValueError("colours of more than 8 bits")
        return 255 - stored if kind == "MONOCHROME1" else stored
    lowest = -(2 ** (bits - 1)) if data.get("PixelRepresentation") else 0
    low, high = pixels.apply_rescale(np.array([lowest, lowest + 2**bits - 1]), data)
    shades = (pixels.apply_windowing(pixels.apply_rescale(stored, data), data) - low) / (high - low)
    if not low < high or not np.isfinite(shades).all():
        raise ValueError("RescaleSlope is not above 0, or the window not finite")
    notes.add("window" if has_window else "range", label)
    shades = np.clip(shades, 0, 1)
    return np.asarray((1 - shades if kind == "MONOCHROME1" else shades) * 255, np.float32)


def nifti_voxels(raw: bytes, label: str, notes: Any, size: int | None) -> np.ndarray:
    """Return the values of the NIfTI file `label` from its bytes `raw`, float32 [h, w] or [d, h, w] (superior,
    anterior, right), each side resized to `size` unless it is None. `notes` count files."""
    nibabel = _package("nibabel", label)
    stream: Any = io.BytesIO(raw) if raw[:2] != b"\x1f\x8b" else gzip.GzipFile(fileobj=io.BytesIO(raw))
    start = stream.read(540)
    if start[344:348] != b"n+1\0" and start[4:8] != b"n+2\0":
        raise ValueError("no NIfTI file with its voxels in it")
    image_class = nibabel.Nifti2Image if start[4:8] == b"n+2\0" else nibabel.Nifti1Image
    header = image_class.header_class.from_fileobj(io.BytesIO(start), check=False)
    shape, dtype, offset = header.get_data_shape(), header.get_data_dtype(), header.get_data_offset()
    count, voxels_of = math.prod(shape), f"{' x '.join(map(str, shape))} voxels"
    if math.prod(shape[3:]) != 1:
        raise ValueError(f"{voxels_of} are several volumes; save each volume as a file")
    if min(shape, default=0) < 1 or max(count / _MOST_VOXELS, offset / _LARGEST_OFFSET) > 1 or dtype.kind not in "iuf":
        raise ValueError(f"{voxels_of} of type {dtype} from byte {offset} are too many, or no numbers")
    needed = offset + count * dtype.itemsize
    body = start + stream.read(max(0, needed - len(start)))
    if len(body) < needed:
        raise ValueError(f"ends after {len(body):,} of {needed:,} bytes")
    with nibabel.imageglobals.LoggingOutputSuppressor():
        stored = image_class.from_bytes(body)
        values = np.asarray(stored.dataobj, np.float32).reshape((*shape, 1, 1)[:3])
        image = nibabel.as_closest_canonical(image_class(values, stored.affine, stored.header))
    voxels, zooms = np.asarray(image.dataobj).T, image.header.get_zooms()[2::-1]
    axes = [axis for axis, side in enumerate(voxels.shape) if side > 1]
    if len(axes) < 2 or not np.isfinite(voxels).all():
        raise ValueError(f"{voxels_of} are no picture, or some are NaN or infinite")
    for kind in ("nifti",) if header["qform_code"] or header["sform_code"] else ("nifti", "unoriented"):
        notes.add(kind, label)
    notes.spacings[" x ".join(f"{zooms[axis]:.3g}" for axis in axes)] += 1
    voxels = np.ascontiguousarray(voxels.squeeze())
    if size is None:
        return voxels
    x = torch.from_numpy(voxels)[None, None]
    # Bilinear with antialiasing takes two axes at a time: planes first, then their stack.
    if x.dim() == 5:
        x = interpolate(x[0], (size, size), mode="bilinear", antialias=True).reshape(1, 1, -1, size**2)
    x = interpolate(x, (size, size ** (len(axes) - 1)), mode="bilinear", antialias=True)
    return np.asarray(x.numpy().reshape((size,) * len(axes)))
