"""Calibrated relevance: the formula, its shares of right decisions, and its file."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import platformdirs
import pytest

from ctx_vector import ContextBuilder, ContextConfig, ContextPacket, calibration, measurements
from ctx_vector.calibration import QUERY_SHARE, STATEMENT_SHARE, TEXT_SHARE, Calibration, load_calibration
from ctx_vector.calibration_measure import measure
from ctx_vector.encoders import CachedEncoder
from ctx_vector.errors import ModelError
from ctx_vector.languages import LANGUAGES, language_of
from ctx_vector.measurements import background, statements
from ctx_vector.relevance_map import AT_LINE, OTHER_LANGUAGE, PairMap

ROOT = Path(__file__).resolve().parent.parent
LINE = 0.1
LEAST_SHARE = 0.88
CASES = {"xquad-en": ("en", "en"), "xquad-zh": ("zh", "zh"), "xquad-zh-en": ("zh", "en")}


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory) -> Iterator[Path]:
    """Keep what is measured here, and what was measured on this machine before, apart."""
    folder = tmp_path_factory.mktemp("calibration")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platformdirs, "user_cache_path", lambda name: folder / name)
        yield folder / "ctx_vector" / "calibration"


@pytest.fixture(scope="module")
def cached(encoder) -> CachedEncoder:
    return CachedEncoder(encoder, capacity=20_000)


@pytest.fixture(scope="module")
def shipped(cached: CachedEncoder, own_cache: Path) -> Calibration:
    return load_calibration(cached)


class StubEncoder:
    """Eight numbers a text, from its digest."""

    name, dim, max_tokens = "stub", 8, 512

    def __init__(self, fingerprint: str = "stub:1") -> None:
        self.fingerprint = fingerprint
        self.encoded = 0

    def encode_documents(self, texts) -> np.ndarray:
        self.encoded += len(texts)
        rows = np.array([list(hashlib.sha256(text.encode()).digest()[:8]) for text in texts], np.float32) - 128
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    encode_queries = encode_documents

    def count_tokens(self, texts) -> list[int]:
        return [len(text) for text in texts]


# --- languages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("", "en"),
        ("plain words", "en"),
        ("def f(x): return x", "en"),
        ("café naïve", "en"),
        ("如何优化内存", "zh"),
        ("如何优化Pandas的内存占用?", "zh"),
        ("请用 Docker Compose 部署 Redis 与 PostgreSQL", "zh"),
        ("What does 你好 mean in English, and how is it pronounced?", "en"),
        ("東京タワーはどこですか", "other"),
        ("どうやって Python を install しますか", "other"),
        ("도쿄 타워는 어디에 있습니까", "other"),
        ("Где находится музей", "other"),
        ("أين المتحف", "other"),
        ("😀😀", "en"),
        ("12345 !!", "en"),
        ("𠀀𠀁", "zh"),
    ],
)
def test_language_of(text: str, language: str) -> None:
    assert language_of(text) == language


def test_language_of_looks_at_the_beginning_of_a_long_text() -> None:
    assert language_of("中文" * 500_000 + "word " * 500_000) == "zh"


# --- the formula ------------------------------------------------------------------------------------------------------


def by_hand(found: Calibration, query_text: str, query: np.ndarray, text: str, vector: np.ndarray) -> float:
    """The formula of the module's docstring, one number at a time."""
    asked, said = (lang if lang in LANGUAGES else "zh" for lang in (language_of(query_text), language_of(text)))
    pair = found.pairs[asked, said]

    def dot(a: np.ndarray, b: np.ndarray) -> float:
        return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))

    g = pair.unrelated
    to_query = max(dot(query, found.passages[said]), dot(query, found.statements[said])) - g
    r = g + STATEMENT_SHARE * (dot(found.passages[said], found.statement_questions[asked]) - g)
    to_text = max(dot(vector, found.questions[asked]) - g, dot(vector, found.statement_questions[asked]) - r)
    e = (
        dot(query, vector)
        - g
        - QUERY_SHARE * to_query
        - (to_text * (TEXT_SHARE if asked == said else 1) if to_text > 0 else 0)
    )
    if e < pair.line:
        value = 0.1 * math.exp(3 / pair.line * (e - pair.line))
    elif e < pair.match:
        value = 0.1 + 0.6 * (e - pair.line) / (pair.match - pair.line)
    else:
        value = 1 - 0.3 * (1 / 3) ** ((e - pair.match) / (pair.high - pair.match))
    if language_of(query_text) != language_of(text) and value > 0.1:
        value = 0.1 + OTHER_LANGUAGE * (value - 0.1)
    return value


TEXTS = [
    "The museum opens at nine.", "博物馆九点开门。", "美術館は九時に開きます。", "Музей открывается в девять.",
    "def f(): pass", "I go to the museum every Sunday.", "我每个星期天去博物馆。",
    "猫喜欢睡在窗台上。", "Cats like to sleep.", "x", "", "😀",
]  # fmt: skip


@pytest.mark.parametrize("query", ["When does the museum open?", "博物馆几点开门?", "美術館は何時に開きますか", "cats"])
def test_relevance_is_the_formula(shipped: Calibration, cached: CachedEncoder, query: str) -> None:
    asked, vectors = cached.encode_queries([query])[0], cached.encode_documents(TEXTS)
    found = shipped.relevance(query, asked, TEXTS, vectors)
    expected = [by_hand(shipped, query, asked, text, vector) for text, vector in zip(TEXTS, vectors, strict=True)]
    assert found == pytest.approx(expected, abs=1e-9)
    assert found.dtype == np.float64 and found.min() >= 0 and found.max() <= 1
    for row, text in enumerate(TEXTS):  # the same bits alone
        assert shipped.relevance(query, asked, [text], vectors[row : row + 1])[0] == found[row]


@pytest.mark.parametrize("query", ["", "  \n", "\u3000"])
def test_a_blank_query_gives_zeros(shipped: Calibration, query: str) -> None:
    vectors = np.ones((2, 384), np.float32) / math.sqrt(384)
    assert shipped.relevance(query, vectors[0], ["a", "文"], vectors).tolist() == [0.0, 0.0]


def test_no_texts_give_no_scores(shipped: Calibration) -> None:
    assert shipped.relevance("q", np.ones(384, np.float32), [], np.empty((0, 384), np.float32)).shape == (0,)


@pytest.mark.parametrize("pair", [(q, d) for q in LANGUAGES for d in LANGUAGES])
def test_the_map_ascends_and_goes_through_its_points(shipped: Calibration, pair: tuple[str, str]) -> None:
    points = shipped.pairs[pair]
    excess = np.linspace(-0.6, 0.6, 4001)
    values = points.relevance(excess)
    assert (np.diff(values) > 0).all()
    assert values.min() >= 0 and values.max() <= 1
    assert points.relevance(np.array([points.line, points.match, points.high])) == pytest.approx([0.1, 0.7, 0.9])
    assert 0 < points.line < points.match < points.high


@pytest.mark.parametrize("asked", LANGUAGES)
def test_the_least_product_of_a_relevance_is_just_below_it(shipped: Calibration, asked: str) -> None:
    query = shipped.asked({"en": "a", "zh": "文"}[asked], shipped.questions[asked])
    points = query.points(["en", "zh", "other"])
    most = 0.1 + 0.9 * OTHER_LANGUAGE  # a text in another language than the question's cannot have every relevance
    for relevance in [1e-300, 1e-9, 0.05, 0.1, 0.1 + 1e-12, 0.4, 0.525, 0.595, 0.69, 0.7, 0.77, 0.85, 0.9, 1 - 1e-8]:
        products = np.array(query.least_products(relevance, points))
        assert (query.relevance(query.excess_of(products, points), points) < relevance).all()
        reached = query.relevance(query.excess_of(products + 2e-6, points), points) >= relevance
        assert (reached | (points[7] < 1) & (relevance > most)).all()
    assert query.least_products(0.0, points) == [-np.inf] * 3
    assert np.isfinite(query.least_products(1.0, points)).all()


@pytest.mark.parametrize("asked", [*LANGUAGES, "other"])
@pytest.mark.parametrize("said", [*LANGUAGES, "other"])
def test_texts_of_a_language_rank_by_the_direction_as_by_their_relevance(
    shipped: Calibration, asked: str, said: str
) -> None:
    rng = np.random.default_rng(3)
    rows = shipped.mean_passage(said) + rng.standard_normal((300, 384)).astype(np.float32) * 0.02
    questions = shipped.questions["en" if asked == "en" else "zh"]
    rows += np.linspace(-0.1, 0.2, 300).astype(np.float32)[:, None] * questions
    query = shipped.asked({"en": "a", "zh": "文", "other": "博物館はどこですか"}[asked], questions + 0.5 * rows[0])
    points = query.points([said])
    excess, cosines = query.excess(rows, points)
    ranked = shipped.ranked(said, rows)
    assert ranked.shape == (300, 386) and (ranked[:, :384] == rows).all()
    # on both sides of what is usual, and what is over it is lost, half of it before one's own questions
    share = TEXT_SHARE if (asked == "en") == (said == "en") else 1
    key = ("en" if asked == "en" else "zh"), ("en" if said == "en" else "zh")
    inquiry = shipped.statement_questions[key[0]].astype(np.float64)
    usual = float(shipped.passages[key[1]].astype(np.float64) @ inquiry) - points[0]
    of_statements = rows.astype(np.float64) @ inquiry - points[0] - STATEMENT_SHARE * usual
    of_passages = rows.astype(np.float64) @ questions.astype(np.float64) - points[0]
    over = np.maximum(of_passages, of_statements)
    assert over.min() < -0.05 and over.max() > 0.05
    assert ranked[:, 384 if asked == "en" else 385] == pytest.approx(share * np.maximum(over, 0), abs=1e-6)
    assert excess == pytest.approx(cosines - points[0] - points[1] - share * np.maximum(over, 0), abs=1e-12)
    products = ranked.astype(np.float64) @ query.direction.astype(np.float64)
    assert query.excess_of(products, points) == pytest.approx(excess, abs=1e-6)
    assert (np.argsort(cosines) != np.argsort(excess)).any()
    order = np.argsort(products)
    assert (np.diff(query.relevance(excess, points)[order]) > -1e-6).all()


@pytest.mark.parametrize("languages", [("en", "en"), ("zh", "zh"), ("zh", "en")])
def test_relevance_rises_with_the_cosine_within_a_language_pair(
    shipped: Calibration, cached: CachedEncoder, languages: tuple[str, str]
) -> None:
    """Along the way from a text that resembles everything as much to the query itself."""
    question = {"en": "When does the museum open?", "zh": "博物馆几点开门?"}[languages[0]]
    query = cached.encode_queries([question])[0].astype(np.float64)
    generic = shipped.questions[languages[0]].astype(np.float64)
    # a direction that changes q·d and leaves d·Q as it is
    way = query - generic * (query @ generic) / (generic @ generic)
    steps = (0.9 * generic + np.linspace(-0.4, 0.4, 101)[:, None] * way).astype(np.float32)
    found = shipped.relevance_by_language(question, query.astype(np.float32), [languages[1]] * 101, steps)
    assert (np.diff(steps @ query) > 0).all() and (np.diff(found) > 0).all()


# --- shares of right decisions ----------------------------------------------------------------------------------------


def read_xquad(folder: Path, every: int) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return paragraphs, questions and the paragraph of each question; every nth paragraph only."""
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = {row["_id"]: row["text"] for row in rows[::every]}
    asked = [json.loads(line) for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()]
    pairs = (line.split("\t") for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:])
    owner = {query: text for query, text, _ in pairs if text in texts}
    return texts, {row["_id"]: row["text"] for row in asked if row["_id"] in owner}, owner


def judge(found: Calibration, encoder, texts: list[str], questions: list[str], own: list[int]) -> dict[str, float]:
    """Return the shares on the right side of the line, the matched share over 0.3, and R@1 raw and calibrated."""
    vectors, asked = encoder.encode_documents(texts), encoder.encode_queries(questions)
    relevance = np.array([found.relevance(q, v, texts, vectors) for q, v in zip(questions, asked, strict=True)])
    cosines = asked @ vectors.T
    mine = np.zeros(relevance.shape, bool)
    mine[np.arange(len(own)), own] = True
    return {
        "unrelated": float((relevance[~mine] < LINE).mean()),
        "matched": float((relevance[mine] >= LINE).mean()),
        "matched over 0.3": float((relevance[mine] > 0.3).mean()),
        "raw R@1": float((cosines.argmax(1) == own).mean()),
        "calibrated R@1": float((relevance.argmax(1) == own).mean()),
    }


def record(shares: dict[str, float]) -> None:
    """Show the shares under `--log-cli-level=INFO`."""
    logging.getLogger(__name__).info("%s", {name: round(share, 4) for name, share in shares.items()})


def judge_xquad(found: Calibration, encoder, shared: Path, case: str, every: int) -> dict[str, float]:
    texts, questions, owner = read_xquad(shared / "datasets" / case, every)
    places = {name: place for place, name in enumerate(texts)}
    return judge(found, encoder, list(texts.values()), list(questions.values()), [places[owner[q]] for q in questions])


@pytest.mark.parametrize("case", CASES)
def test_xquad_sample(shipped: Calibration, cached: CachedEncoder, shared: Path, case: str) -> None:
    shares = judge_xquad(shipped, cached, shared, case, every=8)
    record(shares)
    assert min(shares["unrelated"], shares["matched"]) >= LEAST_SHARE, shares
    assert min(shares["raw R@1"], shares["calibrated R@1"]) >= (0.88 if case == "xquad-zh-en" else 0.94), shares


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_xquad_whole(shipped: Calibration, cached: CachedEncoder, shared: Path, case: str) -> None:
    shares = judge_xquad(shipped, cached, shared, case, every=1)
    record(shares)
    assert min(shares["unrelated"], shares["matched"]) >= LEAST_SHARE, shares
    assert shares["calibrated R@1"] >= shares["raw R@1"] - 0.01, shares


@pytest.mark.parametrize(("asked", "said"), CASES.values(), ids=["en", "zh", "zh-en"])
def test_memories(shipped: Calibration, cached: CachedEncoder, asked: str, said: str) -> None:
    rows = [json.loads(line) for line in (ROOT / "tests/data/memories.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 100
    shares = judge(shipped, cached, [row[said] for row in rows], [row[f"q_{asked}"] for row in rows], list(range(100)))
    record(shares)
    assert min(shares["unrelated"], shares["matched"]) >= LEAST_SHARE, shares


# --- one text, one score ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["The museum opens at nine on weekdays.", "博物馆工作日九点开门。"])
def test_the_same_text_scores_the_same_wherever_it_comes_from(
    cached: CachedEncoder, shipped: Calibration, text: str, tmp_path: Path
) -> None:
    from ctx_vector import RAGTool

    query = "When does the museum open?"
    config = ContextConfig(min_relevance=0, knowledge_min_score=0, history_relevance=None)
    tool = RAGTool(knowledge_base_path=tmp_path / "kb", encoder=cached)
    tool.run({"action": "add_text", "text": text, "source": "note.txt"})
    plain = ContextBuilder(config=config, encoder=cached)
    noise = ["Cats sleep a lot.", "猫经常睡觉。"]
    builds = {
        "document": plain.assemble(user_query=query, documents=[text, *noise]),
        "custom": plain.assemble(user_query=query, custom_packets=[ContextPacket(text)]),
        "knowledge": ContextBuilder(config=config, encoder=cached, rag_tool=tool).assemble(user_query=query),
        "history": plain.assemble(user_query=query, conversation_history=[{"role": "user", "content": text}]),
    }
    scores = {
        name: [item.relevance for item in (*built.kept, *built.dropped) if item.packet.content == text]
        for name, built in builds.items()
    }
    vector = cached.encode_documents([text])
    expected = shipped.relevance(query, cached.encode_queries([query])[0], [text], vector)[0]
    assert expected > 0.3
    assert scores == {name: [pytest.approx(expected, abs=1e-6)] for name in builds}


# --- the background ---------------------------------------------------------------------------------------------------


def test_the_background_is_broad_and_written_in_both_languages() -> None:
    rows = background(ROOT / "models")
    assert len(rows) >= 300
    assert len({row["domain"] for row in rows}) >= 20
    for language in LANGUAGES:
        for key in (language, f"q_{language}"):
            texts = [row[key] for row in rows]
            assert len(set(texts)) == len(texts), f"repeated {key}"
            right = sum(language_of(text) == language for text in texts)
            assert right >= 0.99 * len(texts), f"{len(texts) - right} texts of {key} look like another language"
    lengths = sorted(len(row["en"]) for row in rows)
    assert lengths[len(rows) // 5] < 200 and lengths[-len(rows) // 5] > 400, "short and long texts"


def test_statements_are_short_and_about_oneself_in_both_languages() -> None:
    rows = statements(ROOT / "models")
    assert len(rows) >= 80
    assert len({row["domain"] for row in rows}) >= 12
    for language in LANGUAGES:
        texts = [row[key] for row in rows for key in (language, f"q_{language}")]
        assert len(set(texts)) == len(texts)
        assert all(language_of(text) == language for text in texts)
        assert max(map(len, texts)) < 100
    assert not {row["en"] for row in rows} & {row["en"] for row in background(ROOT / "models")}


def test_the_background_holds_none_of_the_memories_it_is_judged_by(shared: Path) -> None:
    keys = ("en", "zh", "q_en", "q_zh")
    held = {row[key] for row in (*background(ROOT / "models"), *statements(ROOT / "models")) for key in keys}
    rows = [
        json.loads(line)
        for name in ("memories", "personal_facts")
        for line in (ROOT / f"tests/data/{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    judged = {row[key] for row in rows for key in keys}
    for line in (ROOT / "tests/data/other_facts.jsonl").read_text(encoding="utf-8").splitlines():
        judged |= {value for value in json.loads(line).values() if isinstance(value, str) and len(value) > 10}
    for case in CASES:
        texts, questions, _ = read_xquad(shared / "datasets" / case, 1)
        judged |= {*texts.values(), *questions.values()}
    assert not held & judged


def test_a_missing_background_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no calibration background"):
        background(tmp_path)


# --- measuring and keeping --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_shipped_map_is_what_measuring_gives(shipped: Calibration, cached: CachedEncoder) -> None:
    """Across machines vectors agree to a cosine of 0.99, so the points may differ a little."""
    found = measure(cached, background(ROOT / "models"))
    for old, new in ((shipped.pairs, found.pairs), (shipped.centred, found.centred)):
        assert old.keys() == new.keys()
        for key, pair in old.items():
            # the points of the centred map are some four times as large
            near = 0.01 if old is shipped.pairs else 0.04
            points = [pytest.approx(value, abs=near) for value in (pair.unrelated, pair.line, pair.match, pair.high)]
            assert [new[key].unrelated, new[key].line, new[key].match, new[key].high] == points, key
    for name in LANGUAGES:
        for old, new in (
            (shipped.passages, found.passages),
            (shipped.questions, found.questions),
            (shipped.statements, found.statements),
            (shipped.statement_questions, found.statement_questions),
        ):
            assert float(new[name] @ old[name]) > 0.99 * float(old[name] @ old[name])
    assert found.report == {name: pytest.approx(share, abs=0.05) for name, share in shipped.report.items()}


SHIPPED = sorted(path for path in (ROOT / "models" / "calibration").glob("*.json") if ".late" not in path.name)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_files_are_usable_and_come_back_as_they_were(path: Path) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    found = Calibration.from_dict(values)
    assert found.model == path.stem
    assert found.to_dict() == values
    assert found.hash == Calibration.from_dict(json.loads(json.dumps(found.to_dict()))).hash
    assert len(found.hash) == 16


def test_another_encoder_is_measured_once_and_kept(own_cache: Path) -> None:
    encoder = StubEncoder("stub:once")
    first = load_calibration(encoder)
    assert encoder.encoded == 4 * (len(background(ROOT / "models")) + len(statements(ROOT / "models")))
    second = load_calibration(encoder)
    assert encoder.encoded == 4 * (len(background(ROOT / "models")) + len(statements(ROOT / "models")))
    assert first.hash == second.hash
    vectors = encoder.encode_documents(["a", "文"])
    one, two = (found.relevance("q", vectors[0], ["a", "文"], vectors) for found in (first, second))
    assert one.tolist() == two.tolist() and (0 <= one).all() and (one <= 1).all()
    assert not list(own_cache.glob("*.part"))
    assert load_calibration(StubEncoder("stub:other")).pairs


def broken(values: dict, **changes: object) -> str:
    return json.dumps({**values, **changes})


BROKEN = {
    "not json": lambda v: "{",
    "not utf-8": lambda v: b"\xff\xfe\xfa",
    "a list": lambda v: "[]",
    "null": lambda v: "null",
    "empty": lambda v: "{}",
    "no languages": lambda v: broken(v, passages={}),
    "no pairs": lambda v: broken(v, pairs={}),
    "no centred pairs": lambda v: broken(v, centred={}),
    "no hybrid": lambda v: broken(v, hybrid={}),
    "a hybrid without a unit": lambda v: broken(v, hybrid={key: [0.0, *row[1:]] for key, row in v["hybrid"].items()}),
    "measured for an older formula": lambda v: json.dumps({key: value for key, value in v.items() if key != "formula"}),
    "an older format": lambda v: json.dumps({key: value for key, value in v.items() if key != "centred"}),
    "pairs as a list": lambda v: broken(v, pairs=[1]),
    "odd pair name": lambda v: broken(v, pairs={"enen": [0, 1, 2, 3]}),
    "too few points": lambda v: broken(v, pairs={key: [0.1, 0.2] for key in v["pairs"]}),
    "points that fall": lambda v: broken(v, pairs={key: [0.7, 0.3, 0.2, 0.1] for key in v["pairs"]}),
    "nan": lambda v: broken(v, pairs={key: [math.nan, 0.1, 0.2, 0.3] for key in v["pairs"]}),
    "nan in a vector": lambda v: broken(v, questions={name: [math.nan] * 8 for name in LANGUAGES}),
    "no statements": lambda v: json.dumps({key: value for key, value in v.items() if key != "statements"}),
    "nan in statements": lambda v: broken(v, statement_questions={name: [math.nan] * 8 for name in LANGUAGES}),
    "uneven vectors": lambda v: broken(v, questions={"en": [1.0] * 8, "zh": [1.0] * 7}),
}


@pytest.fixture
def small_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure on a part of the background, where only that it is measured matters."""
    rows = background(ROOT / "models")[::10]
    monkeypatch.setattr(measurements, "background", lambda: rows)


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_warned_of_and_measured_again(
    own_cache: Path, small_background: None, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    encoder = StubEncoder(f"stub:{how}")
    good = load_calibration(encoder)
    path = calibration.calibration_path(encoder)
    text = BROKEN[how](json.loads(path.read_text()))
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    encoder.encoded = 0
    with caplog.at_level(logging.WARNING, "ctx_vector.measurements"):
        again = load_calibration(encoder)
    assert encoder.encoded > 0 and again.hash == good.hash
    assert "cannot be read" in caplog.text and path.name in caplog.text
    assert load_calibration(encoder).hash == good.hash


def test_a_map_of_another_dimension_is_left_alone(own_cache: Path, small_background: None) -> None:
    class Renamed(StubEncoder):
        name = "some/multilingual-e5-small"  # its card's map has 384 dimensions, this encoder 8

    encoder = Renamed("stub:renamed")
    assert load_calibration(encoder).passages["en"].shape == (8,)


def test_a_cache_that_cannot_be_written_costs_only_time(
    small_background: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: blocker / name)
    with caplog.at_level(logging.WARNING, "ctx_vector.measurements"):
        assert load_calibration(StubEncoder()).pairs
    assert "cannot be kept" in caplog.text


def test_the_cache_lies_in_the_users_folder_by_fingerprint(own_cache: Path) -> None:
    one, two = (calibration.calibration_path(StubEncoder(name)) for name in ("stub:1", "stub:2"))
    assert one.parent == two.parent == own_cache
    assert one != two


def test_an_encoder_that_cannot_tell_anything_apart_still_gets_a_map() -> None:
    class Constant(StubEncoder):
        def encode_documents(self, texts) -> np.ndarray:
            return np.full((len(texts), 8), 8**-0.5, np.float32)

        encode_queries = encode_documents

    found = Calibration.from_dict(measure(Constant(), background(ROOT / "models")[:20]).to_dict())
    vectors = Constant().encode_documents(["a"])
    assert 0 <= found.relevance("q", vectors[0], ["a"], vectors)[0] <= AT_LINE


def test_pair_maps_take_extreme_excesses() -> None:
    values = PairMap(0.7, 0.03, 0.08, 0.13).relevance(np.array([-2.0, 2.0]))
    assert 0 <= values[0] < 1e-9 and 0.99 < values[1] <= 1
