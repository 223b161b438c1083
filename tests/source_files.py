"""Small data sets in the layouts that publishers use, written by the tests that read them."""

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def pixels(seed: int, size: int = 8, channels: int = 3) -> np.ndarray:
    """A picture [size, size, channels] or [size, size], uint8, different for each seed."""
    shape = (size, size, channels) if channels > 1 else (size, size)
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def encoded(array: np.ndarray, kind: str = "PNG") -> bytes:
    """The bytes of an image file."""
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, kind)
    return stream.getvalue()


def write_tree(folder: Path, files: dict[str, bytes]) -> Path:
    """Files by their path below `folder`."""
    for name, raw in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)
    return folder


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in files.items():
            archive.writestr(name, raw)
    return path


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    """Compressed as the suffix says."""
    kind = {".gz": "gz", ".xz": "xz", ".tar": ""}[path.suffix]
    with tarfile.open(path, f"w:{kind}") as archive:
        for name, raw in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return path


def prefixed(top: str, files: dict[str, bytes]) -> dict[str, bytes]:
    """The same files in a folder `top`."""
    return {f"{top}/{name}": raw for name, raw in files.items()}
