"""The inspector in a real browser: sliders, sorting, keys, widths, and that nothing runs or is fetched from elsewhere.

Needs the package playwright and a Chromium on this machine (Debian: apt-get install chromium).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import timedelta, timezone
from urllib.parse import parse_qs, urlsplit

import pytest
from inspector_help import CHINESE, MANY, QUESTION, USER, Made, running

from ctx_vector.audit_decode import restored_counter
from ctx_vector.replay import rebuild

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium (Debian: apt-get install chromium)")
FLAGS = ["--headless", "--disable-background-networking"]
if hasattr(os, "geteuid") and os.geteuid() == 0:
    FLAGS.append("--no-sandbox")  # Chromium refuses to start as root with it


@pytest.fixture(scope="module")
def made(tmp_path_factory, encoder) -> Iterator[Made]:
    made = Made(tmp_path_factory.mktemp("inspector"), encoder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def url(made: Made) -> Iterator[str]:
    with running(made.stores) as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, url):
    """Return a function that opens a page; afterwards nothing may have failed, run or left this host."""
    contexts, wrong = [], []
    host = urlsplit(url).netloc

    def open(path: str = "/", *, width: int = 1280, scheme: str = "light", locale: str = "en-US"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, locale=locale)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda asked: None if urlsplit(asked.url).netloc == host else wrong.append(asked.url))
        page.goto(url)
        page.goto(f"http://{host}{path}")
        return page

    yield open
    for context in contexts:
        context.close()
    assert wrong == []


def paths(made: Made) -> dict[str, str]:
    return {
        "builds": "/",
        "build": f"/build/{made.plain}",
        "what if": f"/build/{made.plain}?max_tokens=250&relevance_weight=0.4",
        "too small": f"/build/{made.plain}?max_tokens=10",
        "hostile": f"/build/{made.hostile}",
        "hostile item": f"/build/{made.hostile}/item/0",
        "large": f"/build/{made.large}",
        "huge": f"/build/{made.huge}",
        "diff": f"/diff?a={made.chinese}&b={made.plain}",
        "knowledge": "/knowledge?q=memory",
        "document": "/knowledge/document?source=docs/pandas.md",
        "memory": "/memory",
        "reports": "/reports",
    }


@pytest.mark.parametrize(
    ("width", "locale", "scheme"),
    [(1280, "zh-CN", "dark"), (390, "zh-CN", "light"), (320, "en-US", "light")],
)
def test_pages_fit_their_width_and_nothing_of_them_runs(made, open_page, width, locale, scheme):
    page = open_page(width=width, scheme=scheme, locale=locale)
    base = page.url.rstrip("/")
    for name, path in paths(made).items():
        if name == "reports":
            continue  # the report of the tests holds a script, which Chromium tells about: see below
        page.goto(base + path)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, (name, width)
        assert page.evaluate("window.hit") is None, name
        assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0, name
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor").removeprefix("rgb(")
        assert (int(dark.split(",")[0]) < 60) == (scheme == "dark")
        assert page.locator("html").get_attribute("lang") == ("zh-Hans" if locale == "zh-CN" else "en")


def contrast(page, selector: str) -> float:
    """Return the contrast of a text to what is behind it, by WCAG's formula."""
    return page.locator(selector).first.evaluate("""(node) => {
      const light = (colour) => {
        const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3)
          .map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      let behind = node;
      const clear = (colour) => colour === "transparent" || /, 0\\)$/.test(colour);
      while (behind.parentElement && clear(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
      const [a, b] = [light(getComputedStyle(node).color), light(getComputedStyle(behind).backgroundColor)];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }""")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out(made, open_page, scheme):
    page = open_page(f"/build/{made.plain}?max_tokens=250", scheme=scheme)
    kinds = [f".seen.k-{kind} .title" for kind in ("role", "task", "evidence", "context", "output")]
    for selector in (
        *kinds,
        ".seen pre",
        ".tag",
        ".facts",
        ".legend",
        "td.why",
        ".fate.yes",
        ".fate.no",
        "nav a",
        "h1",
    ):
        assert contrast(page, selector) >= 4.5, selector


def test_a_slider_builds_anew(made, open_page):
    page = open_page(f"/build/{made.plain}")
    before = page.locator(".sum strong").inner_text()
    assert page.locator(".changes").count() == 0
    page.locator("#messages > summary").click()
    with page.expect_response(lambda answer: "/what-if" in answer.url):
        page.locator("input[name=max_tokens]").evaluate(
            "(node) => { node.value = 250; node.dispatchEvent(new Event('input', {bubbles: true})); }"
        )
    page.locator(".changes").wait_for()
    trace = made.audit.show(made.plain).built.trace
    expected = rebuild(trace, restored_counter(trace.facts), config=trace.config.with_(max_tokens=250))
    after = page.locator(".sum strong").inner_text()
    assert after == f"{expected.budget.total_used:,}" != before
    assert page.locator("#candidates tr.kept").count() == len(expected.kept)
    assert "config.max_tokens" in page.locator(".changes").inner_text()
    assert page.locator("#messages").evaluate("(node) => node.open")  # what was open stays open
    assert after in page.locator("#said").text_content()  # told to screen readers
    assert parse_qs(urlsplit(page.url).query)["max_tokens"] == ["250"]
    page.reload()
    assert page.locator(".sum strong").inner_text() == after
    page.locator(".sliders .button").click()
    page.wait_for_url(f"**/build/{made.plain}")
    assert page.locator(".sum strong").inner_text() == before


def test_a_slider_is_dragged_by_the_mouse_and_by_keys(made, open_page):
    page = open_page(f"/build/{made.plain}")
    slider = page.locator("input[name=relevance_weight]")
    box = slider.bounding_box()
    with page.expect_response(lambda answer: "/what-if" in answer.url):
        page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + box["height"] / 2, steps=8)
        page.mouse.up()
    assert float(slider.input_value()) < 0.35
    page.locator(".changes").wait_for()
    budget = page.locator("input[name=max_tokens]")
    budget.focus()
    with page.expect_response(lambda answer: "max_tokens=390" in answer.url):
        page.keyboard.press("ArrowLeft")
    assert budget.input_value() == "390"
    assert page.locator(".sliders output").first.inner_text() == "390"


def test_a_phone_shows_every_figure_by_its_name(made, open_page):
    page = open_page(f"/build/{made.plain}", width=390)
    row = page.locator("#candidates tr.gone").first
    names = [
        cell.evaluate("(node) => getComputedStyle(node, '::before').content") for cell in row.locator("td.number").all()
    ]
    assert [name.split('"')[1].strip() for name in names] == ["Relevance", "Recency", "Score", "Tokens"]
    assert all(cell.is_visible() for cell in row.locator("td.number").all())
    assert int(row.locator("td.number").nth(3).inner_text()) > 0
    page.goto(page.url.split("/build")[0] + "/knowledge")
    path = page.locator("#documents td.path").first
    assert path.bounding_box()["width"] > 300
    assert path.bounding_box()["height"] < 40


def test_times_are_the_viewer_s_own_with_utc_in_the_title(made, browser, url):
    context = browser.new_context(timezone_id="Asia/Shanghai")
    try:
        page = context.new_page()
        page.goto(url)
        page.goto(url.split("?")[0] + f"build/{made.plain}")
        time = page.locator("main time").first
        at = made.audit.show(made.plain).created_at
        assert time.inner_text() == f"{at.astimezone(timezone(timedelta(hours=8))):%Y-%m-%d %H:%M:%S}"
        assert time.get_attribute("title") == f"{at:%Y-%m-%d %H:%M:%S} UTC"
    finally:
        context.close()


def test_tables_sort_and_filter(made, open_page):
    page = open_page(f"/build/{made.plain}")
    total = page.locator("#candidates tbody tr").count()

    def column(place: int) -> list[str]:
        return page.locator(f"#candidates tbody tr:not([hidden]) td:nth-child({place})").all_inner_texts()

    page.get_by_role("button", name="Score").click()
    scores = [float(text) for text in column(6)]
    assert scores == sorted(scores, reverse=True) and len(scores) == total
    page.get_by_role("button", name="Score").click()
    scores = [float(text) for text in column(6)]
    assert scores == sorted(scores)
    page.locator("#candidates").get_by_role("button", name="Section").click()
    assert column(2) == sorted(column(2), key=str.casefold)
    page.locator("[data-filter=candidates]").fill("history")
    assert set(column(3)) == {"history"}
    page.locator("[data-filter=candidates]").fill("")
    assert len(column(3)) == total


def test_whoever_sorts_or_filters_a_long_table_means_the_whole(made, open_page):
    page = open_page(f"/build/{made.large}")
    rows = page.locator("#candidates tbody tr")
    assert rows.count() < MANY
    built = made.audit.show(made.large).built
    page.locator("[data-filter=candidates]").fill("document 1997 ")
    sync_api.expect(page.locator("#candidates tbody tr:not([hidden])")).to_have_count(1)
    assert page.locator("[data-some]").count() == 0
    assert rows.count() == len(built.kept) + len(built.dropped)


def test_scrolling_a_build_with_thousands_of_candidates_keeps_up(made, open_page):
    """Frames while the page scrolls through everything; no bound on a shared machine but that it is no standstill."""
    page = open_page(f"/build/{made.large}?all=1")
    longest = page.evaluate("""async () => {
      const times = [];
      let last = performance.now();
      for (let step = 0; step < 40; step++) {
        window.scrollBy(0, 1500);
        await new Promise((done) => requestAnimationFrame(done));
        const now = performance.now();
        times.push(now - last);
        last = now;
      }
      return times.sort((a, b) => a - b)[30];
    }""")
    assert longest < 250


def test_the_keyboard_reaches_everything(made, open_page):
    page = open_page("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.type("Pandas/")  # in a field it is a letter
    assert page.evaluate("document.activeElement.value") == "Pandas/"
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=Pandas*")
    assert page.locator("ol.builds li").count() == 2
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('ol.builds a.query')"):
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/build/*")
    assert page.locator("h1").inner_text() == QUESTION
    header = page.locator("#candidates").get_by_role("button", name="Tokens")
    header.focus()
    page.keyboard.press("Enter")
    page.locator("th[aria-sort]").wait_for()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_two_builds_of_the_list_are_compared(made, open_page):
    page = open_page("/")
    for id in (made.plain, made.chinese):
        page.locator(f"input[value='{id}']").check()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/diff?*")
    assert page.locator(".card .query").all_inner_texts() == [CHINESE, QUESTION]


def test_deleting_a_memory_asks_first(made, browser, url):
    made.memory.add("a memory that goes 会消失", type="semantic")
    context = browser.new_context()
    try:
        page = context.new_page()
        answers = iter(["dismiss", "accept"])
        page.on("dialog", lambda dialog: getattr(dialog, next(answers))())
        page.goto(url)
        page.goto(url.split("?")[0] + f"memory?user={USER}")
        entry = page.locator("ol.hits li", has_text="a memory that goes")
        entry.get_by_role("button").click()
        assert entry.count() == 1
        entry.get_by_role("button").click()
        page.wait_for_url("**deleted=1*")
        assert entry.count() == 0 and "Deleted." in page.locator("main").inner_text()
    finally:
        context.close()
    assert not any("a memory that goes" in row.content for row in made.memory.all())


def test_a_report_runs_nothing(browser, url):
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(url)
        page.goto(url.split("?")[0] + "reports")
        frame = page.frame_locator("iframe.report")
        assert frame.locator("h1").inner_text() == "A report"
        assert "hit" not in page.title()
    finally:
        context.close()


def test_pages_work_without_scripts(made, browser, url):
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(url)
        page.goto(url.split("?")[0] + f"build/{made.plain}")
        page.locator("input[name=max_tokens]").press("ArrowLeft")
        page.get_by_role("button", name="Recalculate").click()
        page.wait_for_url("**max_tokens=390*")
        assert "config.max_tokens" in page.locator(".changes").inner_text()
        assert page.locator("main time").first.inner_text().endswith(" UTC")
    finally:
        context.close()
