"""What is purged from a knowledge base or a memory is gone from every audit: from the file, its log and its records."""

import shutil
import sqlite3
import zlib
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_help import NOW, STEADY, HashEncoder, plain
from store_help import opened

from ctx_vector import (
    ConfigError,
    ContextBuilder,
    ContextConfig,
    ContextPacket,
    KnowledgeBase,
    Memory,
    MemoryTool,
    RAGTool,
)
from ctx_vector.audit import AuditLog
from ctx_vector.audit_purge import linked
from ctx_vector.audit_tables import FREE_TEXT, pack_refs, unpack_refs
from ctx_vector.errors import InputError, StoreError

ENCODER = HashEncoder()
SECRET = "The combination of the safe is 47-11-23.\n[Note] 保险箱的密码是四十七。\nuser: nobody may know it"
LINES = ("combination of the safe", "保险箱的密码", "nobody may know")


def traces(folder, *texts):
    """Return in which files of a folder, or in which records of its audits, one of these texts stands."""
    found = []
    for file in folder.rglob("*"):
        if not file.is_file():
            continue
        raw = file.read_bytes()
        found += [(file.name, text) for text in texts if text.encode() in raw]
        if file.name.startswith("audit") and file.suffix == ".sqlite3":
            with closing(sqlite3.connect(file)) as conn:
                for (record,) in conn.execute("SELECT record FROM context_logs"):
                    found += [("record", text) for text in texts if text in zlib.decompress(record).decode()]
    return found


@pytest.fixture
def log(tmp_path):
    with AuditLog(tmp_path / "audit" / "audit.sqlite3") as made:
        yield made


@pytest.fixture
def kb(tmp_path):
    with KnowledgeBase(tmp_path / "kb", ENCODER) as made:
        made.add_text(SECRET, "secret.md")
        made.add_text("The fox likes chicken. 狐狸喜欢鸡。", "fox.md")
        yield made


@pytest.fixture
def memory(tmp_path):
    with Memory(tmp_path / "memory", "ada", ENCODER) as made:
        yield made


def config(**changes):
    return plain(knowledge_min_score=0, memory_min_importance=0, **changes)


def test_a_purged_document_is_gone_from_the_audit_with_all_that_was_made_of_it(log, kb, tmp_path):
    told = [{"role": "user", "content": f"You said: {SECRET}"}, {"role": "assistant", "content": "I did."}]
    requests = [
        {"config": config()},
        {"config": config(messages_style="split", citations=True)},
        {"config": config(evidence_style="numbered", citations=True, locale="zh")},
        {"config": config(max_tokens=110)},
        {"config": config(max_tokens=110, enable_compression=False)},
        {"config": config(), "conversation_history": told},
        {"config": config(history_strategy="head_tail"), "conversation_history": told},
        {"config": config(), "documents": [f"Copied: {SECRET} And so on."], "state": {"note": SECRET}},
        {"config": config(reminder=SECRET), "custom_packets": [{"content": "x", "metadata": {"heading": [SECRET]}}]},
    ]
    for request in requests:
        builder = ContextBuilder(rag_tool=RAGTool(knowledge=kb), config=request.pop("config"), audit=log)
        builder.assemble("Which combination has the safe?", now=NOW, **request)
    ContextBuilder(config=plain(), audit=log).assemble("about something else", documents=["else"], now=NOW)
    log.feedback("last", 1, f"noted: {SECRET}")
    log.flush()
    assert {text for _, text in traces(tmp_path / "audit", *LINES)} == set(LINES)

    kb.purge("secret.md")
    assert traces(tmp_path, *LINES, "secret.md") == []
    newest, *others = log.list(limit=20)
    assert not newest["purged"] and all(row["purged"] for row in others) and len(others) == 9
    assert log.show("last").feedback[0]["note"] == "noted: (purged)" and log.replay("last").equal
    for row in others:
        record = log.show(row["id"])
        assert "(purged)" in record.built.text + str(record.built.dropped) and record.to_dict()["missing"]
        assert set(record.built.sections) >= {"Task", "Output"}
        assert record.built.sections["Output"] in record.built.text
        for replay in (log.replay(row["id"]), log.replay(row["id"], live=builder)):
            assert not replay.equal and replay.built is None and "knowledge: 1 item" in replay.missing
            assert str(replay).startswith("cannot be made again: purged since: ")
    assert "The fox likes chicken. 狐狸喜欢鸡。" in log.show(others[-1]["id"]).built.text
    assert log.diff(others[-1]["id"], others[-2]["id"])  # still works
    assert log.verify() == []


def test_earlier_revisions_go_too_even_if_the_knowledge_base_has_forgotten_them(log, tmp_path):
    with KnowledgeBase(tmp_path / "kb", ENCODER, keep_versions=1) as kb:
        builder = ContextBuilder(rag_tool=RAGTool(knowledge=kb), config=config(), audit=log)
        for number in range(4):
            kb.add_text(f"Revision {number} of the secret plan.", "plan.md")
            assert f"Revision {number}" in builder.build("Which plan?")
        log.flush()
        assert len(traces(tmp_path / "audit", "Revision 0 of")) > 0
        kb.purge("plan.md")
        assert traces(tmp_path, *(f"Revision {number} of" for number in range(4))) == []
        kb.add_text("The last of the secret plans.", "plan.md")
        builder.assemble("Which plan?")
        kb.remove("plan.md")
        kb.add_text("fox", "fox.md")  # the one version that is kept has no plan
        log.flush()
        assert traces(tmp_path / "audit", "The last of") and "The last of" not in str(list(kb.export()))
        assert kb.purge("plan.md") == 0
        assert traces(tmp_path, "The last of") == []
        with pytest.raises(InputError, match="no version has a document"):
            kb.purge("never.md")


def test_the_knowledge_base_knows_its_audits_whoever_opens_it(kb, tmp_path):
    """Another object, another builder's audit, none of them open any more: the purge reaches both."""
    for name in ("one", "kb"):  # beside it, and in its own folder
        with AuditLog(tmp_path / name / "audit.sqlite3") as log:
            ContextBuilder(rag_tool=RAGTool(knowledge=kb), config=config(), audit=log).assemble("the safe")
    kb.close()
    shutil.move(tmp_path / "kb", tmp_path / "moved")
    assert len({name for name, _ in traces(tmp_path, LINES[0])}) > 1
    with KnowledgeBase(tmp_path / "moved", ENCODER, create=False) as again:
        assert len(linked(opened(again))) == 2
        again.purge("secret.md")
    assert traces(tmp_path, *LINES) == []


def test_what_is_indexed_again_after_a_purge_is_recorded_again(log, kb):
    builder = ContextBuilder(rag_tool=RAGTool(knowledge=kb), config=config(), audit=log)
    builder.assemble("the safe")
    kb.purge("secret.md")
    kb.add_text(SECRET, "secret.md")
    built = builder.assemble("the safe")
    assert [row["purged"] for row in log.list()] == [False, True]
    assert log.replay("last").equal and log.show("last").built.text == built.text


def test_two_knowledge_bases_with_documents_of_one_name_are_kept_apart(log, tmp_path):
    made = []
    for name in ("a", "b"):
        kb = KnowledgeBase(tmp_path / name, ENCODER)
        kb.add_text(f"What {name} says about the safe.", "README.md")
        ContextBuilder(rag_tool=RAGTool(knowledge=kb), config=config(), audit=log).assemble("the safe")
        made.append(kb)
    made[0].purge("README.md")
    assert [row["purged"] for row in log.list()] == [False, True]
    assert traces(log.path.parent, "What a says") == [] and traces(log.path.parent, "What b says")
    for kb in made:
        kb.close()


def test_a_build_on_its_way_during_a_purge_is_recorded_without_its_texts(tmp_path, kb):
    """It has gathered before the purge and is written after it: by another process, or from a queue that waits."""
    builder = ContextBuilder(rag_tool=RAGTool(knowledge=kb), config=config())
    late, other = builder.assemble("the safe", documents=[f"copy of {SECRET}"]), ContextBuilder(config=plain())
    with AuditLog(tmp_path / "audit.sqlite3") as log:
        log.record(builder.assemble("the safe, first"))
        log.flush()
        unrelated = other.assemble("fox", documents=["a fox"])
        kb.purge("secret.md")
        log.record(late)
        log.record(unrelated)
        log.flush()
        assert [(row["query"], row["purged"]) for row in log.list()] == [
            ("fox", False), ("the safe, first", True), ("(purged)", True),
        ]  # fmt: skip
        assert log.show(late.meta["build_id"]).built.budget.total_used == late.budget.total_used
        assert log.replay(late.meta["build_id"]).missing and log.replay("last").equal
    assert traces(tmp_path, *LINES) == []


# -- memories ---------------------------------------------------------------------------------------------------------


def recalled(log, memory, *texts):
    """Add memories and have them recorded; return their ids."""
    ids = [memory.add(text, "semantic", importance=0.1 + 0.1 * place) for place, text in enumerate(texts)]
    builder = ContextBuilder(memory_tool=MemoryTool(memory=memory), config=config(), audit=log)
    built = builder.assemble("What about the safe?", conversation_history=[{"role": "user", "content": texts[0]}])
    assert all(text.splitlines()[0] in built.text for text in texts)
    log.flush()
    return ids


def test_a_removed_memory_is_gone(log, memory, tmp_path):
    first, second = recalled(log, memory, SECRET, "Ada likes foxes. 艾达喜欢狐狸。")
    assert traces(tmp_path / "audit", *LINES)
    MemoryTool(memory=memory).run({"action": "remove", "memory_id": first})
    assert traces(tmp_path, *LINES) == []
    assert log.list()[0]["purged"] and "Ada likes foxes." in log.show("last").built.text
    memory.remove(second)
    assert traces(tmp_path, "Ada likes foxes", "艾达喜欢狐狸") == []


def test_a_changed_memory_keeps_nothing_of_its_former_text(log, memory, tmp_path):
    first, _ = recalled(log, memory, SECRET, "Ada likes foxes.")
    memory.update(first, content="The combination was changed.")
    assert traces(tmp_path, *LINES) == []
    memory.update(first, importance=0.9)
    assert "Ada likes foxes." in log.show("last").built.text


@pytest.mark.parametrize("action", [
    {"action": "forget", "strategy": "importance_based", "threshold": 0.15},
    {"action": "forget", "strategy": "capacity_based", "threshold": 1},
    {"action": "clear_all"},
])  # fmt: skip
def test_what_is_forgotten_is_gone(log, memory, tmp_path, action):
    recalled(log, memory, SECRET, "Ada likes foxes.")
    MemoryTool(memory=memory).run(action)
    assert traces(tmp_path, *LINES) == []
    assert bool(traces(log.path.parent, "Ada likes foxes.")) == (action["action"] == "forget")


def test_clearing_all_reaches_memories_that_ran_out_before_and_no_other_user(log, memory, tmp_path):
    with Memory(tmp_path / "memory", "bob", ENCODER) as other:
        recalled(log, other, "Bob likes dogs a lot.")
        first, second = recalled(log, memory, "Ada's working note 七", "Ada likes foxes.")
        memory.update(first, type="working")
        memory.consolidate("working", "episodic", 0)
        memory.update(first, type="working")
        for number in range(3):  # it makes room for others
            memory.working_capacity = 1
            memory.add(f"other {number}", "working", importance=0.9)
        assert second in {str(row.id) for row in memory.all()} and first not in {str(row.id) for row in memory.all()}
        assert traces(log.path.parent, "working note 七")
        memory.clear_all()
        assert traces(tmp_path, "working note 七", "Ada likes foxes.") == []
        assert traces(log.path.parent, "Bob likes dogs a lot.")


def test_a_short_memory_is_not_searched_for_in_other_texts(log, memory, tmp_path):
    (first,) = recalled(log, memory, "yes 是")
    ContextBuilder(config=plain(), audit=log).assemble("yes 是 it is", documents=["oh yes 是"], now=NOW)
    memory.remove(first)
    newest, other = log.list()
    assert (newest["purged"], other["purged"]) == (False, True)
    assert "Memory: (purged)" in log.show(other["id"]).built.text and "yes" not in log.show(other["id"]).built.text


def test_an_audit_that_cannot_be_reached_is_said(log, kb, memory):
    ContextBuilder(rag_tool=RAGTool(knowledge=kb), config=config(), audit=log).assemble("the safe")
    log.close()
    log.path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    for _ in range(2):  # asked again, it tries again
        with pytest.raises(StoreError, match=r"deleted from .*, but .*audit.sqlite3 still holds it"):
            kb.purge("secret.md")
    log.path.unlink()
    kb.purge("fox.md")  # an audit that is gone holds nothing


@pytest.mark.parametrize("way", ["asked again", "opened again"])
@pytest.mark.parametrize("fails", ["ctx_vector.audit_purge.purge", "ctx_vector.store.Store.scrub"])
def test_a_purge_that_did_not_come_to_its_end_is_brought_to_it(log, kb, memory, tmp_path, monkeypatch, way, fails):
    def fail(*_):
        raise StoreError("no room")  # or killed: nothing more is done

    said = "Ada whispers that the door code is 8-1-5. 门的密码是八一五。"
    number = memory.add(said)
    built = ContextBuilder(rag_tool=kb, memory_tool=memory, config=config(), audit=log).assemble("the code of the safe")
    assert SECRET.splitlines()[0] in built.text and said in built.text
    log.flush()
    with monkeypatch.context() as patch:
        patch.setattr(fails, fail)
        for purge in (lambda: kb.purge("secret.md"), lambda: memory.remove(number)):
            with pytest.raises(StoreError):
                purge()
    monkeypatch.setattr("ctx_vector.audit_purge._STALE_SECONDS", 0)
    if way == "asked again":
        assert kb.purge("secret.md") == 0
        with pytest.raises(InputError, match="has no memory"):
            memory.remove(number)
    else:
        Memory(memory.path, "bob", ENCODER).close()
        KnowledgeBase(kb.path, ENCODER).close()
    assert traces(tmp_path, *LINES, "door code", "门的密码") == []
    assert [row["purged"] for row in log.list()] == [True]
    assert [owner.audits.finish() for owner in (kb, memory)] == [None, None]  # nothing is left to do


def test_every_free_text_of_a_config_is_known_to_a_purge():
    free = set()
    for name in ContextConfig().to_dict():
        try:
            ContextConfig(**{name: "any words of the caller's"})
        except ConfigError:
            continue
        free.add(name)
    assert free - {"strategy", "rerank"} == set(FREE_TEXT)  # these are names, looked up later


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_texts_sessions_and_builds_are_purged_by_hand(log, tmp_path):
    builder = ContextBuilder(config=plain(), audit=log)
    for number in range(6):
        text = f"{SECRET} {number}"
        builder.assemble(f"question {number}", documents=[text], session_id="ab"[number % 2], now=NOW)
    ids = [row["id"] for row in log.list(limit=10)]
    assert log.purge(session="a") == 3 and log.count() == 3
    assert log.purge(builds=[ids[0][:12]]) == 1 and log.count(session="b") == 2
    assert log.purge(f"{SECRET} 3") == 1
    assert [row["purged"] for row in log.list()] == [True, False]
    assert traces(tmp_path, "it 0", "it 2", "it 3", "it 4", "it 5") == [] and traces(tmp_path, "it 1")
    assert log.purge(before="0s") == 2 and log.count() == 0
    assert traces(tmp_path, *LINES) == []
    with pytest.raises(InputError, match="nothing to purge"):
        log.purge()


@STEADY
@given(st.sets(st.integers(0, 2**31), max_size=30), st.sets(st.integers(0, 2**31), max_size=30))
def test_refs_come_back(contents, packets):
    first, second = unpack_refs(pack_refs(contents, packets))
    assert (list(first), list(second)) == (sorted(contents), sorted(packets))


@settings(STEADY, max_examples=25)
@given(st.text(min_size=12).filter(lambda text: len(text.strip()) >= 12), st.sampled_from(["skip", "stop"]),
       st.integers(90, 300), st.booleans())  # fmt: skip
def test_a_purge_by_text_leaves_none_of_it(tmp_path_factory, text, fill, size, split):
    from ctx_vector.values import clean_text

    text = "\n".join(f"§{line}" for line in text.splitlines())  # no name of a field or a key
    folder = tmp_path_factory.mktemp("purge")
    with AuditLog(folder / "audit.sqlite3") as log:
        builder = ContextBuilder(
            config=plain(fill=fill, max_tokens=size, messages_style="split" if split else "single"), audit=log
        )
        said = [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}]
        kinds = [ContextPacket(text, None, None, 0.9, {"type": kind}) for kind in ("knowledge", "memory", "general")]
        builder.assemble("q", custom_packets=kinds, documents=[text, f"before {text} after"], conversation_history=said)
        record = log.show("last")
        log.purge(text)
        needle = max((line.strip() for line in clean_text(text).split("\n")), key=len)
        blank = log.show("last").to_dict()
        if len(needle) >= 12:
            assert needle not in str(blank["messages"]) and needle not in blank["text"]
            assert traces(folder, needle) == []
        assert record.built.text
