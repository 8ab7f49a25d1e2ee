"""Loaders: every format from a small real file, decoding, and files made to do harm."""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import logging
import os
import subprocess
import sys
import time
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from knowledge_help import pdf_bytes

from ctx_vector.documents import Block, Document, as_utc, plain_title
from ctx_vector.errors import InputError, LoaderError, OptionalDependencyError
from ctx_vector.formats.records import readable_escapes
from ctx_vector.loaders import decode, load_document, load_text

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpora" / "fastapi-docs"


def blocks(document: Document, kind: str = "") -> list[str]:
    return [document.text[b.start : b.end].strip() for b in document.blocks if not kind or b.kind == kind]


def headings(document: Document) -> list[tuple[int, str]]:
    return [(b.level, b.title) for b in document.blocks if b.kind == "heading"]


def check_blocks(document: Document) -> None:
    """Blocks are in order, do not overlap, and cover all that is not blank (front matter apart)."""
    at = document.blocks[0].start if document.blocks else 0
    for block in document.blocks:
        assert at <= block.start <= block.end <= len(document.text)
        assert not document.text[at : block.start].strip()
        at = block.end
    assert not document.text[at:].strip()


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


# --- Markdown ----------------------------------------------------------------------------------------------

MARKDOWN = """---
title: Path Parameters
version: 1.10
updated: 2024-05-01
date: 2023-01-01
tags: [a, b]
expires_at: 2030-01-01 08:00:00+08:00
---
# Path `Parameters` { #path-parameters }

First *paragraph*.

```python
# not a heading

def f(): ...
```

Setext heading
--------------

| a | b |
|---|---|
| 1 | 2 |

- one
- two

  still two

/// tip

Inside the tip.

///

[ref]: https://example.org
"""


def test_markdown_structure_and_front_matter():
    document = load_text(MARKDOWN, source="docs/a.md")
    check_blocks(document)
    assert headings(document) == [(1, "Path Parameters"), (2, "Setext heading")]
    assert blocks(document, "code") == ["```python\n# not a heading\n\ndef f(): ...\n```"]
    assert blocks(document, "table") == ["| a | b |\n|---|---|\n| 1 | 2 |"]
    assert blocks(document, "list") == ["- one", "- two\n\n  still two"]
    assert "/// tip\n\nInside the tip.\n\n///" in blocks(document, "prose")
    assert blocks(document, "prose")[-1] == "[ref]: https://example.org", "a link definition has no token, but is text"
    assert document.title == "Path Parameters"
    assert document.timestamp == datetime(2024, 5, 1, tzinfo=UTC)
    assert document.metadata["version"] == "1.10"
    assert document.metadata["tags"] == ["a", "b"]
    assert document.metadata["expires_at"] == "2030-01-01T00:00:00+00:00"
    assert json.dumps(document.metadata)
    assert document.line_at(document.text.index("First")) == 11


@pytest.mark.parametrize(
    "front",
    [
        "key: [unclosed",
        "- a\n- list",
        "just text",
        "a: &x [1, 2]\nb: *x",  # an alias: refused, as a chain of nine would stand for a billion items
        "date: 2024-13-45",
        "n: " + "9" * 5000,
        "a: " + "[" * 5000,
        "? [a]\n: b\n? {c: d}\n: e",
        "!!python/object/apply:os.system ['true']",
    ],
    ids=["unclosed", "list", "text", "alias", "bad-date", "huge-int", "deep", "odd-keys", "object"],
)
def test_front_matter_that_is_no_plain_mapping_stays_text(front):
    document = load_text(f"---\n{front}\n---\n\nBody.\n", source="a.md")
    check_blocks(document)
    assert document.metadata == {}
    assert document.blocks[0].start == 0
    assert "Body." in blocks(document)


def test_front_matter_over_its_limit_is_text():
    started = time.perf_counter()
    document = load_text("---\n" + "".join(f"k{i}: v\n" for i in range(20_000)) + "---\nBody\n", source="a.md")
    assert document.metadata == {} and document.blocks[0].start == 0
    assert time.perf_counter() - started < 2


def test_a_title_in_front_matter_heads_a_page_without_one():
    document = load_text("---\ntitle: Orders\n---\n## Refunds\ntext\n", source="a.md")
    assert headings(document) == [(1, "Orders"), (2, "Refunds")]


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("First Steps { #first-steps }", "First Steps"),
        ("**Bold** `code` [link](https://x.y/z)", "Bold code link"),
        ("The `response_model` _argument_", "The response_model argument"),
        ('数据<dfn title="序列化">转换</dfn> { #data-conversion }', "数据转换"),
        ("a { not an anchor }", "a { not an anchor }"),
    ],
)
def test_plain_title(raw, plain):
    assert plain_title(raw) == plain


def test_real_pages_have_no_anchor_in_any_heading():
    if not CORPUS.exists():
        pytest.skip("the FastAPI pages are not beside this checkout")
    count = 0
    for path in sorted(CORPUS.rglob("*.md")):
        document = load_document(path)
        check_blocks(document)
        for _, title in headings(document):
            assert "{" not in title or "#" not in title, (path, title)
            count += 1
    assert count > 2000


# --- Other text formats ------------------------------------------------------------------------------------


def test_plain_text_paragraphs():
    document = load_text("one\ntwo\n\n \n三\n", source="a.txt", extension=".txt")
    assert blocks(document) == ["one\ntwo", "三"]
    assert document.line_at(document.text.index("三")) == 5


RST = """:date: 2024-02-03

=========
The Title
=========

Intro::

    literal

    more

First
-----

.. code-block:: python

   x = 1

Deeper
~~~~~~

=====  =====
a      b
=====  =====

.. bogus-directive:: x

Second
------
Text with `broken* markup_ |.
"""


def test_rst_structure_and_silence(capfd):
    document = load_text(RST, source="a.rst", extension=".rst")
    check_blocks(document)
    assert headings(document) == [(1, "The Title"), (2, "First"), (3, "Deeper"), (2, "Second")]
    assert blocks(document, "code") == ["Intro::\n\n    literal\n\n    more", ".. code-block:: python\n\n   x = 1"]
    assert blocks(document, "table") == ["=====  =====\na      b\n=====  ====="]
    assert document.timestamp == datetime(2024, 2, 3, tzinfo=UTC)
    assert capfd.readouterr() == ("", "")


def test_rst_sections_are_those_docutils_sees():
    nodes = pytest.importorskip("docutils.nodes")
    core = pytest.importorskip("docutils.core")
    samples = [
        RST,
        "A\n=\n\nB\n-\n\ntext\n\n----\n\nmore\n\nC\n=\n",
        "==\nAA\n==\n\nBB\n==\n\nCC\n--\n\nDD\n==\n",
        "Long title\n===\n\nno title, as the line is short\n",
        "Long title\n====\n\na\nb\n-\nin a paragraph\n",
        "::\n\n  Not\n  ===\n\nYes\n===\n",
        "中文标题\n========\n\n第二\n----\n",
        "====\n T\n====\n\nU\n~~~~\n\n.. note::\n\n   x\n\nV\n~~~~\n",
        ".. comment\n   Not\n   ===\n\n*Yes* ``code``\n==============\n",
    ]
    settings = {"report_level": 5, "halt_level": 5, "warning_stream": False, "doctitle_xform": False}
    for text in samples:
        tree = core.publish_doctree(text, settings_overrides=settings)
        expected = []
        for section in tree.findall(nodes.section):
            level, parent = 1, section.parent
            while isinstance(parent, nodes.section):
                level, parent = level + 1, parent.parent
            expected.append((level, section.next_node(nodes.title).astext()))
        document = load_text(text, source="a.rst", extension=".rst")
        check_blocks(document)
        assert headings(document) == expected, text


HTML = """<!doctype html>
<html><head><title>Shop guide</title>
<meta property="article:modified_time" content="2024-03-04T05:06:07Z">
<style>p { color: red }</style></head>
<body><nav><a href="/">Home</a></nav>
<script>alert("no")</script>
<h1>Orders &amp; refunds</h1>
<p>First <b>bold</b>
words.</p>
<h2>Codes</h2>
<pre><code>def f():
    return 1
</code></pre>
<table><tr><th>a</th><th>b</th></tr>
<tr><td>1</td><td>2</td></tr></table>
<ul><li>one</li><li>two <ul><li>inner</li></ul></li></ul>
<div>tail</div>
</body></html>
"""


def test_html_text_structure_and_source_lines():
    document = load_text(HTML, source="a.html", extension=".html")
    check_blocks(document)
    assert headings(document) == [(1, "Orders & refunds"), (2, "Codes")]
    assert blocks(document, "code") == ["def f():\n    return 1"]
    assert blocks(document, "table") == ["a | b\n1 | 2"]
    assert blocks(document, "list") == ["- one", "- two", "- inner"]
    assert "First bold words." in blocks(document, "prose")
    for gone in ("alert", "color", "Home"):
        assert gone not in document.text
    assert document.title == "Shop guide"
    assert document.timestamp == datetime(2024, 3, 4, 5, 6, 7, tzinfo=UTC)
    source = HTML.split("\n")
    for word in ("Orders", "First", "Codes", "def f", "return 1", "inner", "tail"):
        assert word in source[document.line_at(document.text.index(word)) - 1]


@pytest.mark.parametrize(
    "html",
    [
        "<table><tr><td>a<td>b<tr><td>c</table>after",
        "<table><tr><td>a<table><tr><td>b</td></tr></table>c</td></tr></table>after",
        "<p>a<h1>b<li>c</p></div>after",
        "a<![CDATA[x]]><!-- gone -->after",
        "<h1></h1><ul></ul><table></table><pre></pre>after",
        "<ul><li>a<p>b</p></li></ul>after",
    ],
)
def test_broken_html_loses_no_words(html):
    document = load_text(html, source="a.html", extension=".html")
    check_blocks(document)
    for word in ("a", "b", "c", "after"):
        assert f">{word}" not in html or word in document.text


def test_json_is_cut_between_members_and_named_by_keys():
    value = {"short": 1, "orders": [{"id": i, "note": "x" * 400} for i in range(12)], "last": {"k": "v"}}
    for indent in (None, 2):
        document = load_text(json.dumps(value, indent=indent), source="a.json", extension=".json")
        check_blocks(document)
        assert (3, "orders") in headings(document)
        records = blocks(document, "record")
        assert sum('"note"' in record for record in records) == 12, "each order is one record"
        assert any('"last"' in record and '"note"' not in record for record in records)


def test_json_escapes_become_readable_and_keep_their_value():
    value = {"中文": "路径 😀 \u200b \\u4e2d", "a": 'quote " \\', "lone": "\ud800", "control": "\x01"}
    text = json.dumps(value)
    readable = readable_escapes(text)
    assert json.loads(readable) == value
    assert "路径 😀" in readable and "\\ud800" in readable


def test_json_with_comments_is_text_with_a_note():
    document = load_text('{\n  // comment\n  "a": 1\n}\n', source="a.json", extension=".json")
    check_blocks(document)
    assert "not valid JSON" in document.metadata["note"] and "line 2" in document.metadata["note"]


def test_jsonl_one_record_a_line_and_bad_lines_named():
    document = load_text('{"a": 1}\n\nnot json\n{"a": 2}\n', source="a.jsonl", extension=".jsonl")
    assert blocks(document) == ['{"a": 1}', "not json", '{"a": 2}']
    assert document.metadata["note"] == "1 of 3 lines are not JSON (line 3), indexed as text"
    with pytest.raises(LoaderError, match=r"a\.jsonl: line 2 is not JSON"):
        load_text("\nnope\nnor this\n", source="a.jsonl", extension=".jsonl")


def test_csv_rows_keep_quoted_line_breaks_and_know_their_columns():
    document = load_text('name,note\nAda,"two\nlines"\nBob,one\n', source="a.csv", extension=".csv")
    check_blocks(document)
    assert blocks(document) == ["name,note", 'Ada,"two\nlines"', "Bob,one"]
    assert [b.context for b in document.blocks] == ["", "name,note", "name,note"]
    tabs = load_text("a\tb\n1\t2", source="a.tsv", extension=".tsv")
    assert blocks(tabs) == ["a\tb", "1\t2"]


def test_csv_with_a_lone_quote_falls_back_to_lines():
    text = 'a,b\n"never closed,\n' + "x,y\n" * 50_000
    document = load_text(text, source="a.csv", extension=".csv")
    check_blocks(document)
    assert "not valid CSV" in document.metadata["note"]
    assert len(document.blocks) > 40_000


PYTHON = (
    '''"""Module docstring."""
import os


# about f
@decorator
def f(x):
    """Say \\d."""
    return x


class Big:
    """Doc."""

    def first(self):
'''
    + "        self.value = 1\n" * 120
    + """
    async def second(self):
        pass


TAIL = 1
"""
)


def test_python_is_cut_at_definitions_and_long_classes_at_methods():
    document = load_text(PYTHON, source="pkg/mod.py", extension=".py")
    check_blocks(document)
    assert headings(document) == [
        (1, "mod.py"), (3, ""), (3, "def f"), (3, ""), (3, "class Big"), (4, ""), (4, "def first"), (4, ""),
        (4, "def second"), (3, ""),
    ]  # fmt: skip
    assert blocks(document, "code")[1].startswith("# about f\n@decorator\ndef f(x):")
    assert document.metadata["language"] == "python"


@pytest.mark.parametrize(
    ("extension", "text", "names"),
    [
        (".py", "def broken(:\n  pass\n\nclass A:\n    x = 1\n", ["def broken", "class A"]),
        (".js", "export default function go(a) {\n\n  return 1;\n}\n\nclass B {\n}\n", ["function go", "class B"]),
        (".go", "package main\n\nfunc (s *Server) Run() error {\n\n\treturn nil\n}\n", ["package main", "func Run"]),
        (".rs", "pub(crate) fn a() {}\n\nimpl Foo {\n\n    fn b() {}\n}\n", ["fn a", "impl Foo"]),
        (".java", "public class A {\n\n  void f() {}\n}\n", ["class A"]),
        (".sql", "select 1;\n\nselect 2;\n", []),
    ],
)
def test_code_by_indentation(extension, text, names):
    document = load_text(text, source=f"a{extension}", extension=extension)
    check_blocks(document)
    assert [title for level, title in headings(document) if title and level > 1] == names


# --- PDF and Office ----------------------------------------------------------------------------------------


def test_pdf_pages_title_and_date(tmp_path, capfd):
    data = pdf_bytes(
        "Hello page one\nsecond line", "", "Third page", info="/Title (Guide) /ModDate (D:20240506070809Z)"
    )
    document = load_document(write(tmp_path / "a.pdf", data), source="a.pdf")
    check_blocks(document)
    assert headings(document) == [(2, "page 1"), (2, "page 3")]
    assert "Hello page one\nsecond line" in document.text
    assert document.title == "Guide" and document.metadata["pages"] == 3
    assert document.timestamp == datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    assert capfd.readouterr() == ("", "")


def pdf_that_says(text: str) -> bytes:
    """Return a PDF whose glyphs a, b, c, ... are declared to be these characters."""
    import pypdf
    from pypdf.generic import NameObject, StreamObject

    letters = bytes(range(ord("a"), ord("a") + len(text)))
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf_bytes(letters.decode("ascii"))))
    said = "\n".join(
        f"<{code:02x}> <{char.encode('utf-16-be').hex()}>" for code, char in zip(letters, text, strict=True)
    )
    table = StreamObject()
    table.set_data(
        f"/CIDInit /ProcSet findresource begin begincmap 1 begincodespacerange <00> <ff> endcodespacerange\n"
        f"{len(text)} beginbfchar\n{said}\nendbfchar endcmap".encode("ascii")
    )
    font = writer.pages[0]["/Resources"]["/Font"]["/F1"].get_object()
    font[NameObject("/ToUnicode")] = writer._add_object(table)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("stands", "meant"),
    [
        ("⼈⼯智能⽤户⼿册", "人工智能用户手册"),
        ("第⼀⻚⻓⻋⻔⻛⻅⻢⻩⻰⻄⺠", "第一页长车门风见马黄龙西民"),
        ("ofﬁce ﬂow", "office flow"),
    ],
    ids=["kangxi", "simplified", "ligatures"],
)
def test_a_pdf_with_radicals_says_the_characters_that_they_look_like(tmp_path, stands, meant):
    """What Chromium writes for 人工智能 and for "office" when it prints a page; read off its own files."""
    document = load_document(write(tmp_path / "a.pdf", pdf_that_says(stands)))
    assert document.text.strip() == meant


def encrypted_pdf() -> bytes:
    import pypdf

    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf_bytes("secret")))
    writer.encrypt("password", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pdf_bytes("", ""), "no text on its 2 pages"),
        (b"%PDF-1.4\ngarbage", "broken"),
        (pdf_bytes("hello")[:300], "broken"),
        (b"\x00\x01 not a pdf", "broken"),
        (encrypted_pdf(), "encrypted"),
    ],
    ids=["no-text", "garbage", "truncated", "other", "encrypted"],
)
def test_pdf_that_cannot_be_read(tmp_path, capfd, data, reason):
    with pytest.raises(LoaderError, match=reason):
        load_document(write(tmp_path / "a.pdf", data))
    assert capfd.readouterr() == ("", "")


def test_docx(tmp_path):
    docx = pytest.importorskip("docx", reason="needs the extra office")
    file = docx.Document()
    file.core_properties.title = "Handbook"
    file.core_properties.modified = datetime(2024, 1, 2, 3, 4, 5)
    file.add_heading("假期 Leave", 1)
    file.add_paragraph("Twenty-five days.")
    table = file.add_table(rows=2, cols=2)
    for row, cells in zip(table.rows, (("name", "days"), ("Ada", "25")), strict=True):
        for cell, value in zip(row.cells, cells, strict=True):
            cell.text = value
    file.save(tmp_path / "a.docx")
    document = load_document(tmp_path / "a.docx", source="a.docx")
    check_blocks(document)
    assert headings(document) == [(1, "假期 Leave")]
    assert blocks(document, "table") == ["name | days\nAda | 25"]
    assert "Twenty-five days." in blocks(document, "prose")
    assert document.title == "Handbook" and document.timestamp == datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_xlsx(tmp_path):
    openpyxl = pytest.importorskip("openpyxl", reason="needs the extra office")
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Prices"
    for row in (["item", "price"], ["bread", 2.5], [None, None], ["面包", 18]):
        sheet.append(row)
    book.save(tmp_path / "a.xlsx")
    document = load_document(tmp_path / "a.xlsx", source="a.xlsx")
    check_blocks(document)
    assert headings(document) == [(2, "Prices")]
    assert blocks(document, "table") == ["item | price", "bread | 2.5", "面包 | 18"]
    assert [b.context for b in document.blocks if b.kind == "table"] == ["", "item | price", "item | price"]


def test_pptx(tmp_path):
    pptx = pytest.importorskip("pptx", reason="needs the extra office")
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Roadmap"
    slide.placeholders[1].text = "Ship in May"
    slide.notes_slide.notes_text_frame.text = "Ask Kim first"
    deck.save(tmp_path / "a.pptx")
    document = load_document(tmp_path / "a.pptx", source="a.pptx")
    check_blocks(document)
    assert headings(document) == [(2, "slide 1: Roadmap")]
    assert "Ship in May" in document.text and "Ask Kim first" in document.text


@pytest.mark.parametrize("extension", [".docx", ".xlsx", ".pptx"])
def test_broken_office_files(tmp_path, extension):
    pytest.importorskip({".docx": "docx", ".xlsx": "openpyxl", ".pptx": "pptx"}[extension], reason="extra office")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("nothing.xml", "<a/>")
    for data in (b"not a zip", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), archive.getvalue()):
        with pytest.raises(LoaderError, match=r"broken|old binary format"):
            load_document(write(tmp_path / f"a{extension}", data))


def test_a_zip_bomb_is_refused_before_it_unfolds(tmp_path):
    pytest.importorskip("docx", reason="needs the extra office")
    with (
        zipfile.ZipFile(tmp_path / "a.docx", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bomb,
        bomb.open("x", "w") as part,
    ):
        for _ in range(60):
            part.write(bytes(10_000_000))
    with pytest.raises(LoaderError, match="unfolds to 600,000,000 bytes"):
        load_document(tmp_path / "a.docx")


@pytest.mark.parametrize("extension", [".docx", ".xlsx", ".pptx"])
def test_office_without_its_extra_names_it(tmp_path, monkeypatch, extension):
    monkeypatch.setitem(sys.modules, {".docx": "docx", ".xlsx": "openpyxl", ".pptx": "pptx"}[extension], None)
    with pytest.raises(OptionalDependencyError, match=r"pip install 'ctx_vector\[office\]'"):
        load_document(write(tmp_path / f"a{extension}", b"PK"))


# --- Bytes -------------------------------------------------------------------------------------------------

CHINESE = "我们的产品在中国有很多用户，他们每天都会使用这个系统来处理自己的工作。价格是￥25元。\n"


@pytest.mark.parametrize(
    ("data", "text", "note"),
    [
        (CHINESE.encode(), CHINESE, {}),
        (codecs.BOM_UTF8 + b"abc", "abc", {}),
        ("aé中".encode("utf-16"), "aé中", {}),
        (codecs.BOM_UTF16_BE + "aé中".encode("utf-16-be"), "aé中", {}),
        (CHINESE.encode("gb18030"), CHINESE, {"decoding": "gb18030"}),
        (b"caf\xe9 r\xe9sum\xe9chambre", "caf\ufffd r\ufffdsum\ufffdchambre", {"decoding": "replaced"}),
        (b'<meta charset="latin1">caf\xe9', '<meta charset="latin1">caf\xe9', {"decoding": "iso8859-1"}),
        (b"# -*- coding: rot13 -*- \xe9", "# -*- coding: rot13 -*- \ufffd", {"decoding": "replaced"}),
        (CHINESE.encode() * 5 + b"\xff", CHINESE * 5 + "\ufffd", {"decoding": "replaced"}),
    ],
    ids=["utf-8", "bom", "utf-16", "utf-16-be", "gb18030", "latin-1", "declared", "not-believed", "damaged-utf-8"],
)
def test_decoding(data, text, note):
    assert decode(data) == (text, note)


@pytest.mark.parametrize("encoding", ["gbk", "gb18030"])
@pytest.mark.parametrize(
    "text",
    [
        "型号,价格,库存\n显示器,900,3\n键盘,80,12\n",
        "姓名,部门,电话\n王芳,财务,6601\n李娜,采购,6602\n",
        "城市\n北京\n上海\n广州\n深圳\n",
        "商品编号;商品名称\nA1;签字笔\nA2;钢笔墨水\n",
    ],
    ids=["goods", "staff", "cities", "stationery"],
)
def test_tables_of_names_without_a_frequent_character_are_chinese(text, encoding):
    """What Excel writes as CSV on a Chinese Windows."""
    assert decode(text.encode(encoding)) == (text, {"decoding": "gb18030"})


_NAMES = {  # towns, one a row
    "euc-kr": "서울 부산 인천 대구 대전 광주 수원 울산 창원 고양 용인 성남",
    "koi8-r": "Москва Казань Самара Ростов Уфа Красноярск Воронеж Пермь Волгоград Омск",
    "cp1251": "Москва Казань Самара Ростов Уфа Красноярск Воронеж Пермь Волгоград Омск",
    "iso8859-5": "Москва Казань Самара Ростов Уфа Красноярск Воронеж Пермь Волгоград Омск",
    "iso8859-7": "Αθήνα Θεσσαλονίκη Πάτρα Ηράκλειο Λάρισα Βόλος Ιωάννινα Χανιά",
    "cp1255": "ירושלים חיפה אשדוד נתניה חולון בתים אשקלון רחובות",
    "cp1256": "القاهرة الجيزة بغداد البصرة الموصل الرياض مكة المدينة",
    "tis-620": "กรุงเทพ เชียงใหม่ ขอนแก่น ภูเก็ต นครราชสีมา อุดรธานี สงขลา",
    "latin-1": "München Köln Düsseldorf Nürnberg Málaga Córdoba Orléans Besançon",
    "cp1250": "Łódź Kraków Wrocław Gdańsk Białystok Częstochowa Rzeszów Toruń",
}


@pytest.mark.parametrize(
    "data",
    [
        "Привет, как дела? Это обычный русский текст.".encode("cp1251"),
        "안녕하세요 여러분 반갑습니다".encode("euc-kr"),
        *("\n".join(f"{at},{name}" for at, name in enumerate(names.split())).encode(e) for e, names in _NAMES.items()),
    ],
    ids=["cp1251", "euc-kr", *(f"towns-{encoding}" for encoding in _NAMES)],
)
def test_other_encodings_do_not_become_chinese(data):
    try:
        text, note = decode(data)
    except LoaderError as error:
        assert "encoding" in str(error)
    else:
        assert note == {"decoding": "replaced"} and "\ufffd" in text


def test_bytes_that_are_no_text(tmp_path):
    for name, data in (("a.md", b"abc\0def"), ("b", b"\x7fELF\0\0"), ("c.txt", bytes(range(128, 256)) * 9)):
        with pytest.raises(LoaderError, match=f"{name}: binary file"):
            load_document(write(tmp_path / name, data), source=name)


def test_line_breaks_surrogates_and_hash(tmp_path):
    data = b"a\r\nb\rc\n"
    document = load_document(write(tmp_path / "a.txt", data))
    assert document.text == "a\nb\nc\n"
    assert document.content_hash == hashlib.sha256(data).hexdigest()
    assert document.source == (tmp_path / "a.txt").as_posix()
    assert load_text("x\ud800y\0z", source="a").text == "x\ufffdy\ufffdz"


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.json", "a.csv", "a.pdf", "a.docx", "a.py", "a.html", "a.unknown"])
def test_an_empty_file_is_a_document_without_blocks(tmp_path, name):
    document = load_document(write(tmp_path / name, b""))
    assert document.blocks == () and document.text == ""
    if not name.endswith(("pdf", "docx")):
        assert load_document(write(tmp_path / name, b" \n\t\n")).blocks == ()


def test_unknown_extensions_are_text(tmp_path):
    assert blocks(load_document(write(tmp_path / "Makefile", "all:\n\techo\n"))) == ["all:\n\techo"]


def test_size_limit_names_size_and_limit(tmp_path):
    path = write(tmp_path / "a.txt", b"x" * 1001)
    with pytest.raises(LoaderError, match="1,001 bytes, over the limit of 1,000"):
        load_document(path, max_bytes=1000)
    assert load_document(path, max_bytes=1001).blocks


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(LoaderError, match="No such file"):
        load_document(tmp_path / "missing.md")
    with pytest.raises(LoaderError, match=r"cannot be read|not a regular file"):
        load_document(tmp_path)
    with pytest.raises(LoaderError, match="cannot be read"):
        load_document("a\0b")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(LoaderError, match="not a regular file"):
            load_document(tmp_path / "pipe")


def test_text_of_a_binary_format_is_an_error():
    with pytest.raises(InputError, match=r"'\.pdf' is a binary format"):
        load_text("x", source="a", extension=".pdf")


# --- Hostile files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extension", "text"),
    [
        (".html", "<div>" * 25_000 + "deep"),
        (".html", "<b>" * 10_000 + "deep"),
        (".html", "<table><tr><td>" * 5_000 + "deep"),
        (".html", "<" * 100_000),
        (".html", "<a " + "x=1 " * 100_000 + ">deep"),
        (".html", "<![" + "x" * 1000),
        (".json", "[" * 100_000 + "]" * 100_000),
        (".json", '{"a":' * 100_000 + "1" + "}" * 100_000),
        (".jsonl", '{"a": 1}\n' + "[" * 100_000),
        (".md", "> " * 100_000 + "deep"),
        (".md", "".join(" " * 2 * n + "- a\n" for n in range(600))),
        (".md", "[" * 300_000),
        (".md", "#" * 300_000 + "\n# " + "[" * 300_000),
        (".md", "|a" * 20_000 + "\n" + "|-" * 20_000),
        (".md", "```\n" * 20_001),
        (".md", "/// a\n\n" * 5_000),
        (".rst", "=" * 100_000 + "\nT\n" + "=" * 100_000),
        (".rst", "a\n=\n\n" * 50_000),
        (".rst", "a::\n\n" + "  b\n\n" * 100_000),
        (".rst", "`" * 20_000 + "\n" + "*" * 20_000),
        (".rst", "- " * 5_000 + "deep"),
        (".py", "(" * 50_000),
        (".py", "x = " + "-" * 50_000 + "1"),
        (".py", "a.b" * 100_000),
        (".csv", '"' * 300_001),
        (".csv", "," * 1_000_000 + "a"),
        (".txt", "x" * 5_000_000),
        (".md", "x" * 5_000_000),
        (".md", "# " + "x" * 5_000_000),
        (".html", "x" * 5_000_000),
        (".py", "# " + "x" * 2_000_000),
        (".xml", "<a>" * 100_000),
    ],
)
def test_hostile_text_is_read_or_refused_in_seconds(extension, text, capfd):
    started = time.perf_counter()
    try:
        document = load_text(text, source="a" + extension, extension=extension)
    except LoaderError as error:
        assert len(str(error)) < 500
    else:
        check_blocks(document)
    assert time.perf_counter() - started < 15
    assert capfd.readouterr() == ("", "")


def test_dates():
    assert as_utc("2024-05-01T10:00:00+08:00") == datetime(2024, 5, 1, 2, tzinfo=UTC)
    assert as_utc("2024/5/1") == as_utc("May 1, 2024") == as_utc("2024年5月1日") == datetime(2024, 5, 1, tzinfo=UTC)
    assert as_utc("Wed, 01 May 2024 10:00:00 GMT") == datetime(2024, 5, 1, 10, tzinfo=UTC)
    for odd in ("yesterday", "2024-99-99", "", None, 5, [], "0001-01-01T00:00:00+14:00"):
        assert as_utc(odd) is None


def test_import_is_light():
    code = (
        "import sys; import ctx_vector.loaders, ctx_vector.file_walk, ctx_vector.chunking; "
        "heavy = set('bs4 docutils markdown_it pypdf yaml lxml docx openpyxl pptx numpy pathspec'.split()); "
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_loading_leaves_logging_alone(tmp_path):
    level = logging.getLogger("pypdf").level
    load_document(write(tmp_path / "a.pdf", pdf_bytes("x")))
    assert logging.getLogger("pypdf").level == level


def test_block_is_plain_data():
    assert Block(0, 1, "prose") == Block(0, 1, "prose", 0, "", "")


# --- Notebooks ---------------------------------------------------------------------------------------------


def notebook(*cells, **more) -> dict:
    metadata = {"kernelspec": {"name": "python3"}, "language_info": {"name": "python"}}
    return {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5, **more}


def cell(kind: str, source, *said: str) -> dict:
    outputs = [{"output_type": "stream", "name": "stdout", "text": list(said)}]
    picture = {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo" * 300}, "metadata": {}}
    found = {"cell_type": kind, "metadata": {}, "source": source}
    return found | ({"execution_count": 1, "outputs": [*outputs, picture]} if kind == "code" else {})


BOOK = notebook(
    cell("markdown", ["# 内存分析\n", "\n", "本笔记介绍如何测量内存。"]),
    cell("code", ["import pandas as pd\n", "\n", 'df = pd.read_csv("销售.csv")\n', "df.info()"], "df.info()", "\n"),
    cell("raw", ["not read"]),
    cell("code", [], "nothing"),
    cell("markdown", "## 结论\n\n用 `category`。\n"),
    cell("code", ["print('''\n", "```\n", "''')"]),
)
BOOK_TEXT = """# 内存分析

本笔记介绍如何测量内存。

```python
import pandas as pd

df = pd.read_csv("销售.csv")
df.info()
```

## 结论

用 `category`。

````python
print('''
```
''')
````
"""


@pytest.mark.parametrize("ascii_only", [False, True], ids=["utf-8", "escaped"])
@pytest.mark.parametrize("sort", [False, True], ids=["as-written", "outputs-first"])
def test_a_notebook_is_its_cells_without_what_they_put_out(tmp_path, ascii_only, sort):
    text = json.dumps(BOOK, ensure_ascii=ascii_only, indent=1, sort_keys=sort)
    document = load_document(write(tmp_path / "a.ipynb", text.encode()), source="a.ipynb")
    assert document.text == BOOK_TEXT
    assert document.title == "内存分析" and document.metadata == {"language": "python"}
    kinds = [block.kind for block in document.blocks if block.kind in ("heading", "code")]
    assert kinds == ["heading", "code", "heading", "code"]
    # the line of the file that holds each line of a listed source, though an output says the same
    rows, position, held = text.split("\n"), 0, {}
    for line in document.text.split("\n"):
        held[line] = document.line_at(position)
        position += len(line) + 1
    for line in (
        "# 内存分析",
        "本笔记介绍如何测量内存。",
        "import pandas as pd",
        'df = pd.read_csv("销售.csv")',
        "df.info()",
        "print('''",
    ):
        assert json.dumps(line, ensure_ascii=ascii_only)[1:-1] in rows[held[line] - 1]
    assert held["df.info()"] == held['df = pd.read_csv("销售.csv")'] + 1


def test_pieces_of_a_source_need_not_be_lines_and_old_notebooks_have_sheets(tmp_path):
    pieces = cell("markdown", ["one ", "line\nand", " another", "\n", "", "end\n"])
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1\n", "y = 2"], "outputs": []}]}]}
    said = [(notebook(pieces), "one line\nand another\nend\n"), (old, "```\nx = 1\ny = 2\n```\n"), (notebook(), "")]
    for number, (book, text) in enumerate(said):
        document = load_document(write(tmp_path / f"{number}.ipynb", json.dumps(book).encode()))
        assert document.text == text
        assert bool(document.blocks) is bool(text)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        *((text, text) for text in ('{"a": 1}', "[1, 2]", "no JSON", '"x"', '{"cells": 5}')),
        ('{"cells": [5, {"source": 7}, {"cell_type": ["code"], "source": "x"}]}', ""),
    ],
)
def test_what_is_no_notebook_is_read_all_the_same(tmp_path, text, read):
    assert load_document(write(tmp_path / "a.ipynb", text.encode())).text == read


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["markdown", "code"]),
            st.lists(st.text(st.sampled_from('ab 内\n`"\\'), max_size=8), max_size=5),
        ),
        max_size=4,
    )
)
def test_nothing_of_a_cell_is_lost(cells):
    book = notebook(*(cell(kind, source) for kind, source in cells))
    document = load_text(json.dumps(book, ensure_ascii=False, indent=1), source="a.ipynb", extension=".ipynb")
    said = "".join("".join(source) for _, source in cells)
    bare = document.text.replace("python", "").replace("`", "")
    assert "".join(bare.split()) == "".join(said.replace("`", "").split())
    assert not document.text or len(document.source_lines) == document.text.count("\n") + 1
    assert list(document.source_lines) == sorted(document.source_lines)
