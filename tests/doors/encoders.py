"""Picture files that Pillow cannot write: 12 and 16 bits in grey and colour. Written by the formats' specifications."""

import struct
import zlib

import numpy as np

_GREY, _COLOUR, _GREY_ALPHA, _COLOUR_ALPHA = 0, 2, 4, 6  # colour types of PNG


def png16(levels: np.ndarray) -> bytes:
    """A PNG with 16 bits per channel, of levels [h, w] or [h, w, 2 to 4] from 0 to 65535."""
    height, width = levels.shape[:2]
    colour = {1: _GREY, 2: _GREY_ALPHA, 3: _COLOUR, 4: _COLOUR_ALPHA}[1 if levels.ndim == 2 else levels.shape[2]]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in levels)
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def tiff(
    levels: np.ndarray, *, bits: int = 16, white_is_zero: bool = False, sample_format: int = 1, order: str = "<"
) -> bytes:
    """An uncompressed TIFF of levels [h, w] or [h, w, 3]. bits: 12 (packed), 16 or 32; sample_format: 1 whole numbers,
    2 with sign, 3 real; order: "<" or ">".
    """
    height, width = levels.shape[:2]
    channels = 1 if levels.ndim == 2 else levels.shape[2]
    if bits == 12:
        pairs = levels.reshape(-1, 2).astype(np.uint32)
        data = b"".join(int(first << 12 | second).to_bytes(3, "big") for first, second in pairs)
    else:
        data = levels.astype({1: f"{order}u", 2: f"{order}i", 3: f"{order}f"}[sample_format] + str(bits // 8)).tobytes()
    photometric = 2 if channels == 3 else 0 if white_is_zero else 1
    start = 8 + 2 + 10 * 12 + 4
    extra = struct.pack(f"{order}{channels}H", *[bits] * channels) if channels > 2 else b""

    def short(tag: int, value: int) -> bytes:
        return struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0)

    def long(tag: int, value: int) -> bytes:
        return struct.pack(f"{order}HHII", tag, 4, 1, value)

    entries = [
        long(256, width),
        long(257, height),
        struct.pack(f"{order}HHII", 258, 3, channels, start) if extra else short(258, bits),
        short(259, 1),
        short(262, photometric),
        long(273, start + len(extra)),
        short(277, channels),
        long(278, height),
        long(279, len(data)),
        short(339, sample_format),
    ]
    magic = b"II" if order == "<" else b"MM"
    head = magic + struct.pack(f"{order}HIH", 42, 8, len(entries))
    return head + b"".join(entries) + struct.pack(f"{order}I", 0) + extra + data


def netpbm(levels: np.ndarray, white: int) -> bytes:
    """A PGM of levels [h, w] or a PPM of [h, w, 3], in which `white` is the brightest level."""
    kind = b"P5" if levels.ndim == 2 else b"P6"
    height, width = levels.shape[:2]
    return kind + b"\n%d %d\n%d\n" % (width, height, white) + levels.astype(">u2" if white > 255 else "u1").tobytes()
