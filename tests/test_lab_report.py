"""The report is one page that stands alone, says what the object says, and escapes what comes from the data."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from bs4 import BeautifulSoup
from lab_help import write_beir

from ctx_vector.errors import OptionalDependencyError
from ctx_vector.experiments import Arm, plots, read_dataset, run_experiment
from ctx_vector.experiments.comparison import compare_all
from ctx_vector.experiments.report import render, write_report
from ctx_vector.experiments.result import BINS, Scores

NASTY = "<script>alert('x')</script> $甲$ & \"b\""


@pytest.fixture(scope="module")
def report(tmp_path_factory, encoder):
    folder = write_beir(tmp_path_factory.mktemp("lab") / "图书馆 & <co>")
    arms = [Arm("cosine"), Arm(NASTY, {"strategy": "jaccard"}), Arm("stop", {"fill": "stop"})]
    return run_experiment(read_dataset(folder), arms, (20, 40, 1500), encoder=encoder, resamples=99)


COMMAND, MADE = "ctx-vector ab x --seed 1", datetime(2024, 5, 1, 8, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def text(report):
    return render(report, command=COMMAND, made_at=MADE)


@pytest.fixture(scope="module")
def page(text):
    return BeautifulSoup(text, "html.parser")


def test_the_page_stands_alone(text):
    assert "http" not in re.sub(r'xmlns(:xlink)?="http[^"]+"', "", text)
    assert not re.search(r"<(script|link|iframe|img|object|embed|base)\b", text)
    assert not re.search(r"@import|url\((?!#)|\bon\w+=\"|javascript:", text)
    assert text.startswith("<!doctype html>")
    assert 'name="viewport"' in text and "prefers-color-scheme: dark" in text


def test_what_comes_from_the_data_is_escaped(report, page):
    assert page.find("script") is None
    assert page.h1.text == "图书馆 & <co>"
    assert NASTY in [item.text.strip() for item in page.select("ul.legend li")]
    assert NASTY in page.select_one("table.means").text


def test_every_comparison_is_in_the_table(report, page):
    rows = [
        [cell.get_text(" ", strip=True) for cell in row.find_all("td")] for row in page.select("table.cards tbody tr")
    ]
    assert len(rows) == len(report.comparisons)
    for row, one in zip(rows, report.comparisons, strict=True):
        assert row[1] == one.arm
        assert row[2:4] == [f"{one.found.mean:.3f}", f"{one.found.baseline:.3f}"]
        assert row[4].replace("\u2212", "-") == f"{one.found.difference:+.3f}"
        assert row[6:8] == [f"{one.found.p:.2g}", f"{one.p_holm:.2g}"]
        assert row[9] == one.verdict
    said = [item.select_one(".small").text for item in page.select("ul.verdicts li")]
    plain = [text.replace("\u2212", "-").replace("evidence recall at 40 tokens", report.main_metric) for text in said]
    assert plain == [one.words for one in report.comparisons if one.metric == report.main_metric]
    assert not any("@" in text for text in said)


def test_the_page_names_the_level_it_was_made_with(report):
    made = {**report.made, "alpha": 0.1}
    comparisons = tuple(replace(one, alpha=0.1) for one in report.comparisons)
    told = BeautifulSoup(render(replace(report, made=made, comparisons=comparisons)), "html.parser").text
    assert told.count("90 % interval") > 2 and "95 %" not in told


def test_one_right_document_a_query_makes_one_metric_of_two(report, encoder, tmp_path):
    """all_evidence is then evidence_recall: one comparison, one chart, one row; the JSON has both means."""
    folder = write_beir(tmp_path / "一")
    rows = (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").replace("q3\td4\t1\n", "")
    (folder / "qrels" / "test.tsv").write_text(rows, encoding="utf-8")
    found = run_experiment(
        read_dataset(folder), [Arm("cosine"), Arm("词", {"strategy": "jaccard"})], (20, 40), encoder=encoder
    )
    assert found.repeats == {f"all_evidence@{size}": f"evidence_recall@{size}" for size in (20, 40)}
    for once, again in found.repeats.items():
        for series in found.values.values():
            assert np.array_equal(series[once], series[again])
    compared = [one.metric for one in found.comparisons]
    assert "ndcg@10" in compared and "evidence_recall@20" in compared
    assert not any(name.startswith("all_evidence") for name in compared)
    assert {one.family for one in found.comparisons} == {len(compared)}
    assert "all_evidence@20" in found.to_dict()["strategies"]["词"]
    told = BeautifulSoup(render(found), "html.parser")
    titles = [title.text for title in told.select("figure h3")]
    assert "Share of the evidence that is in the context" in titles
    assert "Queries with all their evidence in the context" not in titles
    assert "all evidence at" not in told.select("table.means")[0].text
    assert "all_evidence is evidence_recall" in told.text
    assert report.repeats == {}  # one of its queries has two right documents
    assert any(one.metric == "all_evidence@20" for one in report.comparisons)


def test_what_is_said_first_never_hides_what_is_shown(report):
    """A clear difference in the ranking beside a main metric that is all the same."""
    flat, low, high = np.ones(6), np.zeros(6), np.ones(6)
    values = {"cosine": {"evidence_recall@40": flat, "ndcg@10": high},
              NASTY: {"evidence_recall@40": flat, "ndcg@10": low}}  # fmt: skip
    family = {
        (NASTY, "cosine", metric): (values[NASTY][metric], values["cosine"][metric], None) for metric in values[NASTY]
    }
    other = replace(report, comparisons=tuple(compare_all(family, alpha=0.07)))
    (one,) = other.headlines()
    assert (one.verdict, one.main.verdict) == ("worse", "no difference shown")
    assert one.words(other.main_metric) == "worse in ndcg@10; no difference shown in evidence_recall@40"
    told = BeautifulSoup(render(other), "html.parser").select_one("ul.verdicts li")
    assert told["class"] == ["worse"]
    said = told.select_one(".tag").text.strip()
    assert said == f"{NASTY}: worse in nDCG@10; no difference shown in evidence recall at 40 tokens"


def test_the_overview_has_every_difference_and_says_which_are_shown(report, page):
    table = next(t for t in page.select("table.means") if "difference to" in t.select_one("th").text)
    by_key = {(one.metric, one.arm): one for one in report.comparisons}
    cells = [cell.text.strip().replace("\u2212", "-") for cell in table.select("tbody td")]
    arms = [arm.name for arm in report.arms[1:]]
    wanted = [by_key[metric, arm] for metric in dict.fromkeys(one.metric for one in report.comparisons) for arm in arms]
    assert sorted(cells) == sorted(
        f"{one.found.difference:+.3f}" if one.verdict == "no difference shown"
        else f"{one.verdict} {one.found.difference:+.3f}"
        for one in wanted
    )  # fmt: skip


def test_means_are_those_of_the_report_and_the_best_stand_out(report, page):
    rows = page.select("table.means")[0].select("tbody tr")
    assert len(rows) == len(report.told)
    for row, metric in zip(rows, report.told, strict=True):
        values = [report.means[arm.name][metric] for arm in report.arms]
        shown = [cell.text.strip() for cell in row.find_all("td")]
        assert shown == [f"{value:,.0f}" if metric.startswith("tokens") else f"{value:.3f}" for value in values]
        bold = ["best" in (cell.get("class") or []) for cell in row.find_all("td")]
        wanted = [value == max(values) and max(values) > min(values) for value in values]
        assert bold == (wanted if not metric.startswith("tokens") else [False] * 3)


def test_a_mean_of_some_queries_says_of_how_many(report, page):
    from ctx_vector.experiments.report import metric_name

    heads = [row.find("th").text for row in page.select("table.means")[0].select("tbody tr")]
    said = {metric: " (of 1 query)" if metric.startswith("freshness") else "" for metric in report.told}
    assert heads == [f"{metric_name(metric)}{part}" for metric, part in said.items()]


def test_what_was_lost_can_be_read(report, page):
    told = page.get_text(" ", strip=True)
    for row in report.changed(NASTY)["lost"]:
        assert row["query"] in told
        assert all(f"{item['id']} {item['text']}" in told for item in row["evidence"] + row["instead"])
        assert row["instead"], "words stand in its place"
    assert f"only {report.baseline}" in told


def test_how_it_was_made_is_told(report, text):
    for value in (
        report.data.digest,
        report.made["model_fingerprint"],
        report.made["calibration"],
        "cl100k_base",
        "ctx-vector ab x --seed 1",
        "2024-05-01 08:00:00+00:00",
        *(arm.config_hash for arm in report.arms),
    ):
        assert value in text  # fmt: skip
    assert all(note in text for note in report.notes)


def test_drawings_are_whole_and_their_ids_are_their_own(text):
    drawings = re.findall(r"<svg .*?</svg>", text, re.S)
    assert len(drawings) == 3 + 2 + 3 + 1  # recall, all evidence, freshness; differences; scores; latency
    ids = []
    for drawing in drawings:
        tree = ElementTree.fromstring(drawing)
        own = [element.get("id") for element in tree.iter() if element.get("id")]
        ids += own
        for target in re.findall(r'(?:href="#|url\(#)([^")]+)', drawing):
            assert target in own
        assert tree.get("aria-label")
        assert "#a1b2c" not in drawing and "#d1e2f" not in drawing
        assert "var(--" in drawing
    assert len(set(ids)) == len(ids)


def test_the_same_report_gives_the_same_page_where_it_should_be(report, text, tmp_path):
    write_report(report, tmp_path / "新" / "out.html", command=COMMAND, made_at=MADE)
    assert (tmp_path / "新" / "out.html").read_text(encoding="utf-8") == text


def test_one_arm_alone_has_a_page_without_comparisons(report):
    alone = replace(report, arms=report.arms[:1], comparisons=(), values={"cosine": report.values["cosine"]},
                    scores={"cosine": report.scores["cosine"]},
                    milliseconds={"cosine": report.milliseconds["cosine"]})  # fmt: skip
    page = BeautifulSoup(render(alone), "html.parser")
    assert "Is it chance?" not in page.text
    assert "What was in the context" in page.text


def test_recall_is_drawn_at_its_place():
    """The points of a curve, read back from the drawing: higher recall is higher up, in proportion."""
    arms = ["a"]
    points = {"a": [(0.2, 0.1, 0.3), (0.6, 0.5, 0.7), (1.0, 1.0, 1.0)]}
    svg = plots.recall_curve((500, 1000, 2000), arms, points, "recall")
    places = [
        float(y)
        for y in re.findall(r'<use xlink:href="#[^"]+" x="[\d.]+" y="([\d.]+)" style="fill: var\(--arm0\)', svg)
    ]
    marks = [y for y in places if y]
    first, second, third = marks[-3:]
    assert first > second > third
    assert (first - second) == pytest.approx(second - third, rel=1e-3)


def test_scores_are_drawn_as_what_a_floor_would_keep():
    counts = [0] * BINS
    counts[0], counts[BINS // 2] = 3, 1
    svg = plots.score_distribution(Scores(tuple(counts), tuple(counts)), 0, "relevance")
    path = re.findall(r'd="(M [^"]+)"[^>]*style="fill: none; stroke: var\(--arm0\)', svg)[0]
    ys = [float(y) for _, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]
    full, quarter, none = ys[0], ys[BINS // 4] if len(ys) > BINS // 2 else sorted(ys)[-2], ys[-1]
    assert none > quarter > full
    assert (none - quarter) / (none - full) == pytest.approx(0.25, abs=0.01)


def test_without_the_extra_the_error_says_what_to_install(report, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "jinja2", None)
        with pytest.raises(OptionalDependencyError, match=r"pip install 'ctx_vector\[lab\]'"):
            render(report)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(OptionalDependencyError, match=r"pip install 'ctx_vector\[lab\]'"):
            plots.differences(np.array([0.5, -0.5]), 1, "x")


def test_metrics_that_differ_in_the_budget_are_named_once():
    from ctx_vector.experiments.headlines import listed
    from ctx_vector.experiments.report import metric_name

    metrics = ["evidence_recall@1000", "evidence_recall@500", "freshness@2000", "ndcg@10"]
    assert listed(metrics, metric_name) == "evidence recall at 500 / 1,000 tokens, freshness at 2,000 tokens, nDCG@10"
    assert listed(metrics, str) == ", ".join(metrics)
