"""One reader of pictures: orientation, depth and transparency, the same in training and in `predict`."""

import io

import numpy as np
import pytest
from PIL import Image

from doors.encoders import png16, tiff
from fedloom.core.errors import DataError
from fedloom.data import SOURCES, describe_input
from fedloom.data.sources.pixels import PictureNotes, decode, image_pixels, read_pixels, resized
from fedloom.runs.export.modules import Input
from fedloom.runs.export.samples import read_samples
from source_files import encoded, pixels, write_tree

ORIENTATION = 274
PICTURE = pixels(0)[:, :5]  # 8 x 5: turned ones have another shape
# the EXIF standard, by where the picture's row 0 and column 0 are stored
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a[::-1].swapaxes(0, 1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: a[:, ::-1].swapaxes(0, 1),
}


def oriented(image: Image.Image, orientation: int, kind: str = "PNG") -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    stream = io.BytesIO()
    image.save(stream, kind, exif=exif)
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_pictures_are_turned_as_their_orientation_says(orientation, kind):
    if kind == "WEBP":
        stream = io.BytesIO()
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        Image.fromarray(PICTURE).save(stream, kind, exif=exif, lossless=True)
        raw = stream.getvalue()
    else:
        raw = oriented(Image.fromarray(PICTURE), orientation, kind)
    assert (read_pixels(raw, "a", 3, PictureNotes()) == UPRIGHT[orientation](PICTURE)).all()


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_sixteen_bits_are_turned_too(orientation):
    levels = (np.arange(40) * 1000).reshape(8, 5).astype(np.uint16)
    raw = oriented(Image.fromarray(levels), orientation)
    assert np.abs(read_pixels(raw, "a", 1, PictureNotes()) - UPRIGHT[orientation](levels) / 257).max() < 1e-4


def test_a_damaged_exif_block_is_counted_and_the_picture_read():
    stream = io.BytesIO()
    Image.fromarray(PICTURE).save(stream, "PNG", exif=b"Exif\0\0nonsense")
    notes = PictureNotes()
    assert (read_pixels(stream.getvalue(), "a.png", 3, notes) == PICTURE).all()
    assert notes.sentences() == (
        "pictures with a damaged EXIF block, whose orientation is not known: 1 of 1, first a.png",
    )


@pytest.mark.parametrize(
    "deep", [png16, tiff, lambda levels: tiff(levels, order=">")], ids=["png", "tiff", "big-endian"]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_level_of_deep_colours_is_kept(deep, channels):
    levels = np.random.default_rng(0).integers(0, 65536, (6, 7, 3))
    read = read_pixels(deep(levels), "a", channels, PictureNotes())
    expected = levels / 257 if channels == 3 else levels / 257 @ np.array([0.299, 0.587, 0.114])
    assert read.dtype == np.float32
    assert np.abs(read - expected).max() < 1e-4


def test_resizing_deep_pictures_agrees_with_resizing_bytes():
    levels = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    deep = decode(png16(levels.astype(np.int64) * 257), "a", 8, 3)
    assert np.abs(deep - decode(encoded(levels), "a", 8, 3)).max() <= 1
    planes = levels.transpose(2, 0, 1)[None]
    assert np.abs(resized(planes.astype(np.float32), 8, 1) - resized(planes, 8, 1)).max() <= 1.01


@pytest.mark.parametrize(
    ("mode", "shape"),
    [("1", ()), ("L", ()), ("P", (3,)), ("PA", (3,)), ("LA", ()), ("RGB", (3,)), ("RGBA", (3,)), ("CMYK", (3,)),
     ("YCbCr", (3,)), ("LAB", (3,)), ("HSV", (3,)), ("La", ()), ("RGBa", (3,)), ("RGBX", (3,)), ("I;16", ()),
     ("I;16B", ())],
)  # fmt: skip
def test_pictures_in_memory_keep_grey_or_become_colour(mode, shape):
    image = Image.frombytes(mode, (5, 8), pixels(3, 16, 4).tobytes()[: len(Image.new(mode, (5, 8)).tobytes())])
    for channels, expected in ((None, shape), (1, ()), (3, (3,))):
        read = image_pixels(image, "a", channels, PictureNotes())
        assert (read.shape, read.dtype) == ((8, 5, *expected), "float32" if mode.startswith("I") else "uint8")


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pictures_without_a_fixed_range_are_refused(mode):
    with pytest.raises(DataError, match=rf"a: cannot be decoded as an image \(mode {mode} has no fixed range"):
        image_pixels(Image.new(mode, (4, 4)), "a", 1, PictureNotes())


# --- training and predict --------------------------------------------------------------------------------------------


def variants(folder):
    grey = (np.arange(64) * 4).astype(np.uint8).reshape(8, 8)
    palette = Image.fromarray((grey > 99).astype(np.uint8))
    palette.putpalette([40, 90, 40, 250, 120, 250])
    stream = io.BytesIO()
    palette.save(stream, "PNG")
    files = {
        "8.png": encoded(np.roll(grey, 9)),
        "16.png": png16(np.roll(grey, 3).astype(np.int64) * 257 + 100),
        "turned.jpg": oriented(Image.fromarray(pixels(1)), 6, "JPEG"),
        "palette.png": stream.getvalue(),
        "ink.png": encoded(np.dstack([np.zeros((8, 8, 3), np.uint8), grey])),
        "large.bmp": encoded(pixels(2, 21), "BMP"),
    }
    return write_tree(folder, {f"{'ab'[n % 2]}/{n}/{name}": raw for n, (name, raw) in enumerate(files.items())})


@pytest.mark.parametrize("channels", [1, 3])
def test_predict_reads_pictures_as_training_does(tmp_path, channels):
    source = SOURCES.get("image-folder")(path=variants(tmp_path), size=8, channels=channels)
    splits = source.load()
    expected = Input(**describe_input(splits.train))
    assert (expected.dtype, expected.white) == ("float32", 255.0)
    _, x = read_samples(sorted(tmp_path.rglob("*.*")), expected)
    trained = {sample.numpy().tobytes() for part in (splits.train, splits.test) for sample in part.x}
    assert {sample.numpy().tobytes() for sample in x} == trained


@pytest.mark.parametrize(("normalise", "mean", "std"), [("unit", 0.0, 255.0), ("half", 127.5, 127.5)])
def test_deep_pictures_are_scaled_by_their_format_not_by_what_they_reach(tmp_path, normalise, mean, std):
    files = {f"{'ab'[n % 2]}/{n}.png": png16(np.roll(np.arange(64) * 100, n).reshape(8, 8)) for n in range(10)}
    keys = {"path": write_tree(tmp_path, files), "size": 8, "channels": 1, "normalise": normalise}
    for _ in range(2):  # parsed, and out of the cache
        train = SOURCES.get("image-folder")(**keys).load().train
        assert (train.mean.tolist(), train.std.tolist()) == ([mean], [std])
        assert describe_input(train)["white"] == 255.0


def test_domains_of_bytes_and_of_deep_pictures_keep_all_levels(tmp_path):
    parts = []
    for site, scale in (("bytes", 1), ("deep", 257)):
        levels = [np.roll(np.arange(64) * 4, n).reshape(8, 8) * scale + (scale > 1) for n in range(10)]
        files = {
            f"{'ab'[n % 2]}/{n}.png": png16(x) if scale > 1 else encoded(x.astype(np.uint8))
            for n, x in enumerate(levels)
        }
        path = str(write_tree(tmp_path / site, files))
        parts.append({"name": site, "source": "image-folder", "path": path, "size": 8, "channels": 1})
    train = SOURCES.get("domains")(parts=parts, size=8, channels=1).load().train
    assert train.white == 255.0
    assert np.abs(train.x[train.domain == 1].unique().numpy() - (np.arange(64) * 4 + 1 / 257)).max() < 1e-4
    assert train.x[train.domain == 0].unique().tolist() == (np.arange(64) * 4.0).tolist()
