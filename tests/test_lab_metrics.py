"""Metrics equal those of trec_eval, and cases worked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_vector.experiments.metrics import Item, context_metrics, mean, percentiles, ranked_documents, ranking_metrics

pytrec_eval = pytest.importorskip("pytrec_eval")

DOCUMENTS = [f"d{n}" for n in range(25)]


@settings(deadline=None)
@given(
    st.permutations(DOCUMENTS),
    st.integers(0, 25),
    st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(0, 3), min_size=1, max_size=25),
)
def test_ranking_metrics_are_those_of_trec_eval(order, length, grades):
    if not any(grades.values()):
        grades["d3"] = 1
    ranking = order[:length]
    run = {document: float(len(ranking) - place) for place, document in enumerate(ranking)}
    measures = {"ndcg_cut.10", "recall.1,5,10"}
    theirs = pytrec_eval.RelevanceEvaluator({"q": grades}, measures).evaluate({"q": run or {"none": 1.0}})["q"]
    first_ten = {document: run[document] for document in ranking[:10]} or {"none": 1.0}
    reciprocal = pytrec_eval.RelevanceEvaluator({"q": grades}, {"recip_rank"}).evaluate({"q": first_ten})["q"]
    ours = ranking_metrics(ranking, grades)
    assert ours == pytest.approx({
        "ndcg@10": theirs["ndcg_cut_10"],
        "mrr@10": reciprocal["recip_rank"],
        "r@1": theirs["recall_1"],
        "r@5": theirs["recall_5"],
        "r@10": theirs["recall_10"],
    })  # fmt: skip


def test_the_worked_ranking():
    found = ranking_metrics(["x", "a"], {"a": 1})
    assert found == pytest.approx({"ndcg@10": 1 / math.log2(3), "mrr@10": 0.5, "r@1": 0, "r@5": 1, "r@10": 1})


def test_the_worked_context():
    items = [Item("a", 20), Item("x", 90), Item("b", 10)]
    found = context_metrics(items, {"a": 1, "b": 2, "c": 1, "x": 0})
    assert found["evidence_recall"] == pytest.approx(2 / 3)
    assert found["precision"] == pytest.approx(0.25)
    assert (found["all_evidence"], found["tokens"]) == (0.0, 120.0)
    assert math.isnan(found["freshness"])


def test_a_shortened_item_is_no_evidence():
    found = context_metrics([Item("a", 30, whole=False), Item("b", 10)], {"a": 1, "b": 1})
    assert (found["evidence_recall"], found["all_evidence"], found["precision"]) == (0.5, 0.0, 1.0)


def test_one_whole_passage_of_a_document_is_enough():
    found = context_metrics([Item("a", 30, whole=False), Item("a", 10)], {"a": 1})
    assert (found["evidence_recall"], found["all_evidence"]) == (1.0, 1.0)


def test_an_empty_context():
    found = context_metrics([], {"a": 1}, ("a", frozenset({"b"})))
    assert math.isnan(found.pop("answer_recall"))
    assert found == {"evidence_recall": 0, "all_evidence": 0, "precision": 0, "freshness": 0, "tokens": 0}


@pytest.mark.parametrize(
    ("texts", "answers", "found"),
    [
        (["kept for\n  48 hours, then"], ["for 48 hours"], 1),
        (["kept for 48 ho", "urs"], ["48 hours"], 0),  # in two items it does not stand whole
        (["\\[tls]\ncert = 1"], ["[tls] cert"], 1),  # the backslash is the context's, not the document's
        (["保留三十天。\n到期删除"], ["六十天", "三十天"], 1),
        (["回收站"], ["三十天"], 0),
        (["kept for 300 days", "version 1.30", "30.5 GB", "1,300"], ["30"], 0),  # in other numbers
        (["30GB, or 30."], ["30"], 1),
        (["保留30天"], ["30"], 1),
        (["the category"], ["cat"], 0),
        (["用Pandas读"], ["Pandas"], 1),  # Chinese has no blanks between words
        (["学费三十天内交"], ["三十天"], 1),
        (["发票须在三十\n  天内，\n交给财务"], ["三十天内，交给"], 1),  # a line may end anywhere
        (["保留 30 天"], ["30天"], 1),
        (["保留 30 天"], ["0天"], 0),
        ([], ["三十天"], 0),
        (["anything"], [], math.nan),
    ],
)
def test_an_answer_stands_whole_in_one_item(texts, answers, found):
    items = [Item("x", 9, whole=False, text=text) for text in texts]
    assert context_metrics(items, {"a": 1}, None, answers)["answer_recall"] == pytest.approx(found, nan_ok=True)


@pytest.mark.parametrize(
    ("kept", "fresh"),
    [
        (["new"], 1), (["x", "new", "old1"], 1), (["new", "old2", "old1"], 1), (["old1", "new"], 0), (["old1"], 0),
        (["x"], 0), ([], 0),
    ],
)  # fmt: skip
def test_freshness_wants_the_newest_above_all_former_versions(kept, fresh):
    items = [Item(name, 5) for name in kept]
    found = context_metrics(items, {"new": 1, "old1": 0, "old2": 0}, ("new", frozenset({"old1", "old2"})))
    assert found["freshness"] == fresh


def test_documents_stand_at_their_best_passage():
    assert ranked_documents(["b", "a", "b", "乙", "a"]) == ["b", "a", "乙"]


def test_means_and_percentiles():
    assert mean([1.0, math.nan, 0.5]) == 0.75
    assert mean([math.nan]) is None
    assert percentiles([1, 2, 3, 4, 5], (50, 95)) == {"p50": 3.0, "p95": 4.8}
