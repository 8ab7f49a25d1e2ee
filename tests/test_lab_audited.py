"""The audit as a data set: what was praised is evidence, and what was there is a document."""

from __future__ import annotations

import pytest

from ctx_vector import ContextBuilder, ContextConfig, ContextPacket, Message
from ctx_vector.audit import AuditLog
from ctx_vector.errors import InputError
from ctx_vector.experiments import Arm, read_dataset, run_experiment
from ctx_vector.experiments.audited import read_audit

TEXTS = ["图书馆九点开门。", "Books may be kept for four weeks.", "打印一页五角。", "The shed is locked at night."]
NOW = "2024-05-01T08:00:00+00:00"


@pytest.fixture
def audit(tmp_path):
    with AuditLog(tmp_path / "audit.sqlite3") as log:
        yield log


def build(audit, query, texts=TEXTS, **more):
    config = ContextConfig(strategy="jaccard", min_relevance=0, max_tokens=more.pop("max_tokens", 3000))
    builder = ContextBuilder(config=config, audit=audit)
    built = builder.assemble(query, documents=texts, now=NOW, **more)
    audit.flush()
    return built


def test_what_was_praised_is_evidence(audit):
    good = build(audit, "how long books kept", [TEXTS[1], TEXTS[3]], session_id="s1", system_instructions="Be brief.",
                 conversation_history=[Message("Hello", "user")], state="draft")  # fmt: skip
    bad = build(audit, "打印 多少钱", [TEXTS[3], TEXTS[0]])
    silent = build(audit, "图书馆 几点", [TEXTS[0]])
    audit.feedback(good.meta["build_id"], 1)
    audit.feedback(bad.meta["build_id"], 0, "wrong")
    data = read_audit(audit)
    assert [query.text for query in data.queries] == ["how long books kept"]
    assert (data.queries[0].group, data.queries[0].now.isoformat()) == ("s1", NOW)
    by_id = {document.id: document.text for document in data.documents}
    assert sorted(by_id.values()) == sorted([TEXTS[1], TEXTS[3], TEXTS[0]])  # the system's, history's, state's are none
    assert {by_id[id_] for id_, grade in data.qrels[good.meta["build_id"]].items() if grade} == {TEXTS[1], TEXTS[3]}
    assert data.skipped == 1
    assert silent.meta["build_id"] not in data.qrels


def test_what_did_not_fit_is_a_document_and_no_evidence(audit):
    built = build(audit, "books kept", TEXTS, max_tokens=60)
    assert 0 < len(built.kept) < len(TEXTS)
    audit.feedback(built.meta["build_id"], 0.5)
    data = read_audit(audit)
    assert len(data.documents) == len(TEXTS)
    evidence = {item.packet.content for item in built.kept if item.action == "full"}
    by_id = {document.id: document.text for document in data.documents}
    assert {by_id[id_] for id_ in data.qrels[built.meta["build_id"]]} == evidence


def test_memories_stay_memories(audit):
    class Recall:
        name, kind = "memory", "memory"

        def load(self, request):
            return [ContextPacket("Ada 喜欢中文。", NOW, metadata={"memory_type": "semantic"})]

    config = ContextConfig(strategy="jaccard", min_relevance=0)
    built = ContextBuilder(config=config, sources=[Recall()], audit=audit).assemble("Ada 喜欢", now=NOW)
    audit.flush()
    audit.feedback(built.meta["build_id"], 1)
    (document,) = read_audit(audit).documents
    assert document.metadata == {"memory_type": "semantic"}
    assert document.timestamp is not None


def test_arms_run_on_an_audit_by_its_path(audit, encoder):
    for query, texts in (("books kept weeks", TEXTS[1:3]), ("图书馆九点开门。", TEXTS[:2])):
        audit.feedback(build(audit, query, texts).meta["build_id"], 1)
    data = read_dataset(audit.path)
    assert data.name == "audit"
    found = run_experiment(data, [Arm("jaccard", {"strategy": "jaccard"}), Arm("cosine")], (40,), encoder=encoder)
    assert found.means["cosine"]["r@5"] == 1.0


def test_an_audit_without_praise_is_an_error_that_says_what_to_do(audit, tmp_path):
    built = build(audit, "books")
    audit.feedback(built.meta["build_id"], 0)
    with pytest.raises(InputError, match=r"no build has feedback of 0.5 or more .* AuditLog\.feedback"):
        read_audit(audit)
    with pytest.raises(InputError, match="there is no such file"):
        read_audit(tmp_path / "nothing.sqlite3")
