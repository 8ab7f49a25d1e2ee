"""The data sets in data/datasets are what their READMEs say: format, counts, languages, answers, ages."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from ctx_vector.languages import language_of

ROOT = Path(__file__).resolve().parent.parent / "data" / "datasets"
NAMES = ("bilingual_knowledge", "changing_facts")


@dataclass(frozen=True)
class DataSet:
    """A folder in BEIR layout, read line by line with nothing but json and str.split."""

    folder: Path
    corpus: list[dict[str, Any]]
    queries: list[dict[str, Any]]
    qrels: list[tuple[str, str, int]]

    def grades(self, query: str) -> dict[str, int]:
        return {document: grade for asked, document, grade in self.qrels if asked == query}


def read(name: str) -> DataSet:
    folder = ROOT / name
    corpus, queries = (
        [json.loads(line) for line in (folder / file).read_text(encoding="utf-8").splitlines()]
        for file in ("corpus.jsonl", "queries.jsonl")
    )
    head, *lines = (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()
    assert head == "query-id\tcorpus-id\tscore"
    cells = [line.split("\t") for line in lines]
    return DataSet(folder, corpus, queries, [(query, document, int(grade)) for query, document, grade in cells])


def words(text: str) -> float:
    """Words of a text, with 1.6 Chinese characters for one."""
    return len(re.findall(r"[A-Za-z0-9_'./-]+", text)) + len(re.findall("[\u4e00-\u9fff]", text)) / 1.6


@pytest.fixture(scope="module", params=NAMES)
def data(request: pytest.FixtureRequest) -> DataSet:
    return read(request.param)


@pytest.fixture(scope="module")
def knowledge() -> DataSet:
    return read("bilingual_knowledge")


@pytest.fixture(scope="module")
def facts() -> DataSet:
    return read("changing_facts")


def versions(facts: DataSet) -> dict[str, list[dict[str, Any]]]:
    """The versions of each fact, oldest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(facts.corpus, key=lambda row: row.get("version", 0)):
        if "group" in row:
            found.setdefault(row["group"], []).append(row)
    return found


def days(later: str, earlier: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)) / timedelta(days=1)


# -- both sets --------------------------------------------------------------------------------------------------------


def test_ids_are_unique_and_what_qrels_name_is_there(data):
    documents, queries = ({row["_id"] for row in rows} for rows in (data.corpus, data.queries))
    assert len(documents) == len(data.corpus) and len(queries) == len(data.queries)
    assert all(re.fullmatch(r"[a-z0-9.-]+", id_) for id_ in documents | queries)
    assert {query for query, _, _ in data.qrels} <= queries
    assert {document for _, document, _ in data.qrels} <= documents
    pairs = Counter((query, document) for query, document, _ in data.qrels)
    assert max(pairs.values()) == 1
    assert {grade for _, _, grade in data.qrels} <= {0, 1, 2}


def test_every_question_has_its_answer_or_is_marked(data):
    for query in data.queries:
        grades = data.grades(query["_id"])
        if query["kind"] == "unanswerable":
            assert not grades, query
        else:
            assert 2 in grades.values(), query


def test_no_text_is_there_twice(data):
    for rows in (data.corpus, data.queries):
        folded = Counter(re.sub(r"\W+", "", row["text"].casefold()) for row in rows)
        assert max(folded.values()) == 1, folded.most_common(1)


def test_texts_are_clean_and_in_the_language_they_say(data):
    for row in (*data.corpus, *data.queries):
        text = row["text"]
        assert text == text.strip() and "\r" not in text and "\ufffd" not in text
        assert row["lang"] in ("en", "zh")
        han = len(re.findall("[\u4e00-\u9fff]", text))
        if row["kind"] != "keyword":  # codes and commands belong to no language
            assert language_of(text) == row["lang"], text
        if row["lang"] == "en":
            assert han == 0, text


def test_files_end_as_lines_do(data):
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "README.md"):
        raw = (data.folder / name).read_bytes()
        assert raw.endswith(b"\n") and b"\r" not in raw


# -- bilingual_knowledge ----------------------------------------------------------------------------------------------


def test_knowledge_counts_are_those_of_its_readme(knowledge):
    languages = {row["_id"]: row["lang"] for row in knowledge.corpus}
    subjects = Counter(row["subject"] for row in knowledge.corpus)
    rows = {name: [0, 0] for name in ("documents", "only", "both", "questions", "same", "other", "two", "none")}
    for row in knowledge.corpus:
        column = ("en", "zh").index(row["lang"])
        rows["documents"][column] += 1
        rows["both" if subjects[row["subject"]] == 2 else "only"][column] += 1
    for query in knowledge.queries:
        column = ("en", "zh").index(query["lang"])
        rows["questions"][column] += 1
        spoken = {languages[id_] for id_, grade in knowledge.grades(query["_id"]).items() if grade == 2}
        kind = "none" if not spoken else "two" if len(spoken) == 2 else "same" if query["lang"] in spoken else "other"
        rows[kind][column] += 1
    table = re.findall(r"^\| [^|]+ \| (\d+) \| (\d+) \|$", (knowledge.folder / "README.md").read_text("utf-8"), re.M)
    assert [[int(number) for number in row] for row in table] == list(rows.values())
    assert len(knowledge.corpus) >= 60 and len(knowledge.queries) >= 150
    assert min(min(rows[name]) for name in ("only", "same", "other")) >= 25


def test_knowledge_documents_are_of_80_to_400_words_and_of_many_kinds(knowledge):
    for row in knowledge.corpus:
        assert 80 <= words(row["text"]) <= 400, row["_id"]
        assert row["title"] and row["_id"] == f"{row['lang']}-{row['subject']}"
    assert len({row["kind"] for row in knowledge.corpus}) >= 8
    assert {row["kind"] for row in knowledge.queries} == {"question", "implied", "keyword", "unanswerable"}
    assert sum(row["kind"] == "implied" for row in knowledge.queries) >= 30


def test_knowledge_questions_are_not_copied_from_their_documents(knowledge):
    texts = {row["_id"]: row["text"] for row in knowledge.corpus}
    for query in knowledge.queries:
        if query["kind"] == "keyword":
            continue
        for document in knowledge.grades(query["_id"]):
            for run in zip(*(re.findall(r"\w+", query["text"].casefold())[n:] for n in range(7)), strict=False):
                assert " ".join(run) not in " ".join(re.findall(r"\w+", texts[document].casefold())), query
            stripped = re.sub(r"\W", "", query["text"])
            if query["lang"] == "zh":
                runs = {stripped[n : n + 12] for n in range(len(stripped) - 11)}
                assert not any(run in re.sub(r"\W", "", texts[document]) for run in runs), query


def test_every_pair_of_grade_2_has_an_answer_that_stands_in_its_document_alone(knowledge):
    lines = (knowledge.folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    answers = [json.loads(line) for line in lines]
    pairs = [(row["query-id"], row["corpus-id"]) for row in answers]
    assert pairs == [(query, document) for query, document, grade in knowledge.qrels if grade == 2]
    readme = " ".join((knowledge.folder / "README.md").read_text(encoding="utf-8").split())
    sizes = [len(row["answer"]) for row in answers]
    assert f"one line for each of the {len(answers)} pairs" in readme
    assert f"({min(sizes)} to {max(sizes)} characters, half of them under {median(sizes):g})" in readme
    for row in answers:
        answer = row["answer"]
        assert answer == answer.strip() and "\n" not in answer
        assert [known["_id"] for known in knowledge.corpus if answer in known["text"]] == [row["corpus-id"]], answer
        assert sum(known["text"].count(answer) for known in knowledge.corpus) == 1, answer


def test_every_knowledge_document_is_asked_about(knowledge):
    answered = Counter(document for _, document, grade in knowledge.qrels if grade == 2)
    assert {row["_id"] for row in knowledge.corpus} == set(answered)
    assert max(answered.values()) <= 8


# -- changing_facts ---------------------------------------------------------------------------------------------------


def test_facts_counts_are_those_of_its_readme(facts):
    groups = versions(facts)
    grades = Counter(grade for _, _, grade in facts.qrels)
    changed = [query for query in facts.queries if query["kind"] == "changed"]
    old = [query for query in facts.queries if query["kind"] == "old"]
    near = [row for row in facts.corpus if row["_id"].endswith("-near")]
    notes = [row for row in facts.corpus if row["_id"].startswith("note-")]
    languages = Counter(row["lang"] for row in facts.corpus)
    counts = [len(groups), sum(map(len, groups.values())), len(changed), len(old), len(near), len(notes)]
    counts += [len(facts.corpus), languages["en"], languages["zh"]]
    table = re.findall(r"^\| [^|]+ \| (\d+) \|$", (facts.folder / "README.md").read_text("utf-8"), re.M)
    assert [int(number) for number in table] == counts
    assert len(groups) >= 60 and grades == {2: len(changed) + len(old), 0: grades[0]}
    for lang in ("en", "zh"):
        assert 0.4 < languages[lang] / len(facts.corpus) < 0.6
        assert sum(query["lang"] == lang for query in changed) >= 60 and sum(q["lang"] == lang for q in old) >= 15
    assert sum(query["held_out"] for query in changed) >= 30
    texts = {row["_id"]: row["lang"] for row in facts.corpus}
    assert sum(texts[f"{q['group']}-1"] != q["lang"] for q in changed) >= 10  # asked in the other language


def test_facts_have_two_to_four_versions_of_which_the_newest_is_right(facts):
    groups = versions(facts)
    for rows in groups.values():
        assert 2 <= len(rows) <= 4
        assert [row["version"] for row in rows] == list(range(1, len(rows) + 1))
        assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)
        assert len({(row["kind"], row.get("memory_type"), row["lang"]) for row in rows}) == 1
    for query in facts.queries:
        grades = facts.grades(query["_id"])
        if query["kind"] == "changed":
            rows = groups[query["group"]]
            assert grades == {row["_id"]: 2 if row is rows[-1] else 0 for row in rows}
        else:
            assert list(grades.values()) == [2]


def test_facts_dates_are_spread_as_the_readme_says(facts):
    (now,) = {query["now"] for query in facts.queries}
    groups, held = versions(facts), {q["group"] for q in facts.queries if q["kind"] == "changed" and q["held_out"]}
    times = [datetime.fromisoformat(row["timestamp"]) for row in facts.corpus]
    assert times == sorted(times) and all(time.utcoffset() == timedelta(0) for time in times)
    for part in (held, set(groups) - held):
        ages = sorted(days(now, groups[name][-1]["timestamp"]) for name in part)
        for place, age in enumerate(ages):  # one in each of as many equal parts
            low = 1 + 364 * place / len(ages)
            assert low - 0.01 <= age <= low + 364 / len(ages) + 0.01
    steps = [days(new["timestamp"], old["timestamp"]) for rows in groups.values() for old, new in pairwise(rows)]
    last = [days(rows[-1]["timestamp"], rows[-2]["timestamp"]) for rows in groups.values()]
    assert min(steps) >= 2.99 and max(steps) <= 400.01
    assert 0.35 < sum(step < 23 for step in last) / len(last) < 0.5
    for low, high in pairwise((3, 6.8, 15.4, 34.6, 78.3, 177, 400)):  # equal factors
        assert sum(low <= step < high for step in last) == pytest.approx(len(last) / 6, abs=2)
    old = [days(now, row["timestamp"]) for row in facts.corpus if facts_answer(facts, row["_id"])]
    assert all(199 < age < 901 for age in old)


def facts_answer(facts: DataSet, document: str) -> bool:
    """Whether a document is the only answer of an `old` question."""
    return any(query == f"{document}-q1" for query, found, _ in facts.qrels if found == document)


def test_facts_versions_are_not_one_sentence_with_another_number(facts):
    for rows in versions(facts).values():
        for one, other in pairwise(rows):
            a, b = (Counter(re.findall(r"[a-z']+|[\u4e00-\u9fff]", row["text"].casefold())) for row in (one, other))
            assert (a & b).total() / max(a.total(), b.total()) < 0.75, (one["text"], other["text"])


def test_facts_texts_hold_no_dates(facts):
    for row in facts.corpus:
        assert not re.search(r"\b(?:19|20)[2-9]\d\b|\d+ ?月 ?\d+ ?日", row["text"]), row
