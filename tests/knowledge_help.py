"""What the tests of the knowledge base share."""

import os
import time
from pathlib import Path

SHARED = Path(__file__).parents[2] / "shared"
CORPUS = SHARED / "corpora" / "fastapi-docs"


class CountingEncoder:
    """The real encoder, counting the documents it encodes; `before` is called before every batch."""

    def __init__(self, encoder, before=None):
        self.encoder = encoder
        self.encoded = []
        self.before = before

    @property
    def name(self):
        return self.encoder.name

    @property
    def fingerprint(self):
        return self.encoder.fingerprint

    @property
    def dim(self):
        return self.encoder.dim

    @property
    def max_tokens(self):
        return self.encoder.max_tokens

    def encode_queries(self, texts):
        return self.encoder.encode_queries(texts)

    def encode_documents(self, texts):
        if self.before:
            self.before(texts)
        self.encoded += texts
        return self.encoder.encode_documents(texts)

    def count_tokens(self, texts):
        return self.encoder.count_tokens(texts)


class OtherEncoder(CountingEncoder):
    """The same model passed off as another one: first half of its numbers, its own fingerprint."""

    name = "other-model"
    fingerprint = "other-model:1234567890abcdef"
    dim = 192

    def half(self, vectors):
        import numpy as np

        vectors = vectors[:, :192]
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def encode_queries(self, texts):
        return self.half(super().encode_queries(texts))

    def encode_documents(self, texts):
        return self.half(super().encode_documents(texts))


def keep_some_map(encoder):
    """Keep a calibration of an encoder, measured on a few rows: any will do where only that there is one matters."""
    from ctx_vector.calibration import calibration_path
    from ctx_vector.calibration_measure import measure
    from ctx_vector.measurements import background, keep

    keep(calibration_path(encoder), measure(encoder, background()[::20]).to_dict())


# every section has over 48 tokens, so that none is joined with its neighbour
PAGES = {
    "en/volcano.md": """# Volcanoes

A volcano is an opening in the crust through which hot lava, ash and gases escape from a magma chamber below. Most of
them stand where plates of the crust drift apart or push against each other, and many are under the sea.

## Types

Shield volcanoes are built of fluid lava flows and have broad, gently sloping sides like a warrior's shield. Cinder
cones are steep and small, and are made of loose fragments that fell around a single vent during a few years.

## Dangers

Pyroclastic flows are avalanches of hot ash, lava fragments and gas that race down the side of a volcano. They destroy
nearly everything in their path, reach hundreds of degrees, and move faster than anybody can run.
""",
    "en/bread.md": """---
date: 2024-05-01
topic: baking
---
# Sourdough bread

Feed the starter with flour and water twice a day until it doubles in size within six hours. A ripe starter smells
like yoghurt and floats on water; a sleepy one needs a warmer place and another day of patience.

## Baking

Bake the loaf in a covered iron pot at 240 degrees for twenty minutes, then without the lid until it is brown. The
oven must be hot before the loaf goes in, and the bread has to rest for an hour before it is cut.
""",
    "zh/volcano.md": """# 火山

火山是地壳上的一个开口，炽热的熔岩、火山灰和气体从下面的岩浆房里喷出来。大多数火山位于板块相互分离或者相互挤压的地方，也有很多火山藏在海底，人们从来没有见过它们喷发的样子。

## 危险

火山碎屑流是炽热的灰烬、熔岩碎块和气体组成的崩流，会沿着火山的山坡高速冲下来。它的温度高达几百度，速度比任何人跑得都快，几乎会摧毁沿途的一切房屋、树木和道路。
""",
    "zh/tea.md": """# 绿茶

泡绿茶时水温不要太高，八十度左右最合适，否则茶叶会变苦。先用热水把杯子烫一下，再放入茶叶，慢慢倒水，等两三分钟就可以喝了。好的绿茶可以泡三次，每一次的味道都不一样。

## 储存

茶叶要放在密封的罐子里，避免光线、潮湿和异味。如果打算存放几个月，可以把罐子放进冰箱，但是打开之前要让它先回到室温，不然水汽会凝结在茶叶上，茶叶很快就不新鲜了。
""",
}


def pdf_bytes(*pages: str, info: str = "") -> bytes:
    """Return a small PDF written by hand: one line of Helvetica a line of each page."""
    count = len(pages)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count %d /Kids [%s] >>" % (count, b" ".join(b"%d 0 R" % (4 + 2 * n) for n in range(count))),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, page in enumerate(pages):
        lines = b" ".join(b"(%s) Tj 0 -20 Td" % line.encode("latin-1") for line in page.split("\n") if line)
        content = b"BT /F1 12 Tf 72 720 Td " + lines + b" ET"
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * number)
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
    objects.append(f"<< {info} >>".encode())
    out = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer\n<< /Size %d /Root 1 0 R /Info %d 0 R >>\n" % (len(objects) + 1, len(objects))
    return bytes(out + b"startxref\n%d\n%%%%EOF\n" % start)


def write_pages(folder, pages=PAGES):
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def age(folder, seconds=3600):
    """Date all files back: one written this very moment is read again by the next run, whatever its time says."""
    then = time.time() - seconds
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


def traces(folder, secret):
    """Return the files under a folder that hold these bytes."""
    secret = secret if isinstance(secret, bytes) else secret.encode()
    return [path.name for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]
