"""A disk changed some bytes: SQLite does not notice, and whoever asks is told which file is damaged."""

import sqlite3
from contextlib import closing

import pytest
from audit_help import HashEncoder

from ctx_vector import ContextBuilder, KnowledgeBase, Memory
from ctx_vector.audit import AuditLog
from ctx_vector.errors import StoreError

ENCODER = HashEncoder()


def knowledge(folder):
    kb = KnowledgeBase(folder, ENCODER)
    kb.add_texts([{"text": f"The fox {n} likes chicken. 狐狸喜欢鸡。", "source": f"{n}.md"} for n in range(3)])
    return kb, kb.path / "ctx.sqlite3"


def memories(folder):
    memory = Memory(folder, "ada", ENCODER)
    memory.add("Ada likes foxes. 她喜欢狐狸。")
    return memory, memory.path / "memory.sqlite3"


def audit(folder):
    log = AuditLog(folder / "audit.sqlite3")
    ContextBuilder(audit=log, encoder=ENCODER).assemble("fox", documents=["The fox likes chicken. 狐狸喜欢鸡。"])
    log.flush()
    return log, log.path


def opened(owner):
    if isinstance(owner, AuditLog):
        return AuditLog(owner.path)
    return (
        KnowledgeBase(owner.path, ENCODER) if isinstance(owner, KnowledgeBase) else Memory(owner.path, "ada", ENCODER)
    )


def broken_scorer(kb):
    class Scorer:
        def score(self, query, candidates):
            raise ValueError("of the caller")

    return kb.search("fox", rerank=Scorer())


FOUND = {
    "vector": (knowledge, "UPDATE encodings SET vector = substr(vector, 2)", lambda kb: kb.search("fox")),
    "time": (knowledge, "UPDATE documents SET timestamp = '2026-13-01'", lambda kb: kb.search("fox")),
    "metadata": (knowledge, "UPDATE documents SET metadata = '{\"a'", lambda kb: kb.search("fox", filter={"a": 1})),
    "memory": (memories, "UPDATE memories SET timestamp = '2026-11-30T19:61'", lambda memory: memory.search("fox")),
    "memories": (memories, "UPDATE memories SET metadata = '{'", lambda memory: memory.all()),
    "a memory": (memories, "UPDATE memories SET created = 'x'", lambda memory: memory.update(1, content="y")),
    "record": (audit, "UPDATE context_logs SET record = substr(record, 1, 40)", lambda log: log.show("last")),
    "sources": (audit, "UPDATE context_logs SET source_stats = '{\"'", lambda log: log.list()),
    "config": (audit, "UPDATE configs SET config = '['", lambda log: log.purge("The fox likes chicken. 狐狸喜欢鸡。")),
}


@pytest.mark.parametrize("damage", FOUND)
def test_what_makes_no_sense_is_said_to_be_damaged(tmp_path, damage):
    make, statement, ask = FOUND[damage]
    owner, path = make(tmp_path)
    owner.close()
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute(statement)
    owner = opened(owner)  # which remembers nothing of before
    with pytest.raises(StoreError, match=rf"{path.name} is damaged \(.*; restore it from a backup"):
        ask(owner)
    owner.close()


def test_an_error_of_the_callers_own_code_stays_what_it_is(tmp_path):
    kb, _ = knowledge(tmp_path)
    with kb, pytest.raises(ValueError, match="of the caller"):
        broken_scorer(kb)


def test_a_damaged_schema_is_said_to_be_damaged(tmp_path):
    memory, path = memories(tmp_path)
    memory.close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE memories", b"CREATE TABL\xd4 m\xe9mories", 1))
    with pytest.raises(StoreError, match=r"memory.sqlite3 is damaged"):
        Memory(tmp_path, "ada", ENCODER)
