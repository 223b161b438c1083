"""Doors: pictures of every depth, mode and format, in class folders."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from doors.door import Door
from doors.encoders import netpbm, png16, tiff

DEEP = (("more than 256 levels: 10 of 10", "real numbers from 0 to 255"),)
DARK = (*DEEP, ("16 bits that use the lower 12 at most: 10 of 10", "normalise=own"))
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
READ = {"train": 8, "test": 2}


def grey(number: int, step: int = 4) -> np.ndarray:
    """64 levels [8, 8]: 0, step, .. 63 * step, in an order that depends on `number`; bytes, if they fit."""
    return np.roll(np.arange(64) * step, number).astype(np.uint8 if step <= 4 else np.int64).reshape(8, 8)


def blank(level: int) -> np.ndarray:
    return np.full((8, 8), level, np.uint8)


def colour(number: int, step: int = 4) -> np.ndarray:
    return np.stack([grey(number + shift, step) for shift in (0, 20, 40)], axis=2)


def alpha(number: int, ink: tuple[int, ...]) -> np.ndarray:
    """A drawing [8, 8, c] that is in the transparency alone: `ink` everywhere."""
    return np.dstack([blank(level) for level in ink] + [grey(number)])


def saved(image: Image.Image, kind: str = "PNG", **how: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **how)
    return stream.getvalue()


def encoded(pixels: np.ndarray, kind: str = "PNG", mode: str | None = None, **how: Any) -> bytes:
    image = Image.fromarray(pixels)
    return saved(image if mode is None else image.convert(mode), kind, **how)


def palette(number: int) -> bytes:
    """Pixels are the indices 0 and 1, which stand for grey 40 and 250."""
    image = Image.fromarray((grey(number) > 100).astype(np.uint8))
    image.putpalette([40, 40, 40, 250, 250, 250])
    return saved(image)


def frames(number: int, kind: str) -> bytes:
    first, *later = (Image.fromarray(grey(number + shift)) for shift in (0, 1))
    return saved(first, kind, save_all=True, append_images=later)


def folder(draw: Callable[[int], bytes], suffix: str = ".png", **keys: Any) -> Callable[[Path], dict[str, Any]]:
    """Writes five pictures of each of two classes, numbered on."""

    def write(path: Path) -> dict[str, Any]:
        for number in range(10):
            file = path / "ab"[number % 2] / f"{number}{suffix}"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(draw(number))
        return {"source": "image-folder", "path": path, "size": 8, "channels": 1} | keys

    return write


def reads(name: str, draw: Callable[[int], bytes], suffix: str = ".png", **facts: Any) -> Door:
    """A door of pictures that are read. keys, notes: of the source, and what it says; all others are facts."""
    keys, notes = facts.pop("keys", {}), facts.pop("notes", ())
    return Door(name, folder(draw, suffix, **keys), READ | facts, notes)


def refuses(name: str, draw: Callable[[int], bytes], *words: str, suffix: str = ".png") -> Door:
    return Door(name, folder(draw, suffix), refused=words)


RGB = {"channels": 3}
FULL = {"levels": 64, "range": (0.0, 252.0)}

DOORS = [
    # depth: 1028 is 4 of 255, in 16 bits
    reads("grey png of 8 bits", lambda n: encoded(grey(n)), **FULL),
    reads("grey png of 16 bits", lambda n: png16(grey(n, 1028)), **FULL, notes=DEEP),
    reads("grey png of 12 bits in 16", lambda n: png16(grey(n, 65)), levels=64, notes=DARK),
    reads("grey png of 16 bits as colour", lambda n: png16(grey(n, 1028)), **FULL, notes=DEEP, keys=RGB),
    reads("colour png of 16 bits", lambda n: png16(colour(n, 1028)), **FULL, notes=DEEP, keys=RGB),
    reads("fine colour png of 16 bits", lambda n: png16(colour(n, 3)), levels=64, notes=DEEP, keys=RGB),
    reads("transparent png of 16 bits", lambda n: png16(np.dstack([colour(n, 1028), grey(n, 1028)])), **FULL,
        notes=DEEP, keys=RGB),
    reads("grey transparent png of 16 bits", lambda n: png16(np.dstack([grey(n, 1028)] * 2)), ".png", levels=64,
        notes=(("more than 8 bits per channel", "the upper 8", "10 of 10"),)),
    reads("grey tiff of 16 bits", lambda n: tiff(grey(n, 1028)), ".tif", **FULL, notes=DEEP),
    reads("grey tiff, big-endian", lambda n: tiff(grey(n, 1028), order=">"), ".tiff", **FULL, notes=DEEP),
    reads("grey tiff, white is zero", lambda n: tiff(65535 - grey(n, 1028), white_is_zero=True), ".tif", **FULL,
          notes=DEEP),
    reads("grey tiff of 12 bits", lambda n: tiff(grey(n, 65), bits=12), ".tif", levels=64, range=(0.0, 255.0),
          notes=DEEP),
    reads("colour tiff of 16 bits", lambda n: tiff(colour(n, 3)), ".tif", levels=64, notes=DEEP, keys=RGB),
    reads("colour tiff, big-endian", lambda n: tiff(colour(n, 3), order=">"), ".tif", levels=64, notes=DEEP, keys=RGB),
    refuses("tiff of real numbers", lambda n: tiff(grey(n) / 9, bits=32, sample_format=3), "mode F has no fixed range",
            suffix=".tif"),
    refuses("tiff of 32 bits", lambda n: tiff(grey(n, 10**6), bits=32), "mode I has no fixed range", suffix=".tif"),
    refuses("tiff of 16 bits with a sign", lambda n: tiff(grey(n) - 100, sample_format=2), "mode I has no fixed",
            suffix=".tif"),
    reads("pgm of 16 bits", lambda n: netpbm(grey(n, 1028), 65535), ".pgm", **FULL, notes=DEEP),
    reads("pgm of 12 bits", lambda n: netpbm(grey(n, 65), 4095), ".pgm", levels=64, range=(0.0, 255.0), notes=DEEP),
    reads("pgm of 8 bits", lambda n: netpbm(grey(n), 255), ".PGM", **FULL),
    reads("ppm of 16 bits", lambda n: netpbm(colour(n, 1028), 65535), ".ppm", **FULL, keys=RGB,
        notes=(("more than 8 bits per channel", "a/8.ppm"),)),
    reads("8 and 16 bits in one set", lambda n: png16(grey(n, 1028)) if n == 7 else encoded(grey(n)), **FULL,
          notes=(("more than 256 levels: 1 of 10",),)),
    # modes and formats
    reads("black and white", lambda n: encoded(grey(n) > 100), levels=2, range=(0.0, 255.0)),
    reads("a palette", palette, levels=2, range=(40.0, 250.0)),
    reads("a palette as colour", palette, levels=2, range=(40.0, 250.0), keys=RGB),
    reads("cmyk jpeg", lambda n: encoded(colour(n), "JPEG", "CMYK"), ".jpg", shape=(3, 8, 8), keys=RGB),
    reads("cmyk tiff as grey", lambda n: encoded(colour(n), "TIFF", "CMYK"), ".tif", shape=(1, 8, 8)),
    reads("lab tiff", lambda n: saved(Image.frombytes("LAB", (8, 8), colour(n).tobytes()), "TIFF"), ".tif"),
    reads("jfif", lambda n: encoded(grey(n), "JPEG"), ".jfif", shape=(1, 8, 8)),
    reads("webp", lambda n: encoded(colour(n), "WEBP", lossless=True), ".webp", **FULL, keys=RGB),
    reads("bmp", lambda n: encoded(grey(n), "BMP"), ".BMP", **FULL),
    reads("gif", lambda n: encoded(grey(n), "GIF"), ".gif", **FULL),
    reads("animated gif", lambda n: frames(n, "GIF"), ".gif", levels=64,
          notes=(("10 of 10", "only the first", "a/8.gif"),)),
    reads("tiff with pages", lambda n: frames(n, "TIFF"), ".tif", **FULL,
          notes=(("10 of 10", "pages", "only the first"),)),
    reads("jpeg that is called png", lambda n: encoded(grey(n), "JPEG"), notes=(("10 of 10", "a/8.png is a JPEG"),)),
    # transparency
    reads("colours beside transparency", lambda n: encoded(np.dstack([colour(n), grey(n)])), **FULL, keys=RGB),
    reads("grey beside transparency", lambda n: encoded(np.dstack([grey(n), grey(n + 1)])), **FULL),
    reads("black ink in the transparency", lambda n: encoded(alpha(n, (0, 0, 0))), levels=64, range=(3.0, 255.0),
          notes=(("drawn in their transparency alone", "10 of 10", "over white"),)),
    reads("white ink in the transparency", lambda n: encoded(alpha(n, (255, 255, 255))), **FULL,
          notes=(("drawn in their transparency alone", "10 of 10",),)),
    reads("grey ink in the transparency", lambda n: encoded(alpha(n, (0,))), levels=64, range=(3.0, 255.0),
          notes=(("drawn in their transparency alone", "10 of 10",),)),
    # nothing to learn from
    reads("a blank picture", lambda n: encoded(grey(n) if n else blank(9)),
          notes=(("constant or nearly so", "1 of 8",),)),
    reads("blank pictures only", lambda n: encoded(blank(7)), notes=(("all 8", "same constant, 7"),)),
    reads("one picture ten times", lambda n: encoded(grey(0)), notes=(("all 8 training samples are the same",),)),
    # damage
    refuses("eps that is called png", lambda n: EPS, "a/8.png", "unknown format", "10 of 10 pictures cannot"),
    refuses("a text that is called png", lambda n: b"<svg/>", "unknown format"),
    refuses("an empty file", lambda n: b"" if n == 4 else encoded(grey(n)), "a/4.png", "unknown format"),
    refuses("truncated", lambda n: encoded(grey(n))[: -30 * (n == 3) or None], "b/3.png", "truncated"),
    refuses("three damaged ones", lambda n: encoded(grey(n))[: -30 * (n < 3) or None], "3 of 10 pictures cannot"),
    refuses("a bomb", lambda n: b"P5 9000 9000 255 " if n == 1 else encoded(grey(n)), "9000 x 9000 pixels are too"),
    refuses("a larger bomb", lambda n: b"P5 99999 99999 255 " if n == 1 else encoded(grey(n)), "b/1.png: cannot be"),
]  # fmt: skip
