"""Images as parts of messages: what they cost in tokens, by published formulas and without an imaging library.

    openai_tiles    https://platform.openai.com/docs/guides/images-vision, "calculating costs" of GPT-4o, GPT-4.1 and
                    GPT-5: 85 at low detail; else the image is scaled down into 2048 x 2048, then down to 768 on its
                    short side, and costs 85 + 170 for each tile of 512 x 512 (gpt-5 70 + 140, o1 and o3 75 + 150)
    openai_patches  the same page, GPT-4.1-mini, GPT-5-mini (1.62), the nano models (2.46), o4-mini (1.72): patches of
                    32 x 32, scaled down to at most 1,536 of them, times that factor
    anthropic       https://docs.anthropic.com/en/docs/build-with-claude/vision: width * height / 750 after scaling down
                    to 1568 on the long side and to about 1.2 megapixels, which makes 1,640 tokens at most

`auto` counts as `high`. Where the size of an image is not known (a URL, which is never fetched; a header that is cut
off or broken) the formula's worst case is charged, and `image_cost` says why. Models on your own machine have formulas
of their own: any function (width, height, detail) -> tokens works, for which width and height are None when unknown.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from ctx_vector.errors import InputError
from ctx_vector.image_headers import Size, image_kind, image_size

DETAILS: Final = ("auto", "low", "high")
#: The largest file `image_part` reads: what OpenAI takes in one request.
MOST_BYTES: Final = 50_000_000

Formula = Callable[[int | None, int | None, str], int]

_HEAD: Final = 65_536  # bytes of an image that are decoded at first
_TYPES: Final = ("image_url", "input_image", "image")


# -- formulas ---------------------------------------------------------------------------------------------------------


def openai_tiles(
    width: int | None, height: int | None, detail: str = "auto", *, base: int = 85, tile: int = 170
) -> int:
    """Return the tokens of an image by tiles.

    1024 x 1024 becomes 768 x 768, four tiles: 85 + 4 * 170 = 765. 2048 x 4096 becomes 768 x 1536: 1105. Unknown: 1445.
    """
    if detail == "low":
        return base
    if width is None or height is None:
        return base + 8 * tile  # 768 x 2048
    long, short = _fitted(max(width, height), min(width, height), 2048)
    if short > 768:
        long, short = long * 768 / short, 768.0
    return base + tile * math.ceil(_whole(long) / 512) * math.ceil(_whole(short) / 512)


def openai_patches(
    width: int | None, height: int | None, detail: str = "auto", *, factor: float = 1.62, most: int = 1536
) -> int:
    """Return the tokens of an image by patches; `detail` makes no difference.

    1024 x 1024 has 32 * 32 patches: ceil(1024 * 1.62) = 1659. 1800 x 2400 is scaled to 1056 x 1408: 1452 patches.
    """
    if width is None or height is None:
        return math.ceil(most * factor)
    across, down = math.ceil(width / 32), math.ceil(height / 32)
    if across * down > most:
        scale = math.sqrt(32 * 32 * most / (width * height))
        across_now, down_now = max(1.0, width * scale / 32), max(1.0, height * scale / 32)
        scale *= min(math.floor(across_now) / across_now, math.floor(down_now) / down_now)
        across = max(1, math.ceil(_whole(width * scale) / 32))
        down = max(1, math.ceil(_whole(height * scale) / 32))
    return math.ceil(min(most, across * down) * factor)


def anthropic(width: int | None, height: int | None, detail: str = "auto") -> int:
    """Return the tokens of an image by Anthropic's rule; `detail` makes no difference.

    200 x 200: ceil(40000 / 750) = 54. 1000 x 1000: 1334. Unknown: 1640.
    """
    if width is None or height is None:
        return _MOST_ANTHROPIC
    long, short = _fitted(max(width, height), min(width, height), 1568)
    return min(_MOST_ANTHROPIC, math.ceil(_whole(long * short) / 750))


_MOST_ANTHROPIC: Final = math.ceil(784 * 1568 / 750)  # the largest image that is not scaled

FORMULAS: Final[Mapping[str, Formula]] = {
    "openai_tiles": openai_tiles,
    "openai_patches": openai_patches,
    "anthropic": anthropic,
}


def _fitted(long: float, short: float, most: int) -> tuple[float, float]:
    """Return the sides scaled down so that the long one is at most `most`; no side is under a pixel."""
    if long <= most:
        return long, short
    return float(most), max(1.0, short * most / long)


def _whole(value: float) -> float:
    """Return a size without the error of its scaling: 768.0000001 is 768."""
    return round(value, 6)


def image_formula(formula: str | Formula) -> Formula:
    """Return the formula of a name in FORMULAS, or a function as it is. Raises InputError with the choices."""
    if callable(formula):
        return formula
    found = FORMULAS.get(formula)
    if found is None:
        raise InputError(
            f"image formula: expected one of {', '.join(FORMULAS)} or a function (width, height, detail) -> tokens, "
            f"got {formula!r}"
        )
    return found


# -- parts of messages ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImageCost:
    """What one image costs. Width and height are pixels, None when unknown; `note` says why they are."""

    tokens: int
    width: int | None = None
    height: int | None = None
    note: str = ""


def is_image_part(part: Any) -> bool:
    """Tell whether a part of a message's content is an image, in the form of OpenAI, Anthropic or MCP."""
    return _get(part, "type") in _TYPES


def image_parts(content: Any) -> list[Any]:
    """Return the parts of a message's content that are images, in their order; none for a text."""
    if isinstance(content, Sequence) and not isinstance(content, (str, bytes, bytearray)):
        return [part for part in content if is_image_part(part)]
    return []


def image_tokens(part: Any, detail: str | None = None, formula: str | Formula = "openai_tiles") -> int:
    """Return the tokens of an image part; `detail` overrides the part's own."""
    return image_cost(part, detail, formula).tokens


def image_cost(part: Any, detail: str | None = None, formula: str | Formula = "openai_tiles") -> ImageCost:
    """Return what an image part costs, the size it was worked out for, or why that is not known.

    Nothing is fetched and no file is opened. Raises InputError for an unknown detail given here; one in the part that
    is not known counts as `high`.
    """
    if detail is not None and detail not in DETAILS:
        raise InputError(f"detail: expected one of {', '.join(DETAILS)}, got {detail!r}")
    count = image_formula(formula)
    shown = _get(part, "image_url")
    own = _get(shown, "detail") if not isinstance(shown, str) else None
    chosen = detail or own or _get(part, "detail")
    chosen = chosen if chosen in DETAILS else "high"
    size, note = _part_size(part, shown)
    if size is None:
        return ImageCost(count(None, None, chosen), note=note)
    return ImageCost(count(*size, chosen), *size)


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _part_size(part: Any, shown: Any) -> tuple[Size | None, str]:
    """Return (size or None, why it is not known)."""
    url = shown if isinstance(shown, str) else _get(shown, "url")
    source = _get(part, "source")
    data = _get(source, "data") if source is not None else _get(part, "data")
    if isinstance(url, str) and url[:5].lower() == "data:":
        head, _, data = url.partition(",")
        if not head.lower().endswith(";base64"):
            return _judged(unquote_to_bytes(data[: 3 * _HEAD]))
    elif not isinstance(data, (str, bytes)):
        return None, "the size is unknown: an address is never fetched"
    if isinstance(data, bytes):
        return _judged(data)
    size, note = _judged(_decoded(data[:_HEAD]))
    return (size, note) if size is not None or len(data) <= _HEAD else _judged(_decoded(data))


def _judged(data: bytes) -> tuple[Size | None, str]:
    size = image_size(data)
    return size, "" if size else "the size is unknown: no PNG, JPEG, GIF, WebP or BMP header can be read"


def _decoded(text: str) -> bytes:
    """Return the bytes of base64, as many as can be decoded."""
    if "%" in text:
        text = unquote_to_bytes(text).decode("latin-1")
    text = "".join(text.split()).rstrip("=").translate(_URL_SAFE)
    if len(text) % 4 == 1:  # cut inside of a byte
        text = text[:-1]
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b""


_URL_SAFE: Final = str.maketrans("-_", "+/")


def image_part(source: Any, detail: str = "auto") -> dict[str, Any]:
    """Return ``{"type": "image_url", "image_url": {"url", "detail"}}`` for a file, its bytes, or a URL.

    A file and bytes become a data: URI; an address (http, https, data) stays as it is and is not fetched. An image part
    stays as it is when it is a mapping; an object, such as MCP's ImageContent, becomes one of this form. Raises
    InputError for what is no PNG, JPEG, GIF, WebP or BMP image, or is over MOST_BYTES.
    """
    if detail not in DETAILS:
        raise InputError(f"detail: expected one of {', '.join(DETAILS)}, got {detail!r}")
    if not isinstance(source, (str, bytes)) and is_image_part(source):
        return dict(source) if isinstance(source, Mapping) else _of_object(source, detail)
    if isinstance(source, str) and source[:8].lower().startswith(("http://", "https://", "data:")):
        url = source
    else:
        data, name = _read(source)
        kind = image_kind(data)
        if kind is None or image_size(data) is None:
            raise InputError(f"image: {name} is no PNG, JPEG, GIF, WebP or BMP image that can be read")
        url = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
    return {"type": "image_url", "image_url": {"url": url, "detail": detail}}


def _of_object(part: Any, detail: str) -> dict[str, Any]:
    shown, holder = _get(part, "image_url"), _get(part, "source") or part
    url = shown if isinstance(shown, str) else _get(shown, "url") or _get(holder, "url")
    data = _get(holder, "data")
    if not isinstance(url, str) and isinstance(data, (str, bytes)):
        kind = next((value for name in _MIME if isinstance(value := _get(holder, name), str)), "image/png")
        url = f"data:{kind};base64,{data if isinstance(data, str) else base64.b64encode(data).decode('ascii')}"
    if not isinstance(url, str):
        raise InputError(f"image: expected a part with an address or data, got {part!r:.200}")
    own = _get(part, "detail") if isinstance(shown, str) else _get(shown, "detail")
    return {"type": "image_url", "image_url": {"url": url, "detail": own if own in DETAILS else detail}}


_MIME: Final = ("mimeType", "mime_type", "media_type")


def _read(source: str | bytes | PathLike[str]) -> tuple[bytes, str]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        data, name = bytes(source), "the data"
    elif isinstance(source, (str, PathLike)):
        name = f"{str(source)!r:.200}"
        try:
            with Path(source).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise InputError(f"image: {name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    else:
        raise InputError(f"image: expected a path, bytes or a URL, got {type(source).__name__}")
    if len(data) > MOST_BYTES:
        raise InputError(f"image: {name} is over {MOST_BYTES:,} bytes; make it smaller, models scale it down anyway")
    return data, name
