"""Images in messages: published examples of the formulas, headers against Pillow, hostile headers."""

import base64
import functools
import io
import struct
import zlib
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ctx_vector import CtxVectorError, TokenCounter
from ctx_vector.errors import InputError
from ctx_vector.image_headers import image_size
from ctx_vector.images import (
    FORMULAS,
    anthropic,
    image_cost,
    image_part,
    image_parts,
    image_tokens,
    openai_patches,
    openai_tiles,
)
from ctx_vector.tokens import tokenizer_fingerprint

WORST = openai_tiles(None, None)


def picture(kind, width=37, height=21, **options):
    file = io.BytesIO()
    mode = "RGBA" if options.pop("alpha", False) else "RGB"
    Image.new(mode, (width, height)).save(file, kind, **options)
    return file.getvalue()


def data_uri(data, kind="png"):
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


# -- formulas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "height", "detail", "tokens"),
    [
        (1024, 1024, "high", 765),  # the three examples of OpenAI's page
        (2048, 4096, "high", 1105),
        (4096, 8192, "low", 85),
        (150, 150, "auto", 255),  # its price calculator: one tile, and small images are not scaled up
        (512, 512, "high", 255),
        (513, 512, "high", 425),
        (769, 1025, "high", 85 + 170 * 2 * 2),  # 768 x 1023.7
        (8192, 2048, "high", 85 + 170 * 4 * 1),  # 2048 x 512
        (100_000, 1, "high", 85 + 170 * 4),
        (None, None, "high", 1445),
        (None, None, "low", 85),
    ],
)
def test_tiles(width, height, detail, tokens):
    assert openai_tiles(width, height, detail) == tokens
    assert openai_tiles(height, width, detail) == tokens


@pytest.mark.parametrize(
    ("width", "height", "patches"),
    [(1024, 1024, 1024), (1800, 2400, 1452), (1, 1, 1), (33, 32, 2), (None, None, 1536)],  # the first two as published
)
def test_patches(width, height, patches):
    assert openai_patches(width, height, factor=1) == patches
    assert openai_patches(width, height) == -(-patches * 162 // 100)


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [
        (200, 200, 54), (1000, 1000, 1334), (1092, 1092, 1590),  # Anthropic's table
        (951, 1268, 1608), (896, 1344, 1606), (819, 1456, 1590), (784, 1568, 1640),
        (8000, 8000, 1640), (3136, 200, 210), (None, None, 1640),
    ],
)  # fmt: skip
def test_anthropic(width, height, tokens):
    assert anthropic(width, height) == tokens


@given(st.integers(1, 1 << 31), st.integers(1, 1 << 31), st.sampled_from(["low", "high", "auto"]))
def test_no_image_costs_more_than_one_of_unknown_size(width, height, detail):
    for formula in FORMULAS.values():
        assert 0 < formula(width, height, detail) <= formula(None, None, detail)


def test_other_models_by_their_own_numbers():
    part = image_part(picture("png", 1024, 1024))
    assert image_tokens(part, formula=functools.partial(openai_tiles, base=70, tile=140)) == 70 + 4 * 140
    assert image_tokens(part, formula=functools.partial(openai_patches, factor=2.46)) == 2520
    assert image_tokens(part, formula="anthropic") == 1399
    assert image_tokens(part, formula=lambda width, height, detail: width * height // 784) == 1337
    with pytest.raises(InputError, match="openai_tiles, openai_patches, anthropic"):
        image_tokens(part, formula="gemini")
    with pytest.raises(InputError, match="detail: expected one of auto, low, high, got 'tiny'"):
        image_tokens(part, "tiny")


# -- headers ----------------------------------------------------------------------------------------------------------


FILES = {
    "png": picture("png"),
    "png-alpha": picture("png", alpha=True),
    "jpeg": picture("jpeg"),
    "jpeg-progressive": picture("jpeg", progressive=True, quality=30),
    "jpeg-exif": picture("jpeg", exif=b"Exif\x00\x00" + b"\x00" * 60_000, comment=b"c" * 50_000),
    "gif": picture("gif"),
    "webp-lossy": picture("webp"),
    "webp-lossless": picture("webp", lossless=True),
    "webp-extended": picture("webp", alpha=True, exif=b"Exif\x00\x00"),
    "bmp": picture("bmp"),
}
FILES["bmp-top-down"] = FILES["bmp"][:22] + struct.pack("<i", -21) + FILES["bmp"][26:]
FILES["bmp-old"] = b"BM" + b"\x00" * 12 + struct.pack("<IHHHH", 12, 37, 21, 1, 24)


@pytest.mark.parametrize("name", FILES)
def test_sizes_of_every_format(name):
    data = FILES[name]
    assert image_size(data) == (37, 21)
    kind = name.partition("-")[0]
    if name != "bmp-old":
        assert Image.open(io.BytesIO(data)).size == (37, 21)
    part = image_part(data, "high")
    assert part["image_url"]["url"].startswith(f"data:image/{kind};base64,")
    assert image_cost(part) == image_cost(part, "auto") and image_cost(part).tokens == 255
    assert (image_cost(part).width, image_cost(part).height, image_cost(part).note) == (37, 21, "")


@pytest.mark.parametrize("name", FILES)
def test_a_header_that_is_cut_off_gives_the_worst_case(name):
    data = FILES[name]
    for end in [*range(60), *range(60, len(data), 997)]:
        size = image_size(data[:end])
        assert size in (None, (37, 21))
        cost = image_cost({"type": "image_url", "image_url": {"url": data_uri(data[:end])}})
        assert cost.tokens == (255 if size else WORST) and bool(cost.note) == (size is None)
    assert image_size(data[:9]) is None


@settings(deadline=None)
@given(st.sampled_from(sorted(FILES)), st.binary(max_size=60), st.integers(0, 60))
def test_hostile_headers_cost_no_more_than_the_worst_case(name, noise, at):
    data = FILES[name][:at] + noise + FILES[name][at + len(noise) :]
    size = image_size(data)
    assert size is None or min(size) > 0
    cost = image_cost({"type": "image_url", "image_url": {"url": data_uri(data)}})
    assert 85 <= cost.tokens <= WORST


def test_headers_that_lie():
    header = b"IHDR" + struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n\x00\x00\x00\r" + header
    assert image_size(png + struct.pack(">I", zlib.crc32(header))) == (1, 1)
    assert image_size(png + b"\x00\x00\x00\x00") is None  # its check sum is wrong
    huge = b"IHDR" + struct.pack(">IIBBBBB", 0xFFFFFFFF, 1, 8, 2, 0, 0, 0)
    assert image_size(png[:12] + huge + struct.pack(">I", zlib.crc32(huge))) is None
    assert image_size(b"GIF89a\x00\x00\x05\x00") is None  # no width
    assert image_size(b"\xff\xd8\xff\xe0\x00\x01" + b"\x00" * 99) is None  # a segment shorter than its length
    assert image_size(b"\xff\xd8" + b"\xff" * 200_000) is None
    assert image_size(b"") is None and image_size(b"<svg/>") is None


# -- parts ------------------------------------------------------------------------------------------------------------


PNG = FILES["png"]
B64 = base64.b64encode(PNG).decode()
URL_SAFE = str.maketrans("+/", "-_")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": data_uri(PNG), "detail": "high"}},
        {"type": "image_url", "image_url": data_uri(PNG)},
        {"type": "input_image", "image_url": data_uri(PNG), "detail": "auto"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": B64}},
        {"type": "image", "data": B64, "mimeType": "image/png"},
        {"type": "image", "data": PNG},
        {"type": "image_url", "image_url": {"url": "DATA:image/png;Base64," + "\n".join(B64), "detail": "odd"}},
        {"type": "image_url", "image_url": {"url": "data:;base64," + B64.translate(URL_SAFE).rstrip("=")}},
        {"type": "image_url", "image_url": {"url": "data:image/png," + "".join(f"%{byte:02x}" for byte in PNG)}},
        SimpleNamespace(type="image_url", image_url=SimpleNamespace(url=data_uri(PNG), detail="high")),
        SimpleNamespace(type="image", data=B64, mimeType="image/png"),
    ],
    ids=repr,
)  # fmt: skip
def test_parts_of_every_form(part):
    assert image_tokens(part) == 255 and image_tokens(part, "low") == 85
    assert image_parts(["text", {"type": "text", "text": "t"}, part]) == [part]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": {"url": "HTTP://127.0.0.1:9/a.png", "detail": None}},
        {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}},
        {"type": "image_url", "image_url": {"url": "data:image/svg+xml,<svg width='1'/>"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,!!!"}},
        {"type": "image_url"},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "image", "source": None},
    ],
    ids=repr,
)
def test_an_unknown_size_costs_the_worst_case_and_says_so(part):
    cost = image_cost(part)
    assert cost.tokens == WORST == 1445 and cost.width is None and cost.note.startswith("the size is unknown: ")
    assert image_cost(part, formula="anthropic").tokens == 1640


def test_a_jpeg_with_its_size_behind_much_else():
    data = picture("jpeg", exif=b"Exif\x00\x00" + b"\x00" * 65_000, comment=b"c" * 65_000, icc_profile=b"p" * 400_000)
    assert data.index(b"\xff\xc0") > 500_000 and image_size(data) == (37, 21)
    assert image_tokens(image_part(data)) == 255


def test_what_has_no_images():
    for content in ("text", None, [], ["a"], [{"type": "text", "text": "image"}], b"x"):
        assert image_parts(content) == []


def test_a_part_from_a_file_its_bytes_and_a_url(tmp_path):
    path = tmp_path / "图 1.png"
    path.write_bytes(PNG)
    expected = {"type": "image_url", "image_url": {"url": data_uri(PNG), "detail": "low"}}
    assert image_part(path, "low") == image_part(str(path), "low") == image_part(PNG, "low") == expected
    assert image_part(bytearray(PNG), "low") == expected
    for url in ("https://example.com/图.png", data_uri(PNG)):
        assert image_part(url) == {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}


def test_a_part_stays_and_an_object_becomes_one():
    from mcp.types import ImageContent

    foreign = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": B64}}
    assert image_part(foreign) == foreign
    usual = {"type": "image_url", "image_url": {"url": data_uri(PNG), "detail": "auto"}}
    low = {"type": "image_url", "image_url": {"url": data_uri(PNG), "detail": "low"}}
    for part, made in (
        (ImageContent(type="image", data=B64, mime_type="image/png"), usual),
        (SimpleNamespace(type="image", data=PNG), usual),
        (SimpleNamespace(type="image", source=SimpleNamespace(data=B64, media_type="image/png")), usual),
        (SimpleNamespace(type="image_url", image_url=SimpleNamespace(url=data_uri(PNG), detail="low")), low),
        (SimpleNamespace(type="input_image", image_url=data_uri(PNG), detail="low"), low),
    ):
        assert image_part(part) == made and image_tokens(part) == image_tokens(made)
    with pytest.raises(InputError, match="with an address or data"):
        image_part(SimpleNamespace(type="image", image_url=None))


def test_what_is_no_image_is_refused(tmp_path, monkeypatch):
    text = tmp_path / "notes.png"
    text.write_text("BM is no bitmap just because it starts so, even if it is long enough")
    for source, words in (
        (text, r"notes\.png' is no PNG, JPEG, GIF, WebP or BMP image"),
        (tmp_path, "cannot be read: Is a directory"),
        (tmp_path / "gone.png", "cannot be read: No such file"),
        ("a\0b", "cannot be read"),
        (b"", "the data is no PNG"),
        (PNG[:20], "the data is no PNG"),
        (5, "expected a path, bytes or a URL, got int"),
    ):
        with pytest.raises(CtxVectorError, match=words):
            image_part(source)
    with pytest.raises(InputError, match="detail"):
        image_part(PNG, "tiny")
    monkeypatch.setattr("ctx_vector.images.MOST_BYTES", 50)
    with pytest.raises(InputError, match="over 50 bytes"):
        image_part(PNG)


# -- messages ---------------------------------------------------------------------------------------------------------


def test_messages_with_images_are_counted_by_the_formula():
    small, unknown = image_part(PNG), image_part("https://example.com/a.png", "low")
    counter = TokenCounter()
    words = counter.count("What is this?\n这是什么？")
    content = [{"type": "text", "text": "What is this?"}, small, "这是什么？", unknown]
    assert counter.count_messages([{"role": "user", "content": content}]) == 3 + 3 + words + 255 + 85
    assert counter.count_messages([{"role": "user", "content": [small]}]) == 3 + 3 + 255
    assert TokenCounter(images="anthropic").count_message({"content": [small, unknown]}) == 3 + 2 + 1640
    assert TokenCounter(images=lambda *size: 7).count_message({"content": [small]}) == 3 + 7
    with pytest.raises(InputError, match="image formula"):
        TokenCounter(images="gemini")


def test_a_counter_with_another_formula_is_another_counter():
    usual, other = TokenCounter(), TokenCounter(images="anthropic")
    assert usual.name == TokenCounter(images="openai_tiles").name == "cl100k_base"
    assert other.name == "cl100k_base, images by anthropic" and other.additive
    own = TokenCounter("estimate", images=openai_patches)
    assert own.name == "estimate, images by openai_patches"
    prints = {tokenizer_fingerprint(counter) for counter in (usual, other, TokenCounter(images=openai_patches))}
    assert len(prints) == 3 and tokenizer_fingerprint(TokenCounter(images="anthropic")) in prints


def test_a_large_image_is_counted_quickly_for_its_header_alone(monkeypatch):
    part = image_part(picture("png", 20, 20) + b"\x00" * 20_000_000)
    decoded = []
    real = base64.b64decode
    monkeypatch.setattr(base64, "b64decode", lambda text: decoded.append(len(text)) or real(text))
    assert image_tokens(part) == 255 and sum(decoded) <= 65_536
