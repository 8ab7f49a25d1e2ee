"""The second pass, by late interaction, a cross-encoder or somebody's own: in searches, in builds and their repeats."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_vector import ContextBuilder, ContextConfig, KnowledgeBase, Memory, MemoryTool, RAGTool
from ctx_vector.audit import AuditLog
from ctx_vector.errors import ConfigError, CtxVectorError, InputError, ModelError
from ctx_vector.late import LateScorer
from ctx_vector.replay import rebuild
from ctx_vector.rerank import SecondPass, SecondPasses, check_reranker, fuse
from ctx_vector.settings import parse_settings
from ctx_vector.stages import Candidates, Query
from tests.test_hybrid import chunks

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ASKED = "Where do the nightly backups go?"
ASKED_ZH = "每晚的备份存到哪里？"
DOCUMENTS = {
    "backup.md": "# Backups\n\nThe nightly copy of the database is written to a bucket in Oslo.",
    "honey.md": "# Honey\n\nStore honey in a closed glass jar away from the sun.",
    "night.md": "# Nights\n\nIn Oslo the nights of June are short and light.",
    "disk.md": "# Disks\n\nA full disk stops the database; delete old copies first.",
    "备份.md": "# 备份\n\n数据库每晚的副本写入奥斯陆的存储桶。",
    "蜂蜜.md": "# 蜂蜜\n\n蜂蜜要装在密封的玻璃罐里，避免阳光。",
}


class Longest:
    """Not a clever second pass, but one that is easily worked out by hand."""

    name = "longest"

    def score(self, query, candidates):
        return np.array([min(1.0, len(text) / 100) for text in candidates.texts])


@pytest.fixture(scope="module")
def kb(encoder, tmp_path_factory):
    with KnowledgeBase(tmp_path_factory.mktemp("kb"), encoder) as kb:
        kb.add_texts({"text": text, "source": source} for source, text in DOCUMENTS.items())
        yield kb


@pytest.fixture(scope="module")
def memory(encoder, tmp_path_factory):
    with Memory(tmp_path_factory.mktemp("memory"), "ada", encoder) as memory:
        talk = [
            "Where do the backups go?",
            "To Oslo.",
            "And the laptop?",
            "It stays at home.",
            "备份几点开始？",
            "凌晨两点。",
        ]
        memory.add_many(
            {"content": said, "session": "s", "speaker": "AB"[n % 2], "timestamp": NOW} for n, said in enumerate(talk)
        )
        yield memory


SCORES = st.lists(st.floats(0, 1), max_size=8)


@given(SCORES, SCORES, st.floats(0, 1))
def test_nothing_overtakes_what_was_looked_at_and_the_rest_stays(first, second, weight) -> None:
    before = np.array(sorted(first, reverse=True))
    after = np.array(second[: len(before)])
    found, count = fuse(before, after, weight), len(after)
    assert found.shape == before.shape and (found >= 0).all() and (found <= 1 + 1e-9).all()
    assert found[count:].tolist() == before[count:].tolist()
    plain = (1 - weight) * before[:count] + weight * after
    least = before[count] if count < len(before) else -1.0
    assert (found[:count] >= least).all()
    for one, value in zip(found[:count], plain, strict=True):
        assert one == pytest.approx(value, abs=1e-12) if value > least else one <= least + 1e-3
    for one in range(count):  # whoever was better is no worse
        assert all(found[one] >= found[other] - 1e-12 for other in range(count) if plain[one] >= plain[other])


@pytest.mark.parametrize("query", [ASKED, ASKED_ZH])
@pytest.mark.parametrize("strategy", ["cosine", "hybrid", "bm25"])
def test_a_search_in_knowledge_is_both_passes_by_hand(kb, encoder, query, strategy) -> None:
    first = kb.search(query, 100, strategy=strategy)
    texts = {id_: text for id_, _, text, _ in chunks(kb)}
    again = LateScorer(encoder).score(Query(query), Candidates([texts[hit.id] for hit in first[:4]]))
    expected = {hit.id: hit.score for hit in first}
    wanted = fuse(np.array([hit.score for hit in first]), again, 0.6)
    expected |= {hit.id: float(score) for hit, score in zip(first, wanted, strict=True)}
    found = kb.search(query, 3, strategy=strategy, rerank="late", rerank_depth=4)
    best = sorted(expected, key=lambda id_: (-expected[id_], id_))[: len(found)]
    assert [hit.id for hit in found] == best and len(found) == min(3, len(first))
    assert [hit.score for hit in found] == pytest.approx([expected[id_] for id_ in best], abs=1e-9)
    looked_at = {hit.id: [hit.score, float(score)] for hit, score in zip(first, again, strict=False)}
    assert [hit.to_dict().get("passes") for hit in found] == [
        pytest.approx(looked_at[hit.id], abs=1e-9) if hit.id in looked_at else None for hit in found
    ]
    assert all("passes" not in hit.to_dict() for hit in first)


def test_min_score_is_compared_with_the_score_by_both_passes(kb) -> None:
    all_of_them = kb.search(ASKED, 10, rerank=Longest(), rerank_depth=10)
    line = sorted(hit.score for hit in all_of_them)[2]
    assert [hit.id for hit in kb.search(ASKED, 10, line, rerank=Longest(), rerank_depth=10)] == [
        hit.id for hit in all_of_them if hit.score >= line
    ]


@pytest.mark.parametrize("query", [ASKED, ASKED_ZH])
def test_memories_are_looked_at_among_their_neighbours(memory, query) -> None:
    seen: list[str] = []

    class Watching(Longest):
        def score(self, query, candidates):
            seen.extend(candidates.texts)
            return super().score(query, candidates)

    first = memory.search(query, 10, strategy="hybrid", now=NOW)
    found = memory.search(query, 10, strategy="hybrid", rerank=Watching(), rerank_depth=3, now=NOW)
    assert [hit.passes is not None for hit in sorted(found, key=lambda hit: [h.id for h in first].index(hit.id))] == [
        *[True] * 3,
        *[False] * (len(first) - 3),
    ]
    talk = {row.id: f"{row.speaker}: {row.content}" for row in memory.all(now=NOW)}
    for hit, text in zip(first, seen, strict=False):
        place = list(talk).index(hit.memory.id)
        assert text == "\n".join(list(talk.values())[max(0, place - 2) : place + 3])
    rest = max(hit.score for hit in found if hit.passes is None)
    for hit in found:
        if hit.passes is not None:
            both = 0.4 * hit.passes[0] + 0.6 * hit.passes[1]
            # what falls under the best of the rest is put just above it
            assert hit.score == pytest.approx(both) if both > rest else rest < hit.score < rest + 0.001


BUILDS = {
    "late": {"rerank": "late"},
    "late, hybrid, 2 deep": {"rerank": "late", "strategy": "hybrid", "rerank_depth": 2},
    "late, bm25": {"rerank": "late", "strategy": "bm25", "rerank_weight": 1},
    "late, jaccard": {"rerank": "late", "strategy": "jaccard"},
    "own, own": {"rerank": Longest(), "strategy": Longest(), "rerank_depth": 3},
}


@pytest.mark.parametrize("query", [ASKED, ASKED_ZH])
@pytest.mark.parametrize("changes", BUILDS.values(), ids=BUILDS)
def test_a_build_is_repeated_without_any_model(kb, memory, tmp_path, changes, query) -> None:
    config = ContextConfig(max_tokens=600, knowledge_min_score=0, min_relevance=0.05, **changes)
    with AuditLog(tmp_path / "audit.sqlite3") as log:
        builder = ContextBuilder(
            rag_tool=RAGTool(knowledge=kb), memory_tool=MemoryTool(memory=memory), config=config, audit=log
        )
        built = builder.assemble(
            query, documents=[*DOCUMENTS.values(), "x" * 3000], custom_packets=["The moon is far away."], now=NOW
        )
        again = rebuild(built.trace)
        assert again.text == built.text and again.messages == built.messages
        assert again.explain() == built.explain()
        log.flush()
        replay = log.replay("last")
        assert replay.equal, str(replay)
    judged = [item for item in (*built.kept, *built.dropped) if "by the second" in item.detail]
    assert judged and all("by the first pass" in item.detail for item in judged)
    assert not any(item.packet.type == "system_instruction" for item in judged)


def test_documents_and_packets_get_what_a_search_would_give_them(kb) -> None:
    """The same text has the same relevance, whoever brings it."""
    encoded = {id_: text for id_, _, text, _ in chunks(kb)}
    hits = {encoded[hit.id]: hit.score for hit in kb.search(ASKED, 10, rerank="late", rerank_depth=30)}
    builder = ContextBuilder(config=ContextConfig(rerank="late", min_relevance=0), encoder=kb.encoder)
    built = builder.assemble(ASKED, documents=list(hits), now=NOW)
    assert {item.packet.content: item.relevance for item in built.kept} == pytest.approx(hits, abs=1e-6)


def test_given_scores_history_and_instructions_are_not_judged() -> None:
    seen: list[str] = []

    class Watching(Longest):
        def score(self, query, candidates):
            seen.extend(candidates.texts)
            return super().score(query, candidates)

    builder = ContextBuilder(config=ContextConfig(strategy="jaccard", rerank=Watching(), history_relevance=None))
    builder.assemble(
        ASKED,
        system_instructions="Be short.",
        state="open",
        conversation_history=[{"role": "user", "content": "backups?"}],
        custom_packets=[{"content": "mine", "score": 0.5}],
        documents=["nightly backups", {"content": "scored", "score": 0.9}],
    )
    assert seen == ["nightly backups"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("lat", r"rerank: expected one of late, .* got 'lat'; did you mean 'late'\?"),
        ("./nowhere", r"rerank: there is no folder './nowhere' with a cross-encoder"),
        (Path("nowhere"), r"rerank: there is no folder '(./)?nowhere'"),
        (5, r"rerank: expected .* got 5"),
    ],
)
def test_what_cannot_be_a_second_pass_is_told_before_anything_is_loaded(value, message) -> None:
    with pytest.raises(ConfigError, match=message):
        check_reranker(value)
    if value != 5:
        with pytest.raises(ConfigError, match=message):
            ContextBuilder(config=ContextConfig(rerank=value))


def test_depth_weight_and_shape_are_checked(kb) -> None:
    with pytest.raises(InputError, match="rerank_depth: expected an integer >= 1, got 0"):
        kb.search(ASKED, rerank="late", rerank_depth=0)
    with pytest.raises(InputError, match=r"rerank_weight: expected a number in \[0, 1\], got 2"):
        SecondPass(Longest, 5, 2)

    class Short:
        def score(self, query, candidates):
            return [1.0]

    with pytest.raises(InputError, match=r"Short.score: expected shape \(2,\), got \(1,\)"):
        SecondPass(Short).look("a", ["b", "c"])


def test_settings_name_a_second_pass_in_yaml(tmp_path) -> None:
    text = "context: {{rerank: {}, rerank_depth: 12, rerank_weight: 0.5}}"
    found = parse_settings(text.format("late"), tmp_path).config
    assert (found.rerank, found.rerank_depth, found.rerank_weight) == ("late", 12, 0.5)
    (tmp_path / "cross").mkdir()
    assert parse_settings(text.format("cross"), tmp_path).config.rerank == str(tmp_path / "cross")
    with pytest.raises(ConfigError, match=r"rerank .*: expected one of late, .* did you mean 'late'"):
        parse_settings(text.format("lste"), tmp_path)


# -- cross-encoders ---------------------------------------------------------------------------------------------------


def cross_encoder(folder: Path, labels: int = 1) -> Path:
    """Write a tiny BERT with random weights that judges pairs, as sentence-transformers would."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    torch.manual_seed(7)
    folder.mkdir()
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefghijklmnopqrstuvwxyz",
        *(f"##{c}" for c in "aeiourst"),
    ]
    words += ["备", "份", "每", "晚", "蜂", "蜜"]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=128, num_labels=labels, initializer_range=0.8,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def cross(tmp_path_factory):
    import torch

    torch.set_num_threads(1)  # on a busy machine torch's threads mostly wait for one another
    return cross_encoder(tmp_path_factory.mktemp("models") / "tiny-cross")


def test_raw_scores_are_those_of_sentence_transformers(cross) -> None:
    import torch
    from sentence_transformers import CrossEncoder

    from ctx_vector.cross_encoder import CrossEncoderScorer

    texts = [*DOCUMENTS.values(), "", "x" * 5_000, "\ud800"]
    theirs = CrossEncoder(str(cross), device="cpu", local_files_only=True)
    for query in (ASKED, ASKED_ZH):
        pairs = [(query, text.replace("\ud800", "?")) for text in texts]
        expected = theirs.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
        found = CrossEncoderScorer(cross).raw(query, texts)
        assert np.ptp(expected) > 1e-3 and found == pytest.approx(expected, abs=1e-4)


def test_a_cross_encoder_orders_a_search_and_a_build(cross, kb, monkeypatch) -> None:
    from ctx_vector import measurements
    from ctx_vector.cross_encoder import CrossEncoderScorer

    rows = measurements.background()[::30]
    monkeypatch.setattr(measurements, "background", lambda: rows)
    scorer = CrossEncoderScorer(cross)
    first = kb.search(ASKED, 6)
    encoded = {id_: text for id_, _, text, _ in chunks(kb)}
    texts = [encoded[hit.id] for hit in first]
    raw, scores = scorer.raw(ASKED, texts), scorer.score(Query(ASKED), Candidates(texts))
    english = [place for place, hit in enumerate(first) if hit.content.isascii()]
    assert (scores >= 0).all() and (scores <= 1).all()
    assert np.argsort(raw[english]).tolist() == np.argsort(scores[english]).tolist()
    assert scorer.score(Query(" "), Candidates(["a"])).tolist() == [0.0]
    # measured once, kept for the next object
    monkeypatch.setattr(CrossEncoderScorer, "digest", scorer.digest)
    monkeypatch.setattr("ctx_vector.cross_encoder.measure", lambda *_: pytest.fail("measured again"))
    found = kb.search(ASKED, 6, rerank=cross, rerank_depth=6)
    expected = fuse(np.array([hit.score for hit in first]), scores, 0.6)
    assert {hit.id: hit.score for hit in found} == pytest.approx(
        {hit.id: float(score) for hit, score in zip(first, expected, strict=True)}
    )
    config = ContextConfig(rerank=str(cross), knowledge_min_score=0, min_relevance=0)
    built = ContextBuilder(rag_tool=RAGTool(knowledge=kb), config=config).assemble(ASKED, now=NOW)
    assert rebuild(built.trace).text == built.text
    assert {item.packet.id: item.relevance for item in built.kept if item.packet.type == "knowledge"} == pytest.approx(
        {str(hit.id): hit.score for hit in found[: len(built.kept)]}
    )


def test_a_folder_that_is_no_cross_encoder_is_told(tmp_path) -> None:
    from ctx_vector.cross_encoder import CrossEncoderScorer

    two = cross_encoder(tmp_path / "two", labels=2)
    with pytest.raises(ModelError, match=r"expected a cross-encoder with one output for a pair, .* has 2"):
        CrossEncoderScorer(two)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelError, match="cannot load the cross-encoder"):
        SecondPasses(lambda: None).of(empty).scorer()
    with pytest.raises(CtxVectorError, match="there is no folder"):
        CrossEncoderScorer(tmp_path / "gone")


def test_without_sentence_transformers_the_error_names_it(cross, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ModelError, match="pip install sentence-transformers"):
        SecondPasses(lambda: None).of(str(cross)).scorer()
