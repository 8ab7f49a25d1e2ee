"""Data sets are read as they are meant, and what is wrong in them is named by file and line."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_help import ASKED, FACTS, lines, write_beir

from ctx_vector.errors import InputError
from ctx_vector.experiments import Dataset, Document, Query, read_dataset
from ctx_vector.experiments.reading import read_beir, read_pairs


def test_a_beir_folder(tmp_path):
    data = read_dataset(write_beir(tmp_path / "图书馆"))
    assert data.name == "图书馆"
    assert [document.text for document in data.documents] == [text for _, text, _ in FACTS]
    assert data.queries[1] == Query("q2", "周末图书馆几点开门？", datetime(2024, 2, 1, tzinfo=UTC), "opening")
    assert {id_: dict(grades) for id_, grades in data.qrels.items()} == {id_: grades for id_, _, grades, _ in ASKED}
    assert data.documents[-1].timestamp == datetime(2024, 1, 13, tzinfo=UTC)
    assert not data.is_conversation
    assert data.groups == ("",)


def test_extra_fields_stay(tmp_path):
    folder = write_beir(tmp_path / "x", session=True)
    text = (folder / "corpus.jsonl").read_text(encoding="utf-8").replace('"title": ""', '"title": "", "mood": "好"')
    (folder / "corpus.jsonl").write_text(text, encoding="utf-8")
    data = read_dataset(folder)
    assert data.is_conversation
    assert (data.documents[0].session, data.documents[0].role, data.documents[1].role) == ("s1", "Bo", "Ada")
    assert data.documents[0].metadata == {"mood": "好"}


def test_kind_and_language_make_a_category(tmp_path):
    folder = write_beir(tmp_path / "x")
    path = folder / "queries.jsonl"
    text = path.read_text(encoding="utf-8").replace('"category": "opening"', '"kind": "changed", "lang": "zh"')
    path.write_text(text.replace('"category": "rooms"', '"category": "", "group": "desks"'), encoding="utf-8")
    data = read_dataset(folder)
    assert [query.category for query in data.queries][:2] == ["changed, zh"] * 2
    assert data.groups == ("", "desks")


def test_former_versions_are_what_is_judged_0_and_older(tmp_path):
    data = read_dataset(write_beir(tmp_path / "x"))
    by_id = {query.id: query for query in data.queries}
    assert data.versions(by_id["q1"]) == ("d1", frozenset({"d8"}))
    assert data.versions(by_id["q2"]) is None


def test_queries_without_evidence_are_left_out_and_counted(tmp_path):
    folder = write_beir(tmp_path / "x")
    path = folder / "qrels" / "test.tsv"
    path.write_text(path.read_text().replace("q2\td2\t2\n", "q2\td2\t0\n").replace("q4\td6\t1\n", ""))
    data = read_dataset(folder)
    assert [query.id for query in data.queries] == ["q1", "q3", "q5", "q6"]
    assert data.skipped == 2


@pytest.mark.parametrize("header", [True, False])
def test_qrels_as_trec_eval_has_them(tmp_path, header):
    folder = write_beir(tmp_path / "x")
    (folder / "qrels" / "test.tsv").write_text(("query\titer\tdoc\tscore\n" if header else "") + "q1\t0\td1\t1\n")
    assert read_dataset(folder).qrels == {"q1": {"d1": 1}}


def test_the_split_that_is_there_is_read(tmp_path):
    folder = write_beir(tmp_path / "x")
    (folder / "qrels" / "test.tsv").rename(folder / "qrels" / "dev.tsv")
    assert len(read_dataset(folder).queries) == 6
    (folder / "qrels" / "train.tsv").write_text("q1\td1\t1\n")
    assert len(read_dataset(folder, split="train").queries) == 1
    with pytest.raises(InputError, match=r"test\.tsv does not exist; a BEIR folder has"):
        read_dataset(folder, split="test")


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("corpus.jsonl", '"_id": "d3"', '"_id": "d2"', "corpus.jsonl, line 3: the id 'd2' is there already"),
        ("corpus.jsonl", '"_id": "d3", ', "", "corpus.jsonl, line 3: _id: expected a text that is not blank, got None"),
        ("corpus.jsonl", '"_id": "d2"', '"_id": d2', "corpus.jsonl, line 2: no valid JSON"),
        ("corpus.jsonl", '"2024-01-06"', '"yesterday"', "corpus.jsonl, line 2: timestamp: expected a time like"),
        ("queries.jsonl", '"周末图书馆几点开门？"', '" "', "queries.jsonl, line 2: text: expected a text"),
        ("qrels/test.tsv", "q3\td4", "q3 d4", "test.tsv, line 6: expected query-id, corpus-id and score"),
        ("qrels/test.tsv", "d6", "d66", "test.tsv, line 7: there is no document 'd66' in corpus.jsonl"),
        ("qrels/test.tsv", "q6", "q7", "test.tsv, line 9: there is no query 'q7' in queries.jsonl"),
        ("qrels/test.tsv", "q4\td6\t1", "q4\td6\tgood", "test.tsv, line 7: score: expected a whole number, got 'good'"),
        ("qrels/test.tsv", "q3\td4\t1", "q3\td3\t2", "test.tsv, line 6: 'd3' has another score for 'q3'"),
    ],
)
def test_what_is_wrong_is_named_by_line(tmp_path, file, old, new, words):
    folder = write_beir(tmp_path / "x")
    text = (folder / file).read_text(encoding="utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_beir(folder)
    assert words in str(error.value)


def test_a_title_alone_is_a_text(tmp_path):
    folder = write_beir(tmp_path / "图书馆")
    path = folder / "corpus.jsonl"
    text = path.read_text(encoding="utf-8").replace('"title": "", "text": "逾期', '"title": "逾期', 1)
    assert text != path.read_text(encoding="utf-8")
    path.write_text(text.replace('罚款两元。"', '罚款两元。", "text": " "', 1), encoding="utf-8")
    assert read_beir(folder).documents == read_beir(write_beir(tmp_path / "b")).documents


def test_answers_are_read_where_there_are_any(tmp_path):
    folder = write_beir(tmp_path / "x")
    assert read_dataset(folder).answers == {}
    plain = read_dataset(folder).digest
    rows = [("q2", "d2", "周末上午十点开门"), ("q3", "d3", "for  four weeks"), ("q3", "d4", "逾期还书")]
    found = lines({"query-id": query, "corpus-id": document, "answer": answer} for query, document, answer in rows)
    (folder / "answers.jsonl").write_text(found, encoding="utf-8")
    data = read_dataset(folder)
    assert data.answers == {"q2": ("周末上午十点开门",), "q3": ("for  four weeks", "逾期还书")}
    assert data.digest != plain
    assert data.only(["q1", "q2"]).answers == {"q2": ("周末上午十点开门",)}
    assert set(read_dataset(folder, write_beir(tmp_path / "y")).answers) == {"x/q2", "x/q3"}


@pytest.mark.parametrize(
    ("query", "document", "answer", "words"),
    [
        ("q2", "d2", "九点", "answers.jsonl, line 1: '九点' does not stand in the document 'd2'"),
        ("q9", "d2", "周末", "line 1: there is no query 'q9'"),
        ("q2", "d99", "周末", "line 1: there is no document 'd99'"),
        ("q2", "d2", " ", "line 1: answer: expected a text that is not blank"),
    ],
)
def test_wrong_answers_are_named_by_line(tmp_path, query, document, answer, words):
    folder = write_beir(tmp_path / "x")
    row = lines([{"query-id": query, "corpus-id": document, "answer": answer}])
    (folder / "answers.jsonl").write_text(row, encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_dataset(folder)
    assert words in str(error.value)


def test_other_faults_are_told_too(tmp_path):
    with pytest.raises(InputError, match="there is no such folder or file"):
        read_dataset(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"corpus\.jsonl does not exist"):
        read_dataset(tmp_path)
    (tmp_path / "x.jsonl").write_bytes(b'{"query": "\xff"}\n')
    with pytest.raises(InputError, match="not UTF-8 text"):
        read_dataset(tmp_path / "x.jsonl")
    with pytest.raises(InputError, match="at least one"):
        read_dataset()


# -- pairs -----------------------------------------------------------------------------------------------------------


def test_pairs(tmp_path):
    path = tmp_path / "问答.jsonl"
    path.write_text(
        lines([
            {"query": "打印一页多少钱？", "positive": "每页五角。", "category": "钱"},
            {"question": "When?", "answers": ["At nine.", {"text": "每页五角。", "grade": 2}], "id": "when"},
            {"query": "Where?", "positives": ["Here."], "negative": ["At nine.", "Not here."]},
        ]),
        encoding="utf-8",
    )  # fmt: skip
    data = read_pairs(path)
    assert [document.text for document in data.documents] == ["每页五角。", "At nine.", "Here.", "Not here."]
    assert data.qrels == {"q1": {"d1": 1}, "when": {"d2": 1, "d1": 2}, "q3": {"d3": 1, "d2": 0, "d4": 0}}
    assert data.name == "问答"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be"])
def test_files_with_a_byte_order_mark_are_read(encoding, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        ("\ufeff" * (encoding != "utf-8-sig") + '{"query": "几点？", "positive": "九点。"}\r\n').encode(encoding)
    )
    data = read_pairs(path)
    assert (data.queries[0].text, data.documents[0].text) == ("几点？", "九点。")


def test_lines_that_ask_the_same_are_one_question(tmp_path):
    path = tmp_path / "pairs.jsonl"
    asked = [
        {"query": "打印一页多少钱？", "positive": "每页五角。"},
        {"query": "When?", "positive": "At nine."},
        {"query": " 打印一页多少钱？ ", "positive": "彩色两元。", "negative": "At nine."},
        {"query": "When?", "positive": "At nine."},
        {"query": "When?", "positive": "At ten.", "now": "2024-01-01"},
        {"query": "When?", "positive": "At nine.", "id": "own"},
    ]
    path.write_text("\ufeff" + lines(asked).replace("\n", "\r\n"), encoding="utf-8")
    data = read_pairs(path)
    assert data.qrels == {"q1": {"d1": 1, "d3": 1, "d2": 0}, "q2": {"d2": 1}, "q5": {"d4": 1}, "own": {"d2": 1}}
    assert data.merged == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"positive": "x"}, "line 2: query: it is missing"),
        ({"query": "x"}, "line 2: positive: it is missing"),
        ({"query": "x", "positive": 7.5}, "line 2: positive: expected a text or an object with 'text', got 7.5"),
        (
            {"query": "x", "positive": {"text": "y", "grade": "high"}},
            "line 2: positive: grade: expected a whole number",
        ),
        ({"query": "x", "positive": " "}, "line 2: text: expected a text that is not blank"),
        ({"query": "x", "positive": "y", "id": "q1"}, "line 2: the id 'q1' is there already"),
    ],
)
def test_wrong_pairs_are_named_by_line(tmp_path, line, words):
    path = tmp_path / "x.jsonl"
    path.write_text(lines([{"query": "a", "positive": "b"}, line]))
    with pytest.raises(InputError) as error:
        read_pairs(path)
    assert words in str(error.value)


# -- several, and parts ----------------------------------------------------------------------------------------------


def test_several_are_worlds_of_their_own(tmp_path):
    data = read_dataset(write_beir(tmp_path / "甲"), write_beir(tmp_path / "b"), name="both")
    assert data.groups == data.collections
    assert (data.name, data.groups, len(data.documents), len(data.queries)) == ("both", ("甲", "b"), 20, 12)
    assert [document.id for document in data.documents_of("b")] == [f"b/d{n}" for n in range(1, 11)]
    assert data.qrels["甲/q2"] == {"甲/d2": 2}
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError, match="two data sets are named 'b'"):
        read_dataset(tmp_path / "b", write_beir(tmp_path / "c" / "b"))


def test_collections_in_one_folder(tmp_path):
    folder = write_beir(tmp_path / "x", collection="中文")
    assert read_dataset(folder).collections == ("中文",)
    text = (folder / "queries.jsonl").read_text(encoding="utf-8").replace("中文", "en", 1)
    (folder / "queries.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"test\.tsv, line 2: the query is of collection 'en', the document of '中文'"):
        read_dataset(folder)


def test_the_digest_is_of_the_content(tmp_path):
    data = read_dataset(write_beir(tmp_path / "x"))
    assert read_dataset(write_beir(tmp_path / "y")).digest == data.digest
    assert data.only(["q1", "q2"]).digest != data.digest
    changed = tmp_path / "y" / "corpus.jsonl"
    changed.write_text(changed.read_text(encoding="utf-8").replace("nine", "ten"), encoding="utf-8")
    assert read_dataset(tmp_path / "y").digest != data.digest


def test_a_sample_keeps_the_order_and_the_choice(tmp_path):
    data = read_dataset(write_beir(tmp_path / "x"))
    ids = [query.id for query in data.sample(3, seed=1).queries]
    assert ids == sorted(ids) and len(ids) == 3
    assert ids == [query.id for query in data.sample(3, seed=1).queries]
    assert len({tuple(q.id for q in data.sample(3, seed=n).queries) for n in range(9)}) > 3
    assert set(ids) <= {query.id for query in data.sample(5, seed=1).queries}


def made(evidence: list[set[int]], groups: list[str] | None = None) -> Dataset:
    names = sorted({group for group in groups or [""]})
    documents = [Document(f"{group}d{n}", f"text {n}") for group in names for n in range(12)]
    queries = [Query(f"q{n}", "?", group=groups[n] if groups else "") for n in range(len(evidence))]
    qrels = {q.id: {f"{q.group}d{n}": 1 for n in ids} for q, ids in zip(queries, evidence, strict=True)}
    return Dataset("made", tuple(documents), tuple(queries), qrels)


@given(
    st.lists(st.sets(st.integers(0, 11), min_size=1, max_size=3), min_size=2, max_size=25),
    st.floats(0.1, 0.9),
    st.integers(0, 5),
)
def test_a_split_divides_all_queries_and_shares_no_evidence(evidence, share, seed):
    data = made(evidence)
    if len(set(data.clusters().values())) < 2:
        with pytest.raises(InputError, match="cannot be divided"):
            data.split(share, seed)
        return
    first, second = data.split(share, seed)
    ids = [[query.id for query in part.queries] for part in (first, second)]
    assert sorted(ids[0] + ids[1]) == sorted(query.id for query in data.queries)
    assert ids[0] and ids[1]
    documents = [{d for q in part.queries for d in part.qrels[q.id]} for part in (first, second)]
    assert not documents[0] & documents[1]


def test_a_split_is_about_as_large_as_asked_and_keeps_groups_whole():
    first, second = made([{n % 12} for n in range(120)]).split(0.3)
    assert 0.2 <= len(first.queries) / 120 <= 0.4
    first, second = made([{0}] * 40, [f"g{n % 4}" for n in range(40)]).split(0.5)
    assert not set(first.groups) & set(second.groups)
    assert len(first.queries) == 20


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"documents": ()}, "there are no documents"),
        ({"queries": ()}, "there are no queries with evidence"),
        ({"qrels": {"q0": {"d0": 0}}}, "'q0' has no evidence"),
        ({"qrels": {"q0": {"d99": 1}}}, "names the document 'd99', not there"),
        ({"documents": (Document("d0", "x"), Document("d0", "y"))}, "two documents have the id 'd0'"),
        ({"queries": (Query("q0", "x"), Query("q0", "y"))}, "two queries have the id 'q0'"),
        ({"documents": (Document("d0", "x", collection="g"),)}, "of collection ''"),
    ],
)
def test_a_data_set_that_contradicts_itself_is_refused(change, words):
    parts = {"documents": (Document("d0", "x"),), "queries": (Query("q0", "?"),), "qrels": {"q0": {"d0": 1}}}
    with pytest.raises(InputError) as error:
        Dataset("x", **(parts | change))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("names", "documents", "queries", "digest"),
    [(["xquad-zh"], 240, 1190, None), ([f"locomo-{n}" for n in (26, 30, 41, 42, 43)], 2760, 760, None)],
)
def test_the_shared_sets_are_read(shared, names, documents, queries, digest):
    data = read_dataset(*(shared / "datasets" / name for name in names))
    assert (len(data.documents), len(data.queries), data.skipped) == (documents, queries, 0)
    assert data.is_conversation == (len(names) > 1)
