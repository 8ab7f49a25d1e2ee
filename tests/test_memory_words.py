"""Memories by keywords: against a count by hand, through changes, and in a build."""

import random

import numpy as np
import pytest
from store_help import opened

from ctx_vector import ContextBuilder, ContextConfig, MemoryTool
from ctx_vector.dialogue import alone_text
from ctx_vector.errors import InputError
from ctx_vector.keywords import idf, keyword_facts
from ctx_vector.languages import language_of
from ctx_vector.memory import Memory
from ctx_vector.memory_words import WordRules, load_words
from ctx_vector.scoring import RETRIEVAL
from ctx_vector.terms import terms
from tests.knowledge_help import traces
from tests.test_keywords import by_hand
from tests.test_memory import NOW, FastEncoder
from tests.test_memory_view import filled

KEYWORD_STRATEGIES = [name for name in RETRIEVAL if name != "cosine"]


def shares_by_hand(memory, query):
    """Shares by id: each language a collection, the two turns before and after in the session lending half."""
    from ctx_vector.terms import stem_key

    common = {term: keyword_facts().common.get(stem_key(term), 0.0) for term in terms(query)}
    rows = memory.all(now=NOW)
    found = {}
    for language in {row.language for row in rows}:
        own = [row for row in rows if row.language == language]
        near = []
        for row in own:
            session = [other.id for other in rows if other.session == row.session and row.session is not None]
            at = session.index(row.id) if session else 0
            others = session[max(0, at - 2) : at] + session[at + 1 : at + 3]
            near.append([place for place, other in enumerate(own) if other.id in others])
        shares = by_hand(query, [alone_text(row) for row in own], common, near)
        found |= {row.id: share for row, share in zip(own, shares, strict=True)}
    return found


def shares_of(memory, query):
    """The same as the memory has them."""
    with opened(memory).read() as conn:
        view = memory._current(conn)
        words = memory._words_of(conn, view)
    found = {}
    for code in set(view.facts.languages.tolist()):
        mask = view.facts.languages == code
        found |= dict(zip(view.facts.ids[mask].tolist(), words.shares(query, code, mask).tolist(), strict=True))
    return found


@pytest.mark.parametrize("query", ["Is the kettle new on March 1?", "谁买水壶？", "東京で会う", "?!"])
def test_shares_against_a_count_by_hand(tmp_path, query):
    with Memory(tmp_path, "ada", FastEncoder()) as memory:
        filled(memory)
        assert shares_of(memory, query) == pytest.approx(shares_by_hand(memory, query))


def test_words_follow_every_change_and_do_not_depend_on_the_way(tmp_path):
    draw = random.Random(7)
    vocabulary = "tea kettle Monday 茶 水壶 broken new green please".split()
    with Memory(tmp_path, "ada", FastEncoder()) as memory, Memory(tmp_path, "bob", FastEncoder()) as other:
        filled(other)
        for step in range(40):
            known = memory.all(now=NOW)
            if known and draw.random() < 0.3:
                memory.remove(draw.choice(known).id)
            elif known and draw.random() < 0.3:
                memory.update(draw.choice(known).id, content=f"{draw.choice(vocabulary)} {step}", now=NOW)
            else:
                session = draw.choice([None, "one", "two"])
                memory.add(" ".join(draw.choices(vocabulary, k=4)) + f" {step}", session=session, now=NOW)
            if draw.random() < 0.5:
                assert shares_of(memory, "green 茶 kettle") == pytest.approx(shares_by_hand(memory, "green 茶 kettle"))
        followed = shares_of(memory, "green tea 水壶")
        with opened(memory).read() as conn:
            view = memory._current(conn)
            fresh = load_words(conn, "ada", view.generation, view.facts.ids, None)
        for code in set(view.facts.languages.tolist()):
            mask = view.facts.languages == code
            assert [followed[id_] for id_ in view.facts.ids[mask]] == fresh.shares(
                "green tea 水壶", code, mask
            ).tolist()


def test_a_long_text_neither_lends_nor_borrows(tmp_path):
    with Memory(tmp_path, "ada", FastEncoder()) as memory:
        texts = ["The kettle is broken", "word " * 400 + "zebra", "Buy a new one"]
        memory.add_many([{"content": text, "session": "s"} for text in texts], now=NOW)
        shares = list(shares_of(memory, "zebra").values())
        assert shares[1] > 0 and shares[0] == shares[2] == 0
        shares = list(shares_of(memory, "kettle").values())
        assert shares[0] > shares[2] > 0 == shares[1]


# -- searching --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def talk(tmp_path_factory, encoder):
    """A memory with names and numbers that a vector hardly sees, in both languages."""
    with Memory(tmp_path_factory.mktemp("talk"), "ada", encoder) as memory:
        memory.add_many(
            [
                {"content": "The invoice number is 40817-B", "type": "semantic"},
                {"content": "The invoice number is 40871-C", "type": "semantic"},
                {"content": "发票号是 55012-X", "type": "semantic"},
                {"content": "发票号是 55021-Y", "type": "semantic"},
                {"content": "I like swimming in the lake", "type": "semantic"},
                {"content": "我喜欢在湖里游泳", "type": "semantic"},
            ],
            now=NOW,
        )
        yield memory


@pytest.mark.parametrize("strategy", KEYWORD_STRATEGIES)
@pytest.mark.parametrize(
    ("query", "content"),
    [("Which invoice is 40871-C?", "The invoice number is 40871-C"), ("55021-Y 是哪张发票？", "发票号是 55021-Y")],
)
def test_numbers_are_found_by_keywords(talk, strategy, query, content):
    hits = talk.search(query, strategy=strategy, now=NOW)
    assert hits[0].content == content
    assert all(0 <= hit.score <= 1 for hit in hits) and hits[0].score > 0.7


@pytest.mark.parametrize("strategy", RETRIEVAL)
def test_a_few_are_the_best_of_all(tmp_path, strategy):
    draw = random.Random(3)
    words = [f"word{n}" for n in range(40)]
    with Memory(tmp_path, "ada", FastEncoder()) as memory:
        memory.add_many(
            [
                {"content": " ".join(draw.choices(words, k=5)) + f" {n}", "importance": n % 10 / 10}
                if n % 3
                else {"content": f"笔记{n}和{draw.choice('茶水山')}", "importance": n % 10 / 10}
                for n in range(900)
            ],
            now=NOW,
        )
        for query in ("word1 word2 word3 or 茶", "哪一条笔记有茶？"):
            for least in (0.0, 0.5):
                options = {"min_importance": least, "strategy": strategy, "now": NOW}
                whole = [(hit.id, hit.score) for hit in memory.search(query, 1000, **options)]
                assert strategy == "bm25" or len(whole) == 900 - int(least * 10) * 90
                for limit in (1, 7, 60) if strategy != "hybrid_rrf" else ():
                    assert [(hit.id, hit.score) for hit in memory.search(query, limit, **options)] == whole[:limit]


def test_the_hybrid_is_the_calibrated_sum(talk):
    query = "Where does she like to swim in 40871?"
    shares = shares_of(talk, query)
    with opened(talk).read() as conn:
        view = talk._current(conn)
    hits = talk.search(query, 50, strategy="hybrid", now=NOW)
    assert len(hits) == 6
    calibration = talk._model.calibration()
    for hit in hits:
        language = hit.memory.language
        index = view._index(("en", "zh", "other").index(language))
        vector = talk.encoder.encode_queries([query])[0]
        centred = view._centred("en", language, index, vector)
        at = np.array([int(np.flatnonzero(view.facts.ids == hit.memory.id)[0])])
        cosine = view._cosines(index, at, centred)
        expected = calibration.centred_relevance("en", language, cosine, np.array([shares[hit.memory.id]]))[0]
        assert hit.score == pytest.approx(expected, abs=1e-12)


def test_without_common_words_the_order_is_that_of_cosine(talk):
    """A Chinese question to English memories."""
    ids = [
        [hit.id for hit in talk.search("谁会游泳？", strategy=strategy, now=NOW) if language_of(hit.content) == "en"]
        for strategy in ("cosine", "hybrid")
    ]
    assert ids[0] == ids[1] and len(ids[0]) == 3


def test_an_unknown_strategy_is_an_input_error(talk):
    for strategy in ("jaccard", "cosine_raw", None, 3):
        with pytest.raises(InputError, match="strategy: expected one of cosine, hybrid, hybrid_rrf, bm25 for a search"):
            talk.search("q", strategy=strategy)


@pytest.mark.parametrize("strategy", RETRIEVAL)
def test_a_blank_query_and_an_empty_memory_find_nothing(tmp_path, encoder, strategy):
    with Memory(tmp_path, "ada", encoder) as memory:
        assert memory.search("tea", strategy=strategy) == []
        memory.add("tea")
        assert memory.search(" \n", strategy=strategy) == []
        assert [hit.content for hit in memory.search("tea", strategy=strategy)] == ["tea"]


def test_words_of_others_do_not_count_and_none_are_written(tmp_path):
    with Memory(tmp_path, "ada", FastEncoder()) as ada, Memory(tmp_path, "bob", FastEncoder()) as bob:
        ada.add("Zanzibarquux is warm", now=NOW)
        bob.add("It is cold", now=NOW)
        before = bob.search("Is it warm in Zanzibarquux?", strategy="hybrid", now=NOW)
        ada.search("Zanzibarquux", strategy="bm25", now=NOW)
        ada.clear_all()
        after = bob.search("Is it warm in Zanzibarquux?", strategy="hybrid", now=NOW)
        assert [hit.score for hit in before] == [hit.score for hit in after]
    assert traces(tmp_path, "anzibarquux") == []


# -- in a build -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", RETRIEVAL)
def test_a_memory_in_a_build_has_the_relevance_of_its_search(talk, strategy):
    query = "Which invoice is 40871-C?"
    expected = {hit.content: hit.score for hit in talk.search(query, strategy=strategy, now=NOW)}
    config = ContextConfig(strategy=strategy, min_relevance=0)
    built = ContextBuilder(memory_tool=MemoryTool(memory=talk), encoder=talk.encoder, config=config).assemble(
        query, now=NOW
    )
    found = {item.packet.content: item.relevance for item in (*built.kept, *built.dropped)}
    assert found == expected


def test_the_tool_searches_by_a_strategy(talk):
    tool = MemoryTool(memory=talk)
    found = tool.run({"action": "search", "query": "40871-C", "strategy": "bm25"})
    assert found[0]["content"].endswith("40871-C")
    with pytest.raises(InputError, match="strategy: expected one of"):
        tool.run({"action": "search", "query": "q", "strategy": "dense"})


def test_other_rules(tmp_path):
    """Near shares by step, dates and stems left out: against a count by hand, and only for keywords."""
    from ctx_vector.terms import stem_key, words

    texts = ["stories of tea", "the kettle sings", "tea stories, told twice", "a new kettle"]
    rules = WordRules(
        (1.0, 0.25), dated=False, keys_of=lambda text: [stem_key(word) for word in words(text)], common={}
    )
    with Memory(tmp_path, "ada", FastEncoder(), words=rules) as memory:
        memory.add_many([{"content": text, "session": "s", "timestamp": NOW} for text in texts], now=NOW)
        found = list(shares_of(memory, "kettle story stories 2026").values())
        tf = {"kettle": [1.0, 1.25, 2.0, 1.25], "stories": [1.25, 2.0, 1.25, 1.0]}  # own and what is lent
        lengths = [3 + 3 + 0.25 * 4, 3 + 3 + 4 + 0.25 * 3, 4 + 3 + 3 + 0.25 * 3, 3 + 4 + 0.25 * 3]
        most = 2 * idf(4, 4, 0.0) + 2 * idf(0, 4, 0.0)
        for row, share in enumerate(found):
            norm = 1.2 * (0.25 + 0.75 * lengths[row] / (sum(lengths) / 4))
            parts = sum(idf(4, 4, 0.0) * counts[row] / (counts[row] + norm) for counts in tf.values())
            assert share == pytest.approx(parts / most)
    with Memory(tmp_path, "ada", FastEncoder(), words=WordRules(dated=False)) as memory:
        assert max(shares_of(memory, str(NOW.year)).values()) == 0
    with Memory(tmp_path, "ada", FastEncoder()) as memory:
        assert min(shares_of(memory, str(NOW.year)).values()) > 0
