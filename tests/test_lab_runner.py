"""The runner measures what the real builder builds: the same as by hand, the same every time, within the budgets."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from lab_help import FACTS, write_beir

from ctx_vector import ContextBuilder, ContextConfig, KnowledgeBase, MemoryTool, RAGTool
from ctx_vector.errors import ConfigError, CtxVectorError, InputError, OptionalDependencyError
from ctx_vector.experiments import Arm, base_config, read_dataset, run_experiment, strategies
from ctx_vector.experiments.metrics import RANKING
from ctx_vector.scoring import SCORERS

TEXTS = {id_: text for id_, text, _ in FACTS}
BUDGETS = (20, 40, 90)


class Counting:
    """The real encoder, with a count of what it encoded."""

    def __init__(self, encoder):
        self._encoder = encoder
        self.texts = 0

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def encode_queries(self, texts, **options):
        self.texts += len(texts)
        return self._encoder.encode_queries(texts, **options)

    def encode_documents(self, texts, **options):
        self.texts += len(texts)
        return self._encoder.encode_documents(texts, **options)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    return read_dataset(write_beir(tmp_path_factory.mktemp("lab") / "图书馆"))


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    return read_dataset(write_beir(tmp_path_factory.mktemp("lab") / "turns", session=True))


@pytest.fixture(scope="module")
def report(documents, encoder, cache):
    arms = [Arm("plain", {"recency_weight": 0}), Arm("词", {"strategy": "jaccard"}), Arm("stop", {"fill": "stop"})]
    return run_experiment(documents, arms, BUDGETS, encoder=encoder, cache=cache, resamples=199)


def steady(report) -> dict:
    """Everything but times."""
    return {key: value for key, value in report.to_dict(rows=True).items() if key not in ("latency_ms", "seconds")}


# -- what is measured ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["knowledge", "memories"])
def test_recall_is_what_stands_in_the_text(kind, documents, turns, encoder, cache, tmp_path):
    """By hand: index the texts, build, and look for the evidence's text between the lines of the context."""
    answers = {"q1": ("opens at nine",), "q2": ("上午十点", "五点关门"), "q5": ("power at every desk",)}
    data = replace(documents if kind == "knowledge" else turns, answers=answers)
    found = run_experiment(data, [Arm("a")], BUDGETS[::2], encoder=encoder, cache=cache)
    assert found.data.kind == kind
    if kind == "knowledge":
        base = KnowledgeBase(tmp_path / "kb", encoder)
        base.add_texts({"text": d.text, "source": d.id, "timestamp": d.timestamp} for d in data.documents)
        tools = {"rag_tool": RAGTool(knowledge=base)}
    else:
        tool = MemoryTool("ada", tmp_path / "memory", encoder)
        tool.memory.add_many(
            {"content": d.text, "timestamp": d.timestamp, "session": d.session, "speaker": d.role}
            for d in data.documents
        )
        tools = {"memory_tool": tool}
    builder = ContextBuilder(encoder=encoder, config=base_config(), **tools)
    empty = builder.counter
    for at, query in enumerate(data.queries):
        wanted = [id_ for id_, grade in data.qrels[query.id].items() if grade > 0]
        for budget in BUDGETS[::2]:
            # the largest whole context whose candidates take at most `budget`: by trying every size from above
            for size in range(budget + 120, 0, -1):
                try:
                    built = builder.assemble(query.text, max_tokens=size, now=query.now)
                except CtxVectorError:
                    break
                if sum(item.tokens for item in built.kept) <= budget:
                    break
            in_text = [id_ for id_ in wanted if f"{TEXTS[id_]}\n" in built.text]
            assert found.values["a"][f"evidence_recall@{budget}"][at] == pytest.approx(len(in_text) / len(wanted))
            assert found.found["a"][budget][at] == frozenset(in_text)
            answered = float(any(answer in built.text for answer in answers.get(query.id, ())))
            answered = answered if query.id in answers else math.nan
            assert found.values["a"][f"answer_recall@{budget}"][at] == pytest.approx(answered, nan_ok=True)
            assert found.values["a"][f"tokens@{budget}"][at] <= budget
            if kind == "memories":
                rendered = "".join(f"{item.rendered}\n" for item in built.kept)
                assert found.values["a"][f"tokens@{budget}"][at] == empty.count(rendered)


def test_rankings_are_the_order_of_the_scores(documents, encoder, cache):
    """Against cosines sorted here."""
    arm = Arm("raw", {"strategy": "cosine_raw", "recency_weight": 0})
    found = run_experiment(documents, [arm], (40,), encoder=encoder, cache=cache)
    rows = encoder.encode_documents([document.text for document in documents.documents])
    for at, query in enumerate(documents.queries):
        order = np.argsort(-(rows @ encoder.encode_queries([query.text])[0]))
        grades = [documents.qrels[query.id].get(documents.documents[place].id, 0) for place in order]
        first = next(place for place, grade in enumerate(grades, 1) if grade > 0)
        assert found.values["raw"]["mrr@10"][at] == pytest.approx(1 / first)
        ideal = sorted(grades, reverse=True)
        gains = [sum(g / math.log2(n + 1) for n, g in enumerate(some, 1)) for some in (grades, ideal)]
        assert found.values["raw"]["ndcg@10"][at] == pytest.approx(gains[0] / gains[1])


def test_rankings_do_not_depend_on_the_room_there_is(documents, encoder, cache, monkeypatch):
    def rankings():
        base = base_config({"supersede_line": None})  # which looks at so many statements as fill half of the budget
        found = run_experiment(
            documents, strategies(["cosine", "hybrid"]), (40,), base=base, encoder=encoder, cache=cache
        )
        return [[series[name].tolist() for name in RANKING] for series in found.values.values()]

    ample = rankings()
    monkeypatch.setattr("ctx_vector.experiments.bench.RANKING_TOKENS", 100)  # for four of the ten documents
    assert rankings() == ample


def test_freshness_is_measured_where_there_are_former_versions(report):
    fresh = report.values["plain"]["freshness@90"]
    assert not math.isnan(fresh[0])
    assert np.isnan(fresh[1:]).all()


def test_stop_stays_within_every_budget(report):
    for budget in BUDGETS:
        assert (report.values["stop"][f"tokens@{budget}"] <= budget).all()
    assert np.isfinite(report.values["stop"]["ndcg@10"]).all()


def test_score_counts_are_of_every_candidate(report, documents):
    for arm in ("plain", "词"):
        good, bad = report.scores[arm].relevant, report.scores[arm].irrelevant
        assert sum(good) == sum(grade > 0 for grades in documents.qrels.values() for grade in grades.values())
        assert sum(good) + sum(bad) == len(documents.documents) * len(documents.queries)
    assert report.scores["词"].irrelevant[0] > 30  # word overlap is 0 nearly everywhere, and always without spaces


def test_a_query_sees_its_own_collection_only(tmp_path, encoder, cache):
    data = read_dataset(write_beir(tmp_path / "a"), write_beir(tmp_path / "b", session=True))
    found = run_experiment(data, [Arm("x")], (90,), encoder=encoder, cache=cache, kind="knowledge")
    assert data.collections == ("a", "b")
    kept = zip(data.queries, found.found["x"][90], strict=True)
    assert all(id_.startswith(query.collection + "/") for query, ids in kept for id_ in ids)
    half = len(data.queries) // 2
    series = found.values["x"]["evidence_recall@90"]
    assert list(series[:half]) == list(series[half:])


def test_memories_and_documents_stand_side_by_side(documents, encoder, cache, tmp_path):
    mixed = tuple(
        replace(document, metadata={"memory_type": "semantic"}) if number % 2 else document
        for number, document in enumerate(documents.documents)
    )
    found = run_experiment(replace(documents, documents=mixed), [Arm("x")], (200,), encoder=encoder, cache=cache)
    assert found.data.kind == "knowledge and memories"
    assert found.means["x"]["evidence_recall@200"] == 1.0


# -- reproducible ----------------------------------------------------------------------------------------------------


def test_the_same_run_gives_the_same_report_and_encodes_nothing(documents, report, encoder, cache):
    counting = Counting(encoder)
    arms = [Arm("plain", {"recency_weight": 0}), Arm("词", {"strategy": "jaccard"}), Arm("stop", {"fill": "stop"})]
    again = run_experiment(documents, arms, BUDGETS[::-1], encoder=counting, cache=cache, resamples=199)
    assert counting.texts == 0
    assert steady(again) == steady(report)
    other = run_experiment(documents, [arms[0], arms[2], arms[1]], BUDGETS, encoder=encoder, cache=cache, resamples=199)
    assert other.means == {name: report.means[name] for name in other.means}
    assert {c.metric + c.arm: c.found for c in other.comparisons} == {
        c.metric + c.arm: c.found for c in report.comparisons
    }


def test_documents_are_encoded_once_for_all_arms(documents, encoder):
    counting = Counting(encoder)
    run_experiment(documents, strategies(["cosine", "cosine_raw", "jaccard"]), (40,), encoder=counting)
    assert counting.texts == len(documents.documents) + len(documents.queries)


@pytest.mark.parametrize("strategy", sorted(SCORERS))
def test_every_strategy_there_is_runs_on_both_kinds(strategy, documents, turns, encoder, cache):
    for data in (documents, turns):
        arms = [Arm("base", {"strategy": "jaccard"}), Arm("this", {"strategy": strategy})]
        found = run_experiment(data, arms, (40,), encoder=encoder, cache=cache, resamples=99)
        assert 0 <= found.means["this"]["evidence_recall@40"] <= 1
        assert found.means["this"]["r@10"] > 0
        json.dumps(found.to_dict(rows=True), allow_nan=False)


def test_a_second_pass_is_an_arm(documents, turns, encoder, cache):
    for data in (documents, turns):
        arms = strategies(["jaccard", "jaccard+late"])
        assert arms[1] == Arm("jaccard+late", {"strategy": "jaccard", "rerank": "late"})
        found = run_experiment(data, arms, (40,), encoder=encoder, cache=cache, resamples=99)
        assert found.means["jaccard+late"]["mrr@10"] > found.means["jaccard"]["mrr@10"]  # words in two languages
        assert found.arms[1].changes["rerank"] == "late"


def test_a_scorer_of_ones_own_is_an_arm(documents, encoder, cache):
    class Longest:
        name = "longest"

        def score(self, query, candidates):
            return np.array([min(1.0, len(text) / 100) for text in candidates.texts])

    found = run_experiment(documents, [Arm("len", {"strategy": Longest(), "recency_weight": 0})], (40,),
                           encoder=encoder, cache=cache)  # fmt: skip
    longest = max(documents.documents, key=lambda document: len(document.text)).id
    hits = [float(documents.qrels[query.id].get(longest, 0) > 0) for query in documents.queries]
    assert [float(v > 0) for v in found.values["len"]["r@1"]] == hits
    assert found.arms[0].changes["strategy"] == "longest"


# -- the report ------------------------------------------------------------------------------------------------------


def test_json_has_the_keys_that_are_promised(report):
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert found["dataset"] == "图书馆"
    assert found["queries"] == 6
    assert set(found["strategies"]) == {"plain", "词", "stop"}
    assert set(found["strategies"]["plain"]) == {
        *(f"{name}@{b}" for b in BUDGETS
          for name in ("evidence_recall", "all_evidence", "precision", "tokens", "freshness")),
        "ndcg@10", "mrr@10", "r@1", "r@5", "r@10",
    }  # fmt: skip
    assert {(c["arm"], c["against"]) for c in found["comparisons"]} == {("词", "plain"), ("stop", "plain")}
    assert set(found["made"]) >= {"model", "model_fingerprint", "tokenizer", "calibration", "seed", "version"}
    assert found["digest"] and found["arms"]["词"]["config_hash"] != found["arms"]["plain"]["config_hash"]
    assert found["arms"]["词"]["changes"]["strategy"] == "jaccard"
    assert set(found["latency_ms"]["plain"]["40"]) == {"p50", "p95", "p99"}
    assert "rows" not in found


def test_winners_and_losers_are_told_with_their_evidence(report, documents):
    changed = report.changed("词")
    assert changed["lost"], "word overlap loses to cosines"
    for row in changed["gained"] + changed["lost"]:
        query = next(query for query in documents.queries if query.id == row["id"])
        assert row["query"] == query.text
        assert (row["value"] > row["baseline"]) == (row in changed["gained"])
        for evidence in row["evidence"]:
            assert evidence["text"] == TEXTS[evidence["id"]]
        lost, at = row in changed["lost"], documents.queries.index(query)
        ours, theirs = (report.contexts[arm][at] for arm in ("词", "plain"))
        without, other = (ours, theirs) if lost else (theirs, ours)
        wanted = {id_ for id_, grade in documents.qrels[query.id].items() if grade > 0}
        expected = [item for item in without if item not in other and item[0] not in wanted][:3]
        assert [(item["id"], item["text"]) for item in row["instead"]] == expected
        assert all(TEXTS[id_] == text for id_, text in expected)
        share = np.mean([evidence["kept"] for evidence in row["evidence"]])
        assert row["value"] == pytest.approx(share, abs=1e-4)
    assert report.changed("plain") == {"gained": [], "lost": []}
    with pytest.raises(InputError, match="expected one of plain, 词, stop"):
        report.changed("nobody")


def test_rows_are_the_means_in_full(report):
    for metric in report.metrics:
        values = [row["词"][metric] for row in report.rows() if row["词"][metric] is not None]
        assert np.mean(values) == pytest.approx(report.means["词"][metric], abs=1e-5)


def test_categories_are_told_apart(report, documents):
    found = report.by_category("evidence_recall@90")
    assert set(found) == {"opening", "lending", "printing", "rooms"}
    assert found["lending"]["plain"][1] == 2
    total = sum(value * count for by_arm in found.values() for value, count in [by_arm["plain"]])
    assert total / 6 == pytest.approx(report.means["plain"]["evidence_recall@90"], abs=1e-6)


def test_six_queries_show_no_difference_that_is_none(report):
    for comparison in report.comparisons:
        if comparison.arm == "stop":
            assert comparison.verdict == "no difference shown"


def test_notes_say_what_to_keep_in_mind(tmp_path, encoder, cache):
    first = write_beir(tmp_path / "a")
    rows = (first / "qrels" / "test.tsv").read_text().replace("q6\td4\t1\n", "")
    (first / "qrels" / "test.tsv").write_text(rows)
    data = read_dataset(first, write_beir(tmp_path / "b"))
    arms = [Arm("x"), Arm("y", {"knowledge_limit": 4}), Arm("z")]
    notes = run_experiment(data, arms, (40,), encoder=encoder, cache=cache, resamples=99).notes
    assert "1 queries have no evidence in this split and were left out." in notes
    assert any("2 groups" in note for note in notes)
    assert "Candidates are the 4 passages that the search finds, of 10." in notes
    assert "z and x have the same configuration." in notes


def test_by_group_the_group_is_the_unit(tmp_path, encoder, cache):
    data = read_dataset(*(write_beir(tmp_path / name) for name in "abc"))
    found = run_experiment(
        data, strategies(["cosine", "jaccard"]), (40,), encoder=encoder, cache=cache, resample="groups"
    )
    for comparison in found.comparisons:
        assert (comparison.unit, comparison.found.units, comparison.found.queries % 3) == ("group", 3, 0)
        assert comparison.verdict == "no difference shown"  # three groups can show nothing
    assert "could have shown one" in " ".join(comparison.words for comparison in found.comparisons)


def test_by_group_a_query_without_one_is_a_unit_of_its_own(documents, encoder, cache):
    asked = [replace(query, group="开放" if number < 2 else "") for number, query in enumerate(documents.queries)]
    data = replace(documents, queries=tuple(asked))
    found = run_experiment(
        data, strategies(["cosine", "jaccard"]), (40,), encoder=encoder, cache=cache, resample="groups"
    )
    (one,) = [one for one in found.comparisons if one.metric == "evidence_recall@40"]
    assert (one.found.queries, one.found.units) == (6, 5)


def test_progress_is_told(documents, encoder, cache):
    told = []
    run_experiment(documents, strategies(["jaccard"]), (40,), encoder=encoder, cache=cache,
                   progress=lambda *what: told.append(what))  # fmt: skip
    assert [what for what, _, _ in told] == ["indexing", *["building"] * 6, "comparing"]
    assert [(done, total) for what, done, total in told if what == "building"] == [(n, 6) for n in range(6)]


# -- arms and errors -------------------------------------------------------------------------------------------------


def test_one_weight_sets_the_other():
    config = Arm("x", {"recency_weight": 0.1}).config(ContextConfig())
    assert (config.recency_weight, config.relevance_weight) == (0.1, 0.9)
    config = Arm("x", {"relevance_weight": 1}).config(base_config({"min_relevance": 0.2}))
    assert (config.recency_weight, config.min_relevance, config.reserve_ratio) == (0, 0.2, 0)


@pytest.mark.parametrize(
    ("arms", "options", "words"),
    [
        ([], {}, "arms: expected one or more with different names, got none"),
        ([Arm("x"), Arm("x")], {}, "got x, x"),
        ([Arm("x")], {"budgets": (0,)}, "budgets: expected whole numbers of tokens >= 1, got 0"),
        ([Arm("x")], {"budgets": ()}, "budgets: expected at least one"),
        ([Arm("x")], {"kind": "files"}, "kind: expected one of auto, knowledge, memories, got 'files'"),
        ([Arm("x")], {"resample": "groups"}, "has only one group"),
        ([Arm("x")], {"seed": -1}, "seed: expected a whole number >= 0, got -1"),
        ([Arm("x")], {"alpha": 5}, "alpha: expected a number between 0 and 1, got 5"),
        ([Arm("x"), Arm("y")], {"tested": ["recal"]}, "tested: there is no metric 'recal'"),
    ],
)
def test_wrong_arguments_are_named(arms, options, words, documents, encoder, cache):
    with pytest.raises(InputError) as error:
        run_experiment(documents, arms, encoder=encoder, cache=cache, **options)
    assert words in str(error.value)


def test_a_wrong_arm_is_named(documents, encoder, cache):
    with pytest.raises(ConfigError, match="arm y: fill: expected one of skip, stop, got 'jump'"):
        run_experiment(documents, [Arm("x"), Arm("y", {"fill": "jump"})], encoder=encoder, cache=cache)
    with pytest.raises(ConfigError, match="cosinus"):
        run_experiment(documents, strategies(["cosinus"]), encoder=encoder, cache=cache)


def test_a_failing_source_is_no_result(documents, encoder, cache, monkeypatch):
    def broken(self, *args, **kwargs):
        raise OSError("the disk is gone")

    monkeypatch.setattr(RAGTool, "candidates", broken)
    with pytest.raises(InputError, match=r"arm x: the source knowledge failed: OSError: the disk is gone"):
        run_experiment(documents, [Arm("x")], (40,), encoder=encoder, cache=cache)


def test_without_the_extra_nothing_is_built_first(documents, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(OptionalDependencyError, match=r"pip install 'ctx_vector\[lab\]'"):
        run_experiment(documents, strategies(["cosine", "jaccard"]), encoder=Counting(None))


def test_the_files_of_a_run_are_gone_afterwards(documents, encoder, cache, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_experiment(documents, strategies(["jaccard"]), (40,), encoder=encoder, cache=cache)
    assert list(tmp_path.iterdir()) == []


def test_documents_that_say_the_same_are_told_of(documents, encoder, cache):
    twice = replace(documents.documents[0], id="again")
    data = replace(documents, documents=(*documents.documents, twice))
    found = run_experiment(data, [Arm("x")], (40,), encoder=encoder, cache=cache, kind="memories")
    assert any(note.startswith("1 documents say the same as another one") for note in found.notes)
