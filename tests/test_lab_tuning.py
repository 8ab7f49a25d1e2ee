"""Tuning finds what is there to find, believes only the held-out queries, and refuses when they are too few."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from cli_fixtures import bad, call, good, quiet_logs
from lab_help import lines, write_beir

from ctx_vector import ContextConfig
from ctx_vector.cli.inputs import read_config
from ctx_vector.errors import InputError
from ctx_vector.experiments import Dataset, Document, Query, read_dataset
from ctx_vector.experiments.knobs import KNOBS, Knob, default_knobs
from ctx_vector.experiments.power import needed, power
from ctx_vector.experiments.tuning import needed_queries, tune

__all__ = ["quiet_logs"]

NOW = datetime(2024, 6, 1, tzinfo=UTC)
#: Everything is a candidate, scored by word overlap: what decides is arithmetic.
BASE = ContextConfig(strategy="jaccard", min_relevance=0, knowledge_limit=100, knowledge_min_score=0)
#: Half a dozen tokens more than one fact: the first choice is the whole context.
BUDGET = (16,)


def facts(collections: int = 8, each: int = 20, *, dated: bool = True) -> Dataset:
    """Each fact has an old version, worded like the query, and a new one in more words, which is the evidence.

    "locker red 7 code" shares 4 of 5 words with the old version and 4 of 7 with the new one: 0.8 against 0.57. The new
    one is 10 days old, the old one 200: recency 0.37 against 0.1. With weights 0.7 and 0.3 the old one leads by 0.08;
    from recency_weight 0.46 on the new one does.
    """
    documents, queries, qrels = [], [], {}
    for number in range(collections):
        world = f"楼{number}"
        for n in range(each):
            name = f"{world}-{n}"
            colour = ("red", "green", "蓝", "grey")[n % 4]
            for version, text, age in (
                ("old", f"locker {colour} {n} code {n * 7}", 200),
                ("new", f"locker {colour} {n} now takes code {n * 11}", 10),
            ):
                stamp = NOW - timedelta(days=age) if dated else None
                documents.append(Document(f"{name}-{version}", text, timestamp=stamp, collection=world))
            queries.append(Query(name, f"locker {colour} {n} code", NOW, group=world, collection=world))
            qrels[name] = {f"{name}-new": 1, f"{name}-old": 0}
    return Dataset("lockers", tuple(documents), tuple(queries), qrels)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def tuned(encoder, cache):
    return tune(facts(), ["recency_weight"], BUDGET, trials=8, base=BASE, encoder=encoder, cache=cache)


def test_a_planted_gain_is_found_and_shown_on_other_queries(tuned):
    assert tuned.changes["recency_weight"] >= 0.46
    assert tuned.changes["relevance_weight"] == pytest.approx(1 - tuned.changes["recency_weight"])
    assert tuned.train[0] < 0.1 and tuned.train[1] > 0.9
    means = tuned.report.means
    assert means["default"]["evidence_recall@16"] < 0.1
    assert means["tuned"]["evidence_recall@16"] > 0.9
    assert tuned.verdict == "better"
    assert tuned.report.data.queries + tuned.train_queries == 160
    assert 1 <= len(tuned.trials) <= 9
    best = max(value for _, value in tuned.trials)
    first = next(changes for changes, value in tuned.trials if value == best)
    assert first["recency_weight"] == tuned.changes["recency_weight"]


def test_the_settings_file_is_read_by_the_other_commands(tuned, tmp_path):
    path = tmp_path / "tuned.yaml"
    path.write_text(tuned.yaml(), encoding="utf-8")
    assert good(call("config", "check", path)).startswith("tuned.yaml is right")
    config = read_config(str(path), {})
    assert config.recency_weight == tuned.changes["recency_weight"]
    assert (config.strategy, config.knowledge_limit) == ("jaccard", 100)  # what was measured is what is written
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert "queries of lockers," in head[0]
    assert head[1].endswith(": better.")


def test_where_nothing_is_to_be_gained_the_default_is_kept(encoder, cache):
    found = tune(facts(dated=False), ["recency_decay"], BUDGET, trials=8, base=BASE, encoder=encoder, cache=cache)
    assert found.is_default and found.changes == {}
    assert found.words() == [f"Nothing tried was better than the default on {found.train_queries} queries: keep it."]
    assert found.report.comparisons == ()
    assert "no difference shown" in found.yaml()


def test_too_few_queries_are_refused_with_the_number_it_takes(tmp_path, encoder):
    data = read_dataset(write_beir(tmp_path / "图书馆"))
    with pytest.raises(InputError) as error:
        tune(data, ["recency_weight"], encoder=encoder)
    assert "图书馆 has 6 queries, too few to tune on: it takes 150" in str(error.value)
    assert f"{needed(0.3)} or more held out" in str(error.value)
    with pytest.raises(InputError, match="it takes 40 and 90: add queries on other subjects"):
        tune(facts(2, 80), ["recency_weight"], trials=8, encoder=encoder, base=BASE)  # halves: 80 and 80


def test_how_many_it_takes():
    assert needed_queries() == 150
    assert needed_queries(0.4, 0.2) == -(-needed(0.2) // 0.6)
    assert needed_queries(0.1, 2.0) == 400  # forty to search with


def test_with_two_budgets_it_takes_what_the_correction_takes(tmp_path, encoder):
    data = read_dataset(write_beir(tmp_path / "x"))
    with pytest.raises(InputError) as error:
        tune(data, ["recency_weight"], (300, 600), encoder=encoder)
    at_half = next(n for n in range(2, 999) if power(n, 0.3, 0.025) >= 0.8)  # Bonferroni: the level of two comparisons
    assert f"it takes {-(-at_half // 0.6):g}: 40 or more to search with and {at_half} or more" in str(error.value)


def test_what_is_better_when_it_is_less_is_no_goal(encoder, cache):
    with pytest.raises(InputError, match=r"metric: expected one of evidence_recall.*answer_recall, got 'tokens'"):
        tune(facts(), ["recency_weight"], BUDGET, metric="tokens", trials=8, base=BASE, encoder=encoder, cache=cache)


def test_default_knobs_are_those_that_can_matter(tmp_path):
    assert default_knobs(facts()) == [
        "recency_weight", "recency_decay", "recency_floor", "min_relevance", "knowledge_limit", "knowledge_min_score"
    ]  # fmt: skip
    assert default_knobs(facts(dated=False))[0] == "min_relevance"
    turns = read_dataset(write_beir(tmp_path / "x", session=True))
    assert default_knobs(turns)[-1] == "memory_limit"


@pytest.mark.parametrize("name", sorted(KNOBS))
def test_every_knob_stays_within_its_bounds_and_comes_back(name):
    knob = KNOBS[name]
    low, high = knob.bounds
    for step in range(21):
        value = knob.value(low + (high - low) * step / 20)
        if knob.choices:
            assert value in knob.choices
        else:
            assert knob.low <= value <= knob.high
            assert isinstance(value, int) == knob.whole
            assert knob.value(knob.place(value)) == value
    if name != "chunk_tokens":
        ContextConfig.from_dict({name: knob.value(low)} | (
            {"relevance_weight": 1 - knob.value(low)} if name == "recency_weight" else {}
        ))  # fmt: skip


def test_numbers_are_short_and_by_factors_where_that_is_asked():
    assert Knob(0.001, 1, log=True).value(-1.5) == 0.032
    assert Knob(2, 100, log=True, whole=True).value(1.3) == 20
    assert KNOBS["mmr_lambda"].place(None) == 1.0  # off is the same as 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"knobs": ["colour"]}, "knobs: expected some of recency_weight, recency_decay"),
        ({"knobs": []}, "knobs: expected one or more different names, got none"),
        ({"share": 1.0}, "share: expected a number between 0 and 1, got 1.0"),
        ({"effect": 0.0}, "effect: expected a number from 0.05 to 2, got 0.0"),
        ({"trials": 3}, "trials: expected >= 8, got 3"),
        ({"seed": -1}, "seed: expected a whole number >= 0, got -1"),
        ({"metric": "recall"}, "metric: expected one of evidence_recall, all_evidence"),
    ],
)
def test_wrong_arguments_are_named(options, words, encoder, cache):
    given = {"knobs": ["recency_weight"], "base": BASE, "encoder": encoder, "cache": cache} | options
    with pytest.raises(InputError) as error:
        tune(facts(), given.pop("knobs"), BUDGET, **given)
    assert words in str(error.value)


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab") / "lockers"
    (folder / "qrels").mkdir(parents=True)
    data = facts()
    (folder / "corpus.jsonl").write_text(
        lines(
            {"_id": d.id, "text": d.text, "timestamp": d.timestamp.isoformat(), "collection": d.collection}
            for d in data.documents
        ),
        encoding="utf-8",
    )
    (folder / "queries.jsonl").write_text(
        lines(
            {"_id": q.id, "text": q.text, "now": q.now.isoformat(), "group": q.group, "collection": q.collection}
            for q in data.queries
        ),
        encoding="utf-8",
    )
    rows = [f"{q}\t{d}\t{grade}\n" for q, grades in data.qrels.items() for d, grade in grades.items()]
    (folder / "qrels" / "test.tsv").write_text("".join(rows), encoding="utf-8")
    return folder


def run_tune(folder, cache, *more):
    settings = ("strategy=jaccard", "min_relevance=0,knowledge_limit=100", "knowledge_min_score=0")
    given = [word for setting in settings for word in ("--set", setting)]
    return call("tune", folder, "--knobs", "recency_weight", "--budgets", "16", "--trials", 8, *given,
                "--cache", cache, *more)  # fmt: skip


def test_the_command_finds_the_same_and_writes_it(folder, cache, tmp_path, encoder, tuned, monkeypatch):
    monkeypatch.setattr("ctx_vector.encoders.load_encoder", lambda name=None: encoder)  # which has seen the texts
    done = run_tune(folder, cache, "--output", tmp_path / "新" / "t.yaml", "--report", tmp_path / "t.html")
    assert done.exit_code == 0, done.stderr
    assert tuned.words()[0] in done.stdout
    assert "tuned is better than default in evidence_recall@16: +0.9" in done.stdout
    assert done.stderr.endswith(f"wrote {tmp_path / '新' / 't.yaml'}\nwrote {tmp_path / 't.html'}\n")
    assert (tmp_path / "新" / "t.yaml").read_text(encoding="utf-8") == tuned.yaml()
    assert "tuned" in (tmp_path / "t.html").read_text(encoding="utf-8")


def test_what_is_found_as_json(tuned):
    found = json.loads(json.dumps(tuned.to_dict(), allow_nan=False))
    assert found["verdict"] == "better"
    assert found["held_out"]["strategies"]["tuned"]["evidence_recall@16"] > 0.9
    assert found["train"]["default"] < 0.1
    assert {"changes", "value"} == set(found["trials"][0])


def test_the_command_refuses_too_few(tmp_path, cache, encoder):
    folder = write_beir(tmp_path / "x")
    assert "x has 6 queries, too few to tune on: it takes 150" in bad(call("tune", folder, "--cache", cache))
