"""Questions to a knowledge base: names find their documents, wrong ones are told, and its own search is judged."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cli_fixtures import bad, call, quiet_logs
from lab_help import lines

from ctx_vector import ContextBuilder, KnowledgeBase, RAGTool
from ctx_vector.errors import InputError, StoreError
from ctx_vector.experiments import Arm, base_config, read_dataset, run_experiment, strategies
from ctx_vector.experiments.questions import read_questions
from ctx_vector.experiments.reading import read_pairs
from ctx_vector.experiments.report import render

__all__ = ["quiet_logs"]

TEXTS = {
    "docs/en/vpn.md": "# VPN\n\nError 809 means that the firewall blocks UDP port 500.\n\n# Renewal\n\n"
    "Certificates are renewed every ninety days by the service desk.",
    "docs/en/expenses.md": "# Expenses\n\nReceipts are handed in within thirty days of the journey.",
    "docs/zh/报销.md": "# 报销\n\n出差回来后三十天内交发票。",
    "docs/zh/vpn.md": "# VPN\n\n错误 809 表示防火墙挡住了 UDP 500 端口。",
    "notes [old].txt": "The printer on the first floor is out of order.",
}
ASKED = [
    {"query": "VPN says error 809", "positive": "en/vpn.md", "answer": "blocks UDP port 500"},
    {
        "question": "多久必须交发票？",
        "positive": ["报销.md", {"source": "expenses.md", "grade": 2}],
        "answer": "三十天内",
    },
    {
        "query": "809 错误怎么办",
        "source": "./docs/zh/vpn.md",
        "negative": "docs/en/vpn.md",
        "id": "zh",
        "category": "网络",
    },
    {"query": "Is there a printer?", "positive": "notes [old].txt"},
    {"query": "How often are certificates renewed?", "positive": "*en*/v*.md"},
    {"query": "发票", "positive": "/home/ada/work/docs/zh/报销.md"},
    {"query": "receipts", "positive": "docs\\en\\expenses.md"},
]


@pytest.fixture(scope="module")
def kb(tmp_path_factory, encoder):
    folder = tmp_path_factory.mktemp("questions") / "知识"
    with KnowledgeBase(folder, encoder, chunk_tokens=32) as base:
        base.add_texts({"text": text, "source": source} for source, text in TEXTS.items())
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def written(folder, items):
    path = folder / "问题.jsonl"
    path.write_text(lines(items), encoding="utf-8")
    return path


def test_a_file_that_says_everything_twice_proves_no_more(kb, tmp_path, encoder, cache):
    def found(items):
        data = read_dataset(written(tmp_path, items), kb=kb)
        return run_experiment(data, strategies(["cosine", "jaccard"]), (40,), encoder=encoder, cache=cache)

    once, twice, ids = (
        found(ASKED),
        found([*ASKED, *({**item, "id": None} for item in ASKED)]),
        found([*ASKED[:1], {**ASKED[0], "id": "again"}]),
    )
    assert [one.found for one in twice.comparisons] == [one.found for one in once.comparisons]
    assert twice.data.queries == once.data.queries == len(ASKED)
    assert any(note.startswith("Lines that ask what an earlier one asks: 7.") for note in twice.notes)
    assert any("ask, under an id of their own, what another one asks: 1." in note for note in ids.notes)


@pytest.mark.parametrize("form", ["csv", "list"])
def test_another_form_of_file_is_told_what_a_line_is(form, kb, tmp_path):
    path = tmp_path / f"问题.{form}"
    path.write_text("问题,文件\n多久交发票？,报销.md\n" if form == "csv" else json.dumps(ASKED, indent=1), "utf-8")
    with pytest.raises(InputError, match=r"line 1: .*every line is one JSON object .*no table \(CSV\), no list"):
        read_questions(path, kb)


def test_names_find_their_documents(kb, tmp_path):
    data = read_dataset(written(tmp_path, ASKED), kb=kb)
    assert [dict(data.qrels[query.id]) for query in data.queries] == [
        {"docs/en/vpn.md": 1},
        {"docs/zh/报销.md": 1, "docs/en/expenses.md": 2},
        {"docs/zh/vpn.md": 1, "docs/en/vpn.md": 0},
        {"notes [old].txt": 1},
        {"docs/en/vpn.md": 1},
        {"docs/zh/报销.md": 1},
        {"docs/en/expenses.md": 1},
    ]
    assert data.answers == {"q1": ("blocks UDP port 500",), "q2": ("三十天内",)}
    assert {document.id for document in data.documents} == set(TEXTS)
    assert (data.queries[2].id, data.queries[2].category, data.knowledge) == ("zh", "网络", kb)


WRONG = [
    ({"query": "?", "positive": "guides/vpm.md"}, ["line 2: 'guides/vpm.md' (did you mean", "/vpn.md"]),
    ({"query": "?", "positive": "vpn.md"}, ["line 2: 'vpn.md' fits 2 documents (docs/en/vpn.md, docs/zh/vpn.md)"]),
    ({"query": "?", "positive": "docs/*"}, ["line 2: 'docs/*' fits 4 documents"]),
    (
        {"query": "?", "positive": ["报效.md", "zh/报销.md"]},
        ["1 of 3 names", "line 2: '报效.md' (did you mean docs/zh/报销.md?)"],
    ),
    ({"query": "?", "positive": 7}, ["line 2: positive: expected the name of a document, got 7"]),
    ({"query": "?", "positive": {"source": "zh/vpn.md", "grade": "high"}}, ["line 2: positive: grade: expected"]),
    ({"query": "?"}, ["line 2: positive: it is missing; name the document that answers"]),
    ({"positive": "zh/vpn.md"}, ["line 2: query: it is missing"]),
    ({"query": "?", "positive": "zh/vpn.md", "id": "q1"}, ["line 2: the id 'q1' is there already"]),
    (
        {"query": "?", "positive": "zh/vpn.md", "answer": "blocks UDP"},
        ["line 2: answer: 'blocks UDP' does not stand in docs/zh/vpn.md; copy some words from there"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("item", "words"), WRONG, ids=[words[0][:40] for _, words in WRONG])
def test_what_is_wrong_is_named_by_line(item, words, kb, tmp_path):
    with pytest.raises(InputError) as error:
        read_questions(written(tmp_path, [{"query": "a", "positive": "en/vpn.md"}, item]), kb)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_many_wrong_names_are_counted_and_texts_are_noticed(kb, tmp_path):
    path = written(tmp_path, [{"query": f"{n}?", "positive": f"Answer {n}, which is long."} for n in range(9)])
    with pytest.raises(InputError) as error:
        read_questions(path, kb)
    told = str(error.value)
    assert "9 of 9 names are not those of one document" in told and "and 4 more" in told
    assert "if the positives are texts and no names, leave out the knowledge base" in told


def test_an_empty_or_missing_knowledge_base_is_told(tmp_path, encoder):
    path = written(tmp_path, ASKED)
    with pytest.raises(StoreError, match=r"there is no knowledge base in .*; make one with: ctx-vector index"):
        read_questions(path, tmp_path / "nothing")
    KnowledgeBase(tmp_path / "empty", encoder).close()
    with pytest.raises(InputError, match="is empty; fill it with: ctx-vector index PATH"):
        read_questions(path, tmp_path / "empty")
    with pytest.raises(InputError, match="expected one JSONL file of questions"):
        read_dataset(path, path, kb=tmp_path / "empty")
    with pytest.raises(InputError, match=r"没有\.jsonl: there is no such file; a file of questions has lines like \{"):
        read_questions(tmp_path / "没有.jsonl", tmp_path / "empty")


def test_a_file_of_pairs_with_names_is_refused(tmp_path):
    names = [{"query": f"{n}?", "positive": name} for n, name in enumerate(["my docs/a.md", "报销.docx", "c\\d.pdf"])]
    with pytest.raises(InputError, match=r"3 of 4 positives look like names of files \('my docs/a.md'\).* --kb DIR"):
        read_pairs(written(tmp_path, [*names, {"query": "x", "positive": "每页五角。"}]))
    fine = ["Write to config.yaml.", "每页五角。", "Version 1.2", "See the file config.json", names[0]["positive"]]
    assert len(read_pairs(written(tmp_path, [{"query": "x", "positive": text} for text in fine])).documents) == 5


def test_what_is_judged_is_what_a_build_over_the_knowledge_base_holds(kb, tmp_path, encoder, cache):
    data = read_dataset(written(tmp_path, ASKED), kb=kb)
    budgets = (20, 45)
    report = run_experiment(data, strategies(["cosine", "bm25"]), budgets, encoder=encoder, cache=cache, resamples=99)
    assert report.data.kind == "knowledge"
    with KnowledgeBase(kb, encoder) as base:
        builder = ContextBuilder(rag_tool=RAGTool(knowledge=base), config=base_config(), encoder=encoder)
        for at, query in enumerate(data.queries):
            ample = builder.assemble(query.text, max_tokens=16_000)
            fixed = ample.budget.total_used - sum(item.tokens for item in ample.kept)
            for budget in budgets:
                built = builder.assemble(query.text, max_tokens=budget + fixed)
                whole = [item for item in built.kept if item.action == "full"]
                kept = {item.packet.meta["source"] for item in whole}
                wanted = {source for source, grade in data.qrels[query.id].items() if grade}
                found = report.values["cosine"]
                assert found[f"evidence_recall@{budget}"][at] == len(kept & wanted) / len(wanted)
                if query.id in data.answers:
                    said = any(answer in item.rendered for answer in data.answers[query.id] for item in built.kept)
                    assert found[f"answer_recall@{budget}"][at] == said
    assert report.means["cosine"]["evidence_recall@45"] > 0.5
    told = [row for side in report.changed("bm25").values() for row in side]
    assert {tuple(row["answers"]) for row in told if "answers" in row} <= set(data.answers.values())
    assert [row["id"] for row in told if "answers" in row] == [row["id"] for row in told if row["id"] in data.answers]
    page = render(report)
    assert all(f"Answer: {row['answers'][0]}" in page for row in told if "answers" in row)
    assert not any("With an `answer`" in note for note in report.notes)


def test_nothing_is_written_to_the_knowledge_base(kb, tmp_path, encoder, cache):
    with KnowledgeBase(kb, encoder) as base:
        before = (list(base.export()), base.versions())
    run_experiment(read_dataset(written(tmp_path, ASKED), kb=kb), [Arm("x")], (40,), encoder=encoder, cache=cache)
    with KnowledgeBase(kb, encoder) as base:
        assert (list(base.export()), base.versions()) == before


def test_passages_are_as_they_are_indexed(kb, tmp_path, encoder, cache):
    data = read_dataset(written(tmp_path, ASKED), kb=kb)
    with pytest.raises(InputError, match="index the documents into another folder with --chunk-tokens 64"):
        run_experiment(data, [Arm("x", chunk_tokens=64)], (40,), encoder=encoder, cache=cache)
    with pytest.raises(InputError, match="are no memories"):
        run_experiment(data, [Arm("x")], (40,), encoder=encoder, cache=cache, kind="memories")


def test_the_sample_questions_are_of_the_sample_documents(tmp_path, encoder):
    """Every name fits one document, and every answer stands in a passage of it, as the README indexes them."""
    from cli_fixtures import DATA

    class Blind:  # passages do not depend on vectors, which take a while
        def __getattr__(self, name):
            return getattr(encoder, name)

        def encode_documents(self, texts, **options):
            return np.tile(np.eye(1, encoder.dim, dtype=np.float32), (len(texts), 1))

    with KnowledgeBase(tmp_path / "kb", Blind()) as base:
        base.sync(DATA / "knowledge")
    data = read_dataset(DATA / "questions.jsonl", kb=tmp_path / "kb")
    assert len(data.queries) == len(data.answers) == 32
    assert {id_ for grades in data.qrels.values() for id_ in grades} <= {document.id for document in data.documents}


def test_the_command(kb, tmp_path, encoder, cache):
    path = written(tmp_path, ASKED)
    done = call("ab", path, "--kb", kb, "--strategies", "cosine,bm25", "--budgets", "45", "--cache", cache, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["dataset"], found["queries"], found["documents"]) == ("问题", 7, 5)
    assert "answer_recall@45" in found["strategies"]["bm25"]
    assert "names of files" in bad(call("ab", written(tmp_path, ASKED[3:])), 1)
    assert "there is no knowledge base in" in bad(call("ab", path, "--kb", tmp_path / "nothing"), 1)
    assert "4 queries" in bad(call("tune", path, "--kb", kb, "--cache", cache), 1)  # read, and too few
    wrong = bad(call("tune", path, "--kb", kb, "--knobs", "chunk_tokens", "--cache", cache), 1)
    assert "chunk_tokens cannot be tuned on the knowledge base" in wrong
