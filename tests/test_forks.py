"""A server that loads its application and then forks: the child works on, and what it was told is written is there."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from store_help import opened

from ctx_vector import KnowledgeBase, Memory, forks
from ctx_vector.audit import AuditLog

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks of POSIX")

THREADED = "-W", "ignore:This process:DeprecationWarning"  # Python 3.12 and later warn of a fork beside threads
PROGRAM = """
    import os, signal, sys, threading
    from datetime import UTC, datetime
    from ctx_vector import ContextBuilder, KnowledgeBase, Memory
    folder = sys.argv[1]
    signal.alarm(40)
    kb = KnowledgeBase(f"{folder}/kb", file_rows=20, graph_rows=20)   # a graph, which FAISS builds with OpenMP
    kb.add_texts([{"text": f"Server {n} restarts at {n} o'clock.", "source": f"s{n}"} for n in range(40)])
    ada, bob = (Memory(f"{folder}/memory", name, kb.encoder) for name in ("ada", "bob"))
    ada.add("of the parent"), bob.add("of the parent")
    builder = ContextBuilder(rag_tool=kb, memory_tool=ada, audit=f"{folder}/audit.sqlite3")
    def build(query):
        return builder.assemble(query, now=datetime(2026, 1, 1, tzinfo=UTC)).text
    text = build("parent")
    builder.audit.flush()

    stop, told, go_on = threading.Event(), os.pipe(), os.pipe()
    def write():
        while not stop.is_set():
            bob.add("the same again")
    thread = threading.Thread(target=write)                           # a fork comes at any moment
    thread.start()
    child = os.fork()
    if child == 0:
        signal.alarm(40)
        assert build("parent") == text
        os.write(told[1], b"1"), os.read(go_on[0], 1)                 # and now the parent closes all it has
        ada.add("of the child")
        kb.add_texts([{"text": f"Whale {n} sings.", "source": f"c{n}"} for n in range(40)])
        build("child")
        builder.audit.flush()
        os.write(told[1], b"2"), os.read(go_on[0], 1)
    os.close(told[1])
    assert os.read(told[0], 1) == b"1"
    stop.set(), thread.join()
    for store in (kb, ada, bob, builder.audit):
        store.close()
    os.write(go_on[1], b"x")
    assert os.read(told[0], 1) == b"2"
    os.kill(child, signal.SIGKILL), os.waitpid(child, 0)
"""


def test_a_child_works_with_what_its_parent_has_opened_and_loses_nothing(tmp_path):
    command = [sys.executable, *THREADED, "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    with Memory(tmp_path / "memory", "ada") as ada, KnowledgeBase(tmp_path / "kb") as kb:
        assert [row.content for row in ada.all()] == ["of the parent", "of the child"]
        assert len(kb.documents()) == 80
        assert ada.verify() == [] and kb.verify().ok
    with AuditLog(tmp_path / "audit.sqlite3") as audit:
        assert [row["query"] for row in audit.list()] == ["child", "parent", "parent"]


def test_a_fork_waits_for_connections_in_use_but_not_for_ever(tmp_path, monkeypatch, caplog):
    memory = Memory(tmp_path, "ada")
    store = opened(memory)
    lent, end = threading.Event(), threading.Event()

    def read():
        with store.read(), store.read():  # who has one may need another, also while a fork waits
            lent.set()
            end.wait(30)

    def fork():
        began = time.monotonic()
        forks._gate.before()
        forks._gate.after_in_parent()
        return time.monotonic() - began

    thread = threading.Thread(target=read)
    thread.start()
    assert lent.wait(30)
    monkeypatch.setattr(forks, "WAIT_SECONDS", 0.05)
    assert 0.05 <= fork() and "while other threads use a store" in caplog.text
    caplog.clear()
    monkeypatch.setattr(forks, "WAIT_SECONDS", 30.0)
    threading.Timer(0.1, end.set).start()
    with store.read():  # what the forking thread has itself is not waited for
        assert fork() < 20 and caplog.text == ""
    thread.join()
    store.close()
    memory.close()
