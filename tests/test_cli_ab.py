"""`ctx-vector ab` from end to end: tables, JSON, pages, and errors for people."""

from __future__ import annotations

import json

import pytest
from cli_fixtures import bad, call, quiet_logs, run
from lab_help import lines, write_beir

from ctx_vector.cli.ab import read_arms, read_changes
from ctx_vector.cli.common import UsageError
from ctx_vector.experiments import Arm

__all__ = ["quiet_logs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_beir(tmp_path_factory.mktemp("lab") / "图书馆")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def ab(*arguments):
    return call("ab", *arguments)


def test_tables_and_words(folder, cache, encoder):
    done = ab(folder, "--strategies", "cosine,jaccard", "--budgets", "20,40", "--cache", cache)
    assert done.exit_code == 0, done.stderr
    head, *rest = done.stdout.splitlines()
    assert head.startswith("图书馆: 6 queries, 10 documents as knowledge; multilingual-e5-small; ")
    rows = {line.split()[0]: line.split()[1:] for line in rest if line.strip()}
    assert len(rows["evidence_recall@20"]) >= 2
    assert rows["freshness@20"][:3] == ["(of", "1", "query)"]
    assert "In short, by evidence_recall@20 (which was fixed beforehand)" in done.stdout
    assert "No difference between jaccard and cosine in evidence_recall@20 is shown" in done.stdout
    assert "The verdict goes by p of all, corrected for" in done.stdout
    assert done.stderr == ""


def test_json_is_what_is_promised_and_the_same_every_time(folder, cache, encoder):
    command = (folder, "--strategies", "cosine,jaccard", "--budgets", "40,20", "--cache", cache, "--json")
    first, second = (json.loads(ab(*command).stdout) for _ in range(2))
    assert first["dataset"] == "图书馆"
    assert first["budgets"] == [20, 40]
    assert set(first["strategies"]) == {"cosine", "jaccard"}
    assert {"evidence_recall@20", "all_evidence@40", "ndcg@10", "mrr@10", "r@1"} <= set(first["strategies"]["jaccard"])
    assert first["comparisons"][0]["against"] == "cosine"
    for times in ("seconds", "latency_ms"):
        first.pop(times), second.pop(times)
    assert first == second


def test_files_are_written(folder, cache, tmp_path, encoder):
    page, data = tmp_path / "a" / "out.html", tmp_path / "b" / "out.json"
    done = ab(folder, "--strategies", "jaccard", "--arm", "停:fill=stop", "--budgets", "40", "--cache", cache,
              "--report", page, "--output", data)  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert done.stderr == f"wrote {page}\nwrote {data}\n"
    assert "图书馆" in page.read_text(encoding="utf-8") and "停" in page.read_text(encoding="utf-8")
    found = json.loads(data.read_text(encoding="utf-8"))
    assert len(found["rows"]) == 6
    assert found["arms"]["停"]["changes"]["fill"] == "stop"


def test_the_settings_of_all_arms(folder, cache, tmp_path, encoder):
    config = tmp_path / "c.yaml"
    config.write_text("recency_decay: 0.5\n")
    done = ab(folder, "--arm", "a:", "--arm", "b:recency_weight=0", "--set", "min_relevance=0.2", "--config", config,
              "--budgets", "40", "--limit", 4, "--seed", 3, "--cache", cache, "--json")  # fmt: skip
    found = json.loads(done.stdout)
    assert found["queries"] == 4
    assert found["arms"]["a"]["changes"]["min_relevance"] == 0.2
    assert found["arms"]["a"]["changes"]["recency_decay"] == 0.5
    assert found["arms"]["b"]["changes"]["relevance_weight"] == 1
    assert found["made"]["seed"] == 3


def test_several_data_sets_and_groups(folder, cache, tmp_path, encoder):
    other = write_beir(tmp_path / "other", session=True)
    done = ab(folder, other, "--strategies", "cosine,jaccard", "--budgets", "40", "--by-group", "--cache", cache,
              "--json")  # fmt: skip
    found = json.loads(done.stdout)
    assert (found["queries"], found["groups"], found["kind"]) == (12, 2, "knowledge and memories")
    assert {one["unit"] for one in found["comparisons"]} == {"group"}


def test_pairs_in_a_real_process(tmp_path, cache):
    path = tmp_path / "pairs.jsonl"
    path.write_text(lines([{"query": "打印一页多少钱？", "positive": "每页五角。"}, {"query": "a b", "answer": "b c"}]))
    done = run("ab", path, "--strategies", "jaccard", "--budgets", "30", "--cache", cache, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["strategies"]["jaccard"]["r@1"] == 1.0


# -- what is wrong is said in one line -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nothing-there"], 1, "there is no such folder or file"),
        (["{folder}", "--budgets", "many"], 2, "--budgets: expected whole numbers of tokens like 500,1000,2000"),
        (["{folder}", "--budgets", "0"], 1, "budgets: expected whole numbers of tokens >= 1, got 0"),
        (["{folder}", "--arm", "fill"], 2, "--arm: expected NAME:KEY=VALUE"),
        (["{folder}", "--arm", "x:fill"], 2, "--arm: expected KEY=VALUE, got 'fill'"),
        (["{folder}", "--arm", "x:fil=stop"], 1, "arm x: fil: unknown field; did you mean 'fill'?"),
        (["{folder}", "--set", "fill=jump"], 1, "fill: expected one of skip, stop, got 'jump'"),
        (["{folder}", "--strategies", "cosinus"], 1, "did you mean 'cosine'?"),
        (["{folder}", "--strategies", "cosine", "--by-group"], 1, "has only one group"),
        (["{folder}", "--documents-as", "files"], 1, "kind: expected one of auto, knowledge, memories"),
        (["{folder}", "--limit", "0"], 1, "number of queries: expected >= 1, got 0"),
        (["{folder}", "--split", "train"], 1, "train.tsv does not exist"),
        (["{folder}", "--report", "{folder}", "--split", "train"], 1, "Is a directory; give a file"),  # before any work
        (["{folder}", "--output", "{folder}", "--split", "train"], 1, "Is a directory; give a file"),
    ],
)
def test_errors(arguments, code, words, folder, cache, encoder):
    given = [str(folder) if argument == "{folder}" else argument for argument in arguments]
    assert words in bad(ab(*given, "--cache", cache), code)


def test_a_line_of_the_data_is_named(tmp_path):
    folder = write_beir(tmp_path / "x")
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "?"}\n{"_id": "q1"}\n')
    assert "queries.jsonl, line 2: text: expected a text" in bad(ab(folder))


def test_arms_are_read():
    assert read_arms("a, b", ()) == [Arm("a", {"strategy": "a"}), Arm("b", {"strategy": "b"})]
    assert read_arms(None, ["大块: chunk_tokens=320, fill = stop"]) == [Arm("大块", {"fill": "stop"}, 320)]
    assert "cosine" in [arm.name for arm in read_arms(None, ())]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("fill=stop", {"fill": "stop"}),
        ("mmr_lambda=null,min_relevance=0.25", {"mmr_lambda": None, "min_relevance": 0.25}),
        ("recency_decay_by_type={episodic: 0.05, semantic: 0}",
         {"recency_decay_by_type": {"episodic": 0.05, "semantic": 0}}),
        ('reminder="a=b, c"', {"reminder": "a=b, c"}),
        ("", {}),
    ],
)  # fmt: skip
def test_changes_are_read(text, found):
    if "a=b" in text:  # an equals sign within a value is no key
        assert read_changes(text, "--set") == found
    assert read_changes(text, "--set") == found


def test_what_is_no_change_is_refused():
    for text in ("fill", "=stop", "{a: 1}", "fill=[1"):
        with pytest.raises(UsageError, match="expected KEY=VALUE"):
            read_changes(text, "--set")
