"""Width and height of an image, from the header of its file: PNG, JPEG, GIF, WebP and BMP.

Nothing is decoded. What is cut off, broken or says 0 has no size; a PNG's header has to match its check sum.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Final

Size = tuple[int, int]


def image_size(data: bytes) -> Size | None:
    """Return (width, height) in pixels from the header of an image, None when there is none that can be believed."""
    kind = image_kind(data)
    if kind is None:
        return None
    try:
        size = _READERS[kind](data)
    except (struct.error, IndexError):  # cut off
        return None
    return size if size is not None and min(size) > 0 else None


def image_kind(data: bytes) -> str | None:
    """Return `png`, `jpeg`, `gif`, `webp` or `bmp` by how the data starts, else None."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return "bmp" if data.startswith(b"BM") and len(data) >= 26 else None


def _png(data: bytes) -> Size | None:
    if data[8:16] != b"\x00\x00\x00\rIHDR" or zlib.crc32(data[12:29]) != struct.unpack(">I", data[29:33])[0]:
        return None
    width, height = struct.unpack(">II", data[16:24])
    return (width, height) if max(width, height) < 1 << 31 else None


def _gif(data: bytes) -> Size | None:
    width, height = struct.unpack("<HH", data[6:10])
    return width, height


def _bmp(data: bytes) -> Size | None:
    header = struct.unpack("<I", data[14:18])[0]
    if header == 12:
        width, height = struct.unpack("<HH", data[18:22])
        return width, height
    if not 40 <= header <= 124:
        return None
    width, height = struct.unpack("<ii", data[18:26])
    return width, abs(height)  # a negative height is one from top to bottom


def _jpeg(data: bytes) -> Size | None:
    at = 2
    while True:
        if data[at] != 0xFF:
            return None
        while data[at] == 0xFF:  # fill bytes
            at += 1
        marker = data[at]
        at += 1
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:
            continue
        if marker in (0xD9, 0xDA):  # the end, or pixels before any size
            return None
        length = struct.unpack(">H", data[at : at + 2])[0]
        if length < 2:
            return None
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 3 : at + 7])
            return width, height
        at += length


def _webp(data: bytes) -> Size | None:
    chunk = data[12:16]
    if chunk == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    if chunk == b"VP8L" and data[20] == 0x2F:
        bits = struct.unpack("<I", data[21:25])[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8X":
        return int.from_bytes(_exact(data, 24, 27), "little") + 1, int.from_bytes(_exact(data, 27, 30), "little") + 1
    return None


def _exact(data: bytes, start: int, stop: int) -> bytes:
    if len(data) < stop:
        raise IndexError
    return data[start:stop]


_READERS: Final[Mapping[str, Callable[[bytes], Size | None]]] = {
    "png": _png,
    "jpeg": _jpeg,
    "gif": _gif,
    "webp": _webp,
    "bmp": _bmp,
}
