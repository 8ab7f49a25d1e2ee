"""The inspector over HTTP: who may ask, what the pages say, and that what is shown is text and nothing else."""

from __future__ import annotations

import ast
import re
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from inspector_help import CHINESE, LONG, MANY, QUESTION, SCRIPT, TOKEN, TURNED, USER, Made
from starlette.testclient import TestClient

from ctx_vector import ContextBuilder, ContextConfig, Message, TokenCounter
from ctx_vector.audit import AuditLog
from ctx_vector.audit_decode import restored_counter
from ctx_vector.errors import InputError
from ctx_vector.inspector import Stores, make_app, views
from ctx_vector.inspector.reasons import said_in
from ctx_vector.inspector.words import WORDS, counted, language_of
from ctx_vector.packets import DROP_REASONS
from ctx_vector.replay import rebuild
from ctx_vector.sizes import sizes

HOST = "127.0.0.1:8766"
ORIGIN = f"http://{HOST}"
HERE = Path(views.__file__).parent


class Page(HTMLParser):
    """Which elements and attributes a page has, and its text: an independent reader of what was rendered."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return "".join(self.texts)


def word_counter() -> TokenCounter:
    """A tokenizer without a name to find it by, whose counts do not add."""
    return TokenCounter(lambda text: len(text.split()) + 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory, encoder):
    made = Made(tmp_path_factory.mktemp("inspector"), encoder)
    yield made
    made.close()


def client_of(stores: Stores) -> TestClient:
    client = TestClient(make_app(stores, TOKEN, [HOST]), base_url=ORIGIN)
    assert client.get(f"/?token={TOKEN}").status_code in (200, 500)
    return client


@pytest.fixture
def client(made):
    return client_of(made.stores)


def addresses(made: Made) -> list[str]:
    return [
        "/", "/?q=pandas", "/?session=s+1", f"/?before={made.plain}", f"/build/{made.plain}", f"/build/{made.hostile}",
        f"/build/{made.large}", f"/build/{made.large}?all=1", f"/build/{made.huge}",
        f"/build/{made.plain}/what-if?max_tokens=200",
        f"/build/{made.plain}/item/0", f"/build/{made.hostile}/item/3", f"/diff?a={made.chinese}&b={made.plain}",
        f"/diff?a={made.hostile}&b={made.large}", "/knowledge", "/knowledge?q=内存",
        "/knowledge/document?source=docs/pandas.md", "/memory", "/memory?q=Chinese", "/reports", "/reports/r%201.html",
    ]  # fmt: skip


# -- who may ask ------------------------------------------------------------------------------------------------------


def test_every_page_answers_with_its_headers_and_nothing_runs(made, client):
    for address in addresses(made):
        for language in ("en", "zh"):
            answer = client.get(address, headers={"accept-language": language})
            assert answer.status_code == 200, (address, answer.text[:300])
            headers = answer.headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'") and "script-src 'unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "same-origin"
            assert headers["cache-control"] == "no-store"
            if address.startswith("/reports/"):
                continue
            page = Page(answer.text)
            assert [tag.get("src") for tag in page.all("script")] in (["/static/inspector.js"], [])
            assert {tag.get("href") for tag in page.all("link")} <= {"/static/icon.svg", "/static/inspector.css"}
            assert not page.all("img") and not page.all("style")
            for tag, attributes in page.tags:
                assert not any(name.startswith("on") or name == "style" for name in attributes), (tag, attributes)
                for name in ("href", "src", "action", "data-all", "data-live"):
                    assert (attributes.get(name) or "/").startswith(("/", "#")), (tag, attributes)


def test_without_the_token_nothing_answers(made):
    client = TestClient(make_app(made.stores, TOKEN, [HOST]), base_url=ORIGIN)
    for address in (*addresses(made), "/static/inspector.css", "/nope", "/?token=wrong", "/?token=%ff"):
        answer = client.get(address)
        assert answer.status_code == 401 and "token" in answer.text and "Pandas" not in answer.text
    cookie = {"cookie": "ctx_vector_inspector_8766=wrong"}
    assert client.get("/", headers=cookie).status_code == 401


def test_the_token_leaves_the_address_and_stays_in_a_cookie(made):
    client = TestClient(make_app(made.stores, TOKEN, [HOST]), base_url=ORIGIN, follow_redirects=False)
    answer = client.get(f"/memory?user=ada&token={TOKEN}&q=a+b")
    assert (answer.status_code, answer.headers["location"]) == (303, "/memory?user=ada&q=a+b")
    cookie = answer.headers["set-cookie"]
    assert TOKEN in cookie and "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert client.get("/memory").status_code == 200
    # no open redirect: a path with two slashes would be another host
    answer = client.get(f"{ORIGIN}//evil.example/x?token={TOKEN}")
    assert answer.headers["location"] == "/evil.example/x"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example:8766"}, 421),
        ({"host": "127.0.0.1:1"}, 421),
        ({"host": "127.0.0.1"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin", "origin": ORIGIN}, 200),
        ({"sec-fetch-site": "none"}, 200),
    ],
)
def test_other_hosts_origins_and_sites_are_refused(client, headers, status):
    assert client.get("/", headers=headers).status_code == status


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_other_methods_are_refused(client, method):
    answer = client.request(method, "/", headers={"origin": ORIGIN})
    assert answer.status_code == 405 and "GET" in answer.headers["allow"]


def test_pages_that_read_take_no_post_and_deleting_takes_no_get(client):
    assert client.post("/", headers={"origin": ORIGIN}).status_code == 405
    assert client.get("/memory/delete").status_code == 405
    assert client.head("/").status_code == 200


def test_a_websocket_is_refused(client):
    with pytest.raises(Exception), client.websocket_connect("/"):  # noqa: B017  (Starlette's own, or ours)
        pass


def test_a_short_token_is_refused(made):
    with pytest.raises(InputError, match="at least 16 characters, got 5"):
        make_app(made.stores, "short", [HOST])


def test_static_files_are_those_of_the_package_only(client):
    assert client.get("/static/inspector.js").text == (HERE / "static" / "inspector.js").read_text(encoding="utf-8")
    for path in ("/static/../guard.py", "/static/%2e%2e/guard.py", "/static/..%2fguard.py", "/static//etc/passwd"):
        assert client.get(path).status_code == 404


# -- builds -----------------------------------------------------------------------------------------------------------


def test_the_list_shows_builds_newest_first_and_finds_them(made, client):
    page = client.get("/").text
    places = [page.index(f"/build/{id}") for id in (made.huge, made.large, made.hostile, made.plain, made.chinese)]
    assert places == sorted(places)
    found = client.get("/", params={"q": "内存"}).text
    assert f"/build/{made.chinese}" in found and f"/build/{made.plain}" not in found
    found = client.get("/", params={"session": "s 1"}).text
    assert f"/build/{made.chinese}" in found and f"/build/{made.large}" not in found
    found = client.get("/", params={"before": made.plain}).text
    assert f"/build/{made.chinese}" in found and f"/build/{made.hostile}" not in found
    assert WORDS["en"]["none"] in client.get("/", params={"q": "no such thing"}).text


def test_a_long_list_has_pages(tmp_path):
    from ctx_vector import ContextBuilder

    with AuditLog(tmp_path / "a.sqlite3") as log:
        builder = ContextBuilder(audit=log, config=ContextConfig(strategy="jaccard", tokenizer="estimate"))
        for number in range(120):
            builder.assemble(f"question number {number}")
        log.flush()
        client, address, seen = client_of(Stores(audit=log)), "/", []
        for size in (50, 50, 20):
            page = client.get(address).text
            assert "120" in page
            on_page = re.findall(r"question number (\d+)</a>", page)
            assert len(on_page) == size
            seen += on_page
            found = re.search(r'href="(/\?[^"]*)" rel="next"', page)
            address = found[1].replace("&amp;", "&") if found else ""
        assert address == "" and seen == [str(number) for number in reversed(range(120))]


def test_the_context_is_shown_whole_and_as_it_is(made):
    for id in (made.plain, made.chinese, made.hostile, made.large, made.huge):
        built = made.audit.show(id).built
        shown = views.sections_of(built)
        whole = "".join(
            "".join(piece["gap"] + piece["text"] + piece["rest"] for piece in section["pieces"]) + section["rest"]
            for section in shown
        )
        assert whole == built.text
        assert sum(section["tokens"] for section in shown) == built.budget.text_tokens
        linked = [piece["item"][0] for section in shown for piece in section["pieces"] if piece["item"]]
        assert linked and all(built.kept[number].rendered.strip() in built.text for number in linked)


def test_bars_add_up(made, client):
    """Every token of the total has its part, and what is left is free, by section and by source."""
    words = WORDS["en"]
    function = {"name": "weather", "description": "The weather in a city", "parameters": {"type": "object"}}
    others = [
        ContextBuilder(config=ContextConfig(strategy="jaccard", tools_in="api", min_relevance=0.0)).assemble(
            "weather", tools=[{"type": "function", "function": function}]
        ),
        ContextBuilder(config=ContextConfig(strategy="jaccard", messages_style="split")).assemble(
            "q", images=["https://example.org/a.png"]
        ),
        ContextBuilder(config=ContextConfig(strategy="jaccard"), counter=word_counter()).assemble(
            "a b c", documents=["a b d"]
        ),
    ]
    for id in (made.plain, made.chinese, made.hostile, made.large, made.huge, *others):
        built = made.audit.show(id).built if isinstance(id, str) else id
        sections, budget = views.sections_of(built), built.budget
        for slices in views.bars(built, sections, words).values():
            parts = {part.label: part.tokens for part in slices}
            assert parts.get("free", 0) == budget.total_limit - budget.total_used
            assert sum(parts.values()) == budget.total_limit and all(count > 0 for count in parts.values())
        shown = {part.label: part.tokens for part in views.bars(built, sections, words)["sections"]}
        for section in sections:
            assert shown[views.section_name(section["name"], words)] == section["tokens"]
        if isinstance(id, str):
            assert shown.get("message framing", 0) == max(0, budget.message_tokens - budget.text_tokens)
    page = Page(client.get(f"/build/{made.plain}").text).text
    built = made.audit.show(made.plain).built
    assert f"{built.budget.text_tokens} as text, {built.budget.message_tokens} as chat messages" in page
    for id in (made.plain, made.large):
        built = made.audit.show(id).built
        for slices in views.bars(built, views.sections_of(built), words).values():
            assert sum(part.width for part in slices) == pytest.approx(views.WIDTH, abs=0.1)
            assert all(a.start + a.width == pytest.approx(b.start, abs=0.02) for a, b in pairwise(slices))
    over = views.bar([("a", 30, "x"), ("b", 0, "y"), ("c", 20, "z")], 40, "free")  # 50 of 40: the bar is 50 wide
    assert [(part.label, part.start, part.width) for part in over] == [("a", 0, 600), ("c", 600, 400)]


def test_what_was_dropped_shows_what_it_would_have_taken(made, client):
    """The oracle: the same candidates in a budget where they fit."""
    record = made.audit.show(made.plain)
    built, trace = record.built, record.built.trace
    roomy = rebuild(trace, restored_counter(trace.facts), config=trace.config.with_(max_tokens=20_000))
    taken = {item.packet.content: item.tokens for item in roomy.kept}
    assert len(built.dropped) > 5 and not roomy.dropped
    size_of = sizes(built)
    for item in built.dropped:
        assert item.tokens == 0 and size_of(item) == pytest.approx(
            taken[item.packet.content], abs=1
        )  # first: no joiner
    assert [size_of(item) for item in built.kept] == [item.tokens for item in built.kept]
    page = client.get(f"/build/{made.plain}").text
    for number, item in enumerate(built.dropped, len(built.kept)):
        assert f'title="would have taken {size_of(item)} tokens"' in page
        text = Page(client.get(f"/build/{made.plain}/item/{number}").text).text
        assert f"Tokens it would have taken{size_of(item)}" in re.sub(r"\s*\n\s*", "", text)


def test_what_has_no_size_shows_none(made, tmp_path):
    def broken(request):
        raise ValueError("no")

    source = SimpleNamespace(name="broken", load=broken)
    config = ContextConfig(strategy="jaccard", history_limit=1)
    history = [Message("the first message 你好", "user"), Message("its answer", "assistant"), Message("last", "user")]
    built = ContextBuilder(sources=[source], config=config, counter=word_counter()).assemble(
        "q", conversation_history=history
    )
    failed = next(item for item in built.dropped if item.source == "broken")
    left_out = next(item for item in built.dropped if item.source == "history")
    assert sizes(built)(failed) is None and sizes(built)(left_out) is None  # its tokenizer has no name to find it by
    assert sizes(built, TokenCounter())(failed) is None
    line = f"user: {left_out.packet.content}\n"
    assert sizes(built, TokenCounter())(left_out) == TokenCounter().count(line)


def test_every_candidate_has_its_row_and_page(made, client):
    built = made.audit.show(made.plain).built
    page = Page(client.get(f"/build/{made.plain}").text)
    rows = [tag for tag in page.all("tr") if tag.get("class") in ("kept", "gone")]
    assert len(rows) == len(built.kept) + len(built.dropped)
    for number, item in enumerate((*built.kept, *built.dropped)):
        text = Page(client.get(f"/build/{made.plain}/item/{number}").text).text
        assert item.packet.content in text and f"{item.score:.4f}" in text
    assert client.get(f"/build/{made.plain}/item/{len(rows)}").status_code == 404
    assert client.get(f"/build/{made.plain}/item/x").status_code == 404


def test_a_build_may_be_named_by_its_beginning(made, client):
    assert QUESTION in client.get(f"/build/{made.plain[:12]}").text


def test_thousands_of_candidates_come_in_part_and_all_when_asked(made, client):
    def rows(address):
        return [tag for tag in Page(client.get(address).text).all("tr") if tag.get("class") in ("kept", "gone")]

    built = made.audit.show(made.large).built
    assert len(built.kept) + len(built.dropped) >= MANY
    some = min(len(built.kept), views.ROWS) + min(len(built.dropped), views.ROWS)
    assert len(rows(f"/build/{made.large}")) == some < MANY
    assert "all=1" in client.get(f"/build/{made.large}").text
    assert len(rows(f"/build/{made.large}?all=1")) == len(built.kept) + len(built.dropped)
    assert len(rows(f"/build/{made.large}/what-if?all=1")) == len(built.kept) + len(built.dropped)


def test_a_text_of_100_000_characters_is_folded_not_cut(made, client):
    text = Page(client.get(f"/build/{made.huge}").text).text
    assert text.count("字") >= len(LONG)
    number = next(n for n, row in enumerate(made.audit.show(made.huge).built.kept) if row.packet.content == LONG)
    page = client.get(f"/build/{made.huge}/item/{number}").text
    assert Page(page).text.count("字") >= len(LONG) and "80,000 more characters" in page


# -- what if ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "changes"),
    [
        ("max_tokens=250", {"max_tokens": 250}),
        ("max_tokens=900", {"max_tokens": 900}),
        ("relevance_weight=0.2", {"relevance_weight": 0.2, "recency_weight": 0.8}),
        ("min_relevance=0.3", {"min_relevance": 0.3}),
        ("fill=stop&max_tokens=300", {"fill": "stop", "max_tokens": 300}),
    ],
)
def test_sliders_show_what_the_builder_makes_with_that_config(made, client, asked, changes):
    record = made.audit.show(made.plain)
    trace = record.built.trace
    expected = rebuild(trace, restored_counter(trace.facts), config=trace.config.with_(**changes))
    for address in (f"/build/{made.plain}?{asked}", f"/build/{made.plain}/what-if?{asked}"):
        html = client.get(address).text
        page = Page(html)
        assert f"<strong>{expected.budget.total_used:,}</strong>" in html
        fates = [tag["class"] for tag in page.all("tr") if tag.get("class") in ("kept", "gone")]
        assert fates == ["kept"] * len(expected.kept) + ["gone"] * len(expected.dropped)
        for item in expected.kept:
            assert item.rendered.strip() in page.text
        assert f"config.{next(iter(changes))}" in page.text and WORDS["en"]["changes"] in page.text


def test_what_if_is_what_a_builder_would_have_made(made, tmp_path):
    """The oracle is no rebuild: the same build made with the other config from the start."""
    from ctx_vector import ContextBuilder

    with AuditLog(tmp_path / "a.sqlite3") as log:
        config = ContextConfig(max_tokens=400, strategy="jaccard", min_relevance=0.0)
        documents = [f"pandas memory {n} " * (4 + n) for n in range(12)]
        arguments = {"user_query": "pandas memory", "documents": documents, "now": datetime(2026, 1, 2, tzinfo=UTC)}
        built = ContextBuilder(audit=log, config=config).assemble(**arguments)
        log.flush()
        page = Page(client_of(Stores(audit=log)).get(f"/build/{built.meta['build_id']}?max_tokens=220").text)
        other = ContextBuilder(config=config.with_(max_tokens=220)).assemble(**arguments)
        assert 0 < len(other.kept) < len(built.kept)
        kept = [tag for tag in page.all("tr") if tag.get("class") == "kept"]
        assert len(kept) == len(other.kept)
        assert all(item.rendered.strip() in page.text for item in other.kept)


@pytest.mark.parametrize(
    "asked", ["max_tokens=x", "max_tokens=-1", "max_tokens=0", "max_tokens=1e99", "max_tokens=nan", "max_tokens=inf",
              "relevance_weight=1.5", "relevance_weight=", "min_relevance=-0.1", "min_relevance=nan", "fill=evil", ""],
)  # fmt: skip
def test_sliders_out_of_range_stay_as_they_were(made, client, asked):
    built = made.audit.show(made.plain).built
    html = client.get(f"/build/{made.plain}?{asked}").text
    assert f"<strong>{built.budget.total_used:,}</strong>" in html and WORDS["en"]["changes"] not in html


def test_what_cannot_fit_is_told_and_the_build_stays(made, client):
    answer = client.get(f"/build/{made.plain}?max_tokens=10")
    assert answer.status_code == 200 and "This cannot be built" in answer.text
    built = made.audit.show(made.plain).built
    assert f"<strong>{built.budget.total_used:,}</strong>" in answer.text


@pytest.mark.parametrize("was", [400, 437, 33, 5])
def test_the_steps_of_the_slider_meet_the_budget_as_it_was(was):
    sliders = views.Sliders(was, 0.7, 0.1, "skip", 4 * was, was)
    assert 0 < sliders.least <= was and (was - sliders.least) % 10 == 0


def test_a_purged_build_opens(made, tmp_path):
    from ctx_vector import ContextBuilder

    with AuditLog(tmp_path / "a.sqlite3") as log:
        builder = ContextBuilder(audit=log, config=ContextConfig(strategy="jaccard", min_relevance=0.0))
        id = builder.assemble("a question", documents=["a secret document", "another"]).meta["build_id"]
        log.flush()
        log.purge("a secret document")
        client = client_of(Stores(audit=log))
        answer = client.get(f"/build/{id}?max_tokens=500")
        assert answer.status_code == 200 and "purged" in answer.text and "a secret document" not in answer.text
        assert not Page(answer.text).all("form")  # there is nothing to slide
        assert client.get("/").status_code == 200


# -- hostile contents -------------------------------------------------------------------------------------------------


def test_hostile_texts_are_text(made, client):
    for address in (
        f"/build/{made.hostile}",
        f"/build/{made.hostile}/item/0",
        "/",
        f"/diff?a={made.plain}&b={made.hostile}",
    ):
        html = client.get(address).text
        page = Page(html)
        assert "<img" not in html.replace("&lt;img", "") and "window.hit" in page.text
        assert len(page.all("script")) == 1
        assert not set("\u202e\u202c\u2066\u2069") & set(html)


def test_hidden_characters_are_shown_by_number():
    assert str(views.visible("a\u202eb\x00\U000e0041")) == "".join(
        ("a", *(f'<span class="hidden-char">U+{code}</span>' for code in ("202E",)), "b",
         *(f'<span class="hidden-char">U+{code}</span>' for code in ("0000", "E0041")))
    )  # fmt: skip
    plain = "tab\t line\n \u200d joiner \u0645\u0631 中文 é 👩\u200d👩"
    assert str(views.visible(plain)) == plain
    assert str(views.visible("<a href='x'>&\"")) == "&lt;a href=&#39;x&#39;&gt;&amp;&#34;"
    assert "U+202E" in views.visible(TURNED) and "<script" not in views.visible(SCRIPT)


# -- knowledge, memories, reports -------------------------------------------------------------------------------------


def test_knowledge_lists_documents_and_answers_a_query(made, client):
    page = Page(client.get("/knowledge").text)
    assert "docs/pandas.md" in page.text and "docs/内存 & <b>.md" in page.text
    links = [tag["href"] for tag in page.all("a") if (tag.get("href") or "").startswith("/knowledge/document")]
    assert len(links) == 2
    texts = [Page(client.get(link).text).text for link in links]
    assert any("Downcast the numbers." in text for text in texts) and any("category 节省内存" in text for text in texts)
    found = Page(client.get("/knowledge", params={"q": "怎样节省内存"}).text).text
    hit = made.kb.search("怎样节省内存", 10)[0]
    assert hit.cite in found and f"{hit.score:.2f}" in found
    assert client.get("/knowledge/document?source=nope").status_code == 404


def test_a_memory_is_deleted_by_a_post_of_our_own_page_only(made, client):
    id = made.memory.add("to be deleted 删除我", type="semantic")
    form, mine = {"user": USER, "id": id}, {"origin": ORIGIN}
    assert "to be deleted" in client.get("/memory").text
    assert client.post("/memory/delete", data=form).status_code == 403  # without an Origin
    assert client.post("/memory/delete", data=form, headers={"origin": "http://evil.example"}).status_code == 403
    stranger = TestClient(client.app, base_url=ORIGIN)
    assert stranger.post("/memory/delete", data=form, headers=mine).status_code == 401
    assert "to be deleted" in client.get("/memory").text
    answer = client.post("/memory/delete", data=form, headers=mine)
    assert answer.status_code == 200 and "Deleted." in answer.text and "to be deleted" not in answer.text
    assert "to be deleted" not in {row.content for row in made.memory.all()}
    again = client.post("/memory/delete", data=form, headers=mine)
    assert again.status_code == 404 and "Traceback" not in again.text
    assert client.post("/memory/delete", data={}, headers=mine).status_code == 404
    assert client.post("/memory/delete", content=b"x" * 20_000, headers=mine).status_code == 413


def test_a_user_made_up_in_the_address_opens_nothing(made):
    opened = []

    def open_memory(user):
        opened.append(user)
        return made.memory

    client = client_of(Stores(memory=open_memory, users=made.memory.users, user=USER))
    answer = client.get("/memory?user=nobody<b>")
    assert answer.status_code == 200 and WORDS["en"]["none"] in answer.text and opened == []
    assert "Ada prefers" in client.get("/memory").text and opened == [USER]


def test_reports_are_sandboxed(made, client):
    page = Page(client.get("/reports").text)
    (frame,) = page.all("iframe")
    assert frame["sandbox"] is None and frame["src"] == "/reports/r%201.html"
    answer = client.get("/reports/r%201.html")
    assert "A report" in answer.text
    policy = answer.headers["content-security-policy"]
    assert "sandbox" in policy.split("; ") and "script-src" not in policy and "default-src 'none'" in policy
    for name in ("../kb/audit.sqlite3", "..%2fkb%2faudit.sqlite3", "nope.html", "%2e%2e"):
        assert client.get(f"/reports/{name}").status_code == 404


# -- what is not there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    ["/nope", "/build/ffffffffffff", "/build/x", "/build/ffffffffffff/what-if", "/build/ffffffffffff/item/1",
     "/diff?a=ffffffff&b=ffffffff", "/?before=ffffffffffff", "/build/%00", "/build/%F0%9F%98%80%F0%9F%98%80"],
)  # fmt: skip
def test_what_is_not_there_is_a_friendly_404(client, address):
    for language in ("en", "zh"):
        answer = client.get(address, headers={"accept-language": language})
        assert answer.status_code == 404 and "Traceback" not in answer.text
        assert address.endswith("what-if") or WORDS[language]["builds"] in answer.text


def test_comparing_wants_two(made, client):
    for address in ("/diff", f"/diff?id={made.plain}", f"/diff?a={made.plain}"):
        answer = client.get(address)
        assert answer.status_code == 400 and WORDS["en"]["choose_two"] in answer.text
    two = client.get(f"/diff?id={made.plain}&id={made.chinese}").text  # the older comes first
    assert two.index(CHINESE) < two.index(QUESTION)


def test_nothing_to_look_at_is_told():
    client = client_of(Stores())
    for address, word in (
        ("/", "no_audit"),
        ("/knowledge", "no_kb"),
        ("/memory", "no_memory"),
        ("/reports", "no_reports"),
    ):
        answer = client.get(address)
        assert answer.status_code == 200 and WORDS["en"][word].split(":")[0] in answer.text


def test_a_missing_or_broken_audit_is_told_on_the_page(tmp_path):
    with AuditLog(tmp_path / "none.sqlite3") as log:
        client = client_of(Stores(audit=log))
        answer = client.get("/")
        assert answer.status_code == 200 and WORDS["en"]["none"] in answer.text
        answer = client.get("/build/ffffffffffff")
        assert answer.status_code == 500 and "there is no audit at" in answer.text
    broken = tmp_path / "broken.sqlite3"
    broken.write_bytes(b"this is no database " * 400)
    empty = tmp_path / "empty.sqlite3"
    empty.write_bytes(b"")
    other = tmp_path / "other.sqlite3"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    for path in (broken, empty, other):
        with AuditLog(path) as log:
            answer = client_of(Stores(audit=log)).get("/")
            assert answer.status_code in (200, 500) and "Traceback" not in answer.text, path
            if path != empty:
                assert path.name in answer.text


# -- words and parts --------------------------------------------------------------------------------------------------


def test_both_languages_have_the_same_words_and_all_are_used():
    english, chinese = WORDS["en"], WORDS["zh"]
    assert english.keys() == chinese.keys() and all(english.values()) and all(chinese.values())
    fields = {name: [set(re.findall(r"{(\w+)}", words[name])) for words in (english, chinese)] for name in english}
    assert all(one == two for one, two in fields.values())
    assert {f"fate_{reason}" for reason in (*DROP_REASONS, "full", "extracted", "summarised", "truncated")} <= set(
        english
    )
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in (*HERE.rglob("*.html"), HERE / "pages.py", HERE / "views.py")
    )
    families = ("fate_", "part_", "source_", "type_")
    unused = {
        name for name in english
        if not name.startswith(families) and not re.search(rf'words\.{name}\b|"{name}"', sources)
    }  # fmt: skip
    assert unused <= {"fill_skip", "fill_stop", "came", "went", "moved", "changed", "shortened"}
    used = set(re.findall(r"words\.(\w+)", sources)) - {"get", "items"}
    assert used <= set(english)


def test_a_chinese_page_says_in_chinese_why(made, client):
    page = Page(client.get(f"/build/{made.plain}?lang=zh").text).text
    for english in ("did not fit", "Evidence\n", "documents\n", "history\n"):
        assert english not in page.replace("[Evidence]", "")
    assert "剩余空间放不下" in page and "证据" in page and "传入文档" in page
    assert "did not fit in what was left" in Page(client.get(f"/build/{made.plain}?lang=en").text).text
    page = Page(client.get(f"/build/{made.plain}?lang=zh&max_tokens=20").text).text
    assert "不可裁剪的部分需要" in page and "never cut" not in page
    page = Page(client.get("/memory?lang=zh").text).text
    assert "语义记忆" in page and "semantic" not in page
    change = Page(client.get(f"/diff?a={made.chinese}&b={made.plain}&lang=zh").text).text
    assert "with" not in re.sub(r"[a-z ]*pandas[^\n]*", "", change.casefold())
    client.get("/?lang=en")


def test_every_reason_of_the_pipeline_is_known_in_chinese():
    """Read from the sources: whoever adds a reason adds its Chinese."""
    found = {}
    for path in (HERE.parent).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or getattr(node.func, "attr", getattr(node.func, "id", "")) != "drop":
                continue
            if len(node.args) == 2 and isinstance(node.args[1], (ast.Constant, ast.JoinedStr)):
                parts = node.args[1].values if isinstance(node.args[1], ast.JoinedStr) else [node.args[1]]
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in parts)
                found[text.replace("fit7", "fit")] = path.name
    assert len(found) > 12
    unknown = {text: name for text, name in found.items() if said_in("zh", text) == text}
    assert not unknown
    assert said_in("zh", "ValueError: 7; no") == "ValueError: 7; no"  # what is not known stays as it is
    for reason in ("dropped: budget (did not fit in what was left)", "extracted with 7 tokens (score 0.5)"):
        assert not re.search("[a-z]{3}", said_in("zh", reason).replace("token", ""))


@pytest.mark.parametrize(
    ("number", "documents", "chinese"), [(0, "0 documents", "0 个文档"), (1, "1 document", "1 个文档"),
                                         (1234, "1,234 documents", "1,234 个文档")],
)  # fmt: skip
def test_nouns_agree_with_their_numbers(number, documents, chinese):
    assert [counted(number, WORDS[language]["n_documents"]) for language in ("en", "zh")] == [documents, chinese]


@pytest.mark.parametrize(
    ("header", "language"),
    [("zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("en-GB,en;q=0.9,zh;q=0.8", "en"), ("de,fr;q=0.9", "en"), ("", "en"),
     ("de, zh;q=0.2", "zh"), ("en;q=0.1, zh;q=0.9", "zh"), ("zh;q=x, en", "en"), ("*;;;,,", "en")],
)  # fmt: skip
def test_the_language_is_the_first_that_a_browser_asks_for(header, language):
    assert language_of(header) == language


def test_a_chosen_language_stays(made, client):
    answer = client.get("/?lang=zh&q=pandas", headers={"accept-language": "en"})
    assert WORDS["zh"]["builds"] in answer.text and 'lang="zh-Hans"' in answer.text
    assert "/?q=pandas&amp;lang=en" in answer.text
    assert WORDS["zh"]["knowledge"] in client.get("/knowledge", headers={"accept-language": "en"}).text
    assert client.get("/?lang=xx").status_code == 200


def test_without_the_extra_the_error_names_it():
    code = (
        "import sys; sys.modules['starlette'] = None\n"
        "try: import ctx_vector.inspector\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "OptionalDependencyError the inspector needs the extra 'web'; install it with: pip install 'ctx_vector[web]'\n"
    )


def test_a_row_names_the_twin_by_what_it_is_cited_by():
    cited = [{"content": "apples", "source": "a.md", "id": "1"}, {"content": "apples", "source": "b.md", "id": "2"}]
    builder = ContextBuilder(config=ContextConfig(strategy="jaccard"))
    built = builder.assemble("apples", documents=[*cited, {"content": "apples", "id": "3"}])
    rows = views.candidates_of(built, lambda item: item.tokens, whole=True)
    assert [row["why"] for row in rows] == ["", "same text as a.md", "same text as a.md"]
    assert [item.detail for item in built.dropped] == ["same text as documents:1"] * 2  # the record keeps to the id
