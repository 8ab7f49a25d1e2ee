"""Recording never waits and never fails a build; what was acknowledged is there, whatever is killed or full."""

import gc
import json
import random
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from pipeline_help import plain

from ctx_vector import ContextBuilder
from ctx_vector import audit_writer as writer_module
from ctx_vector.audit import AuditLog
from ctx_vector.errors import InputError, SchemaError, StoreError

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")

PRELUDE = """
    import os, sys, time
    from ctx_vector import ContextBuilder, ContextConfig
    from ctx_vector.audit import AuditLog
    log = AuditLog(sys.argv[1])
    config = ContextConfig(max_tokens=500, strategy="jaccard", min_relevance=0, reserve_ratio=0)
    builder = ContextBuilder(config=config, audit=log)
    def build(name):
        return builder.assemble(f"question {name}", documents=[f"answer {name} " * 30, "common " * 90])
"""


def run(path, script, *arguments, **options):
    program = textwrap.dedent(PRELUDE) + textwrap.dedent(script)
    command = [sys.executable, "-W", "error", "-c", program, str(path), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def start(path, script, *arguments):
    program = textwrap.dedent(PRELUDE) + textwrap.dedent(script)
    command = [sys.executable, "-W", "error", "-c", program, str(path), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.sqlite3"


@pytest.fixture
def log(path):
    with AuditLog(path) as made:
        yield made


def queries(path):
    with closing(sqlite3.connect(path)) as conn:
        found = conn.execute("SELECT c.text FROM context_logs l JOIN contents c ON c.id = l.query_id ORDER BY number")
        return [row[0] for row in found]


def build(log, query="q", **arguments):
    return ContextBuilder(config=plain(max_tokens=100_000), audit=log).assemble(query, **arguments)


def noise(chance, kilobytes=28):
    return chance.randbytes(kilobytes * 500).hex()


# -- a clean exit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", "log.close()", "del builder, log", "sys.exit(3)", "raise RuntimeError('own')"])
def test_nothing_is_lost_at_a_clean_exit(path, end):
    done = run(path, f"for number in range(70): build(number)\n{end}")
    assert "audit" not in done.stderr, done.stderr
    assert queries(path) == [f"question {number}" for number in range(70)]


def test_a_log_that_is_garbage_writes_what_waits_and_ends_its_thread(path):
    log = AuditLog(path)
    build(log)
    writer = log._writer
    del log
    gc.collect()
    writer._thread.join(10)
    assert not writer._thread.is_alive() and queries(path) == ["q"]


def test_a_closed_log_says_that_it_does_not_record(log, caplog):
    build(log, "one")
    log.close()
    build(log, "two")
    assert "is closed; a build is not recorded" in caplog.text and queries(log.path) == ["one"]
    log.close()


def test_many_threads_share_one_log(log):
    builder = ContextBuilder(config=plain(), audit=log)
    threads = [
        threading.Thread(target=lambda name=name: [builder.assemble(f"{name} {n}") for n in range(25)])
        for name in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.flush()
    assert sorted(queries(log.path)) == sorted(f"{name} {n}" for name in range(8) for n in range(25))
    assert log.stats(None)["builds"] == 200


def test_a_child_records_what_it_builds_and_nothing_of_its_parent(path):
    script = """
        build("parent before")
        pid = os.fork()
        if pid == 0:
            build("child")
            log.flush()
            print(len(log.list()), flush=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        build("parent after")
        log.close()
    """
    done = run(path, script)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    found = queries(path)
    assert sorted(found) == ["question child", "question parent after", "question parent before"]


# -- several processes, and kills -------------------------------------------------------------------------------------


def test_two_processes_write_to_one_file(path):
    script = """
        print("ready", flush=True)
        for number in range(100):
            build(f"{sys.argv[2]} {number}")
            if number % 40 == 0:
                log.flush()
    """
    both = [start(path, script, name) for name in "ab"]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0 and errors == "", errors
    assert sorted(queries(path)) == sorted(f"question {name} {number}" for name in "ab" for number in range(100))
    with AuditLog(path) as log:
        assert log.verify() == [] and log.stats(None)["builds"] == 200
        assert all(log.replay(row["id"]).equal for row in log.list(limit=20))


def test_a_process_that_is_killed_loses_nothing_that_was_acknowledged(path):
    script = """
        number = 0
        while True:
            for _ in range(7):
                number += 1
                build(f"{sys.argv[2]} {number}")
            log.flush()
            print(number, flush=True)
    """
    chance = random.Random(5)
    told = {}
    for attempt in range(3):
        process = start(path, script, attempt)
        first = process.stdout.readline()
        assert first, process.stderr.read()
        time.sleep(chance.random() * 0.5)
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
        told[attempt] = int((first + output).split()[-1])
        with AuditLog(path) as log:
            assert log.verify() == []
            rows = log.list(limit=10_000)
            found = {row["query"] for row in rows}
            for name, number in told.items():
                assert {f"question {name} {n}" for n in range(1, number + 1)} <= found
            assert all(log.replay(row["id"]).equal for row in rows[:8])
            assert log.stats(None)["builds"] == len(rows)


# -- files that cannot be written or read -----------------------------------------------------------------------------


def test_a_full_disk_fails_no_build_and_is_written_later(path, caplog):
    with AuditLog(path) as log:
        build(log, "kept")
        log.flush()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        try:
            for number in range(6):
                assert build(log, f"large {number}", documents=[noise(random.Random(number), 100)]).text
            with pytest.raises(StoreError, match=r"builds are not recorded yet: .*audit.sqlite3 cannot"):
                log.flush()
            with pytest.raises(StoreError, match="not recorded yet"):
                log.flush(timeout=0.01)
            assert "the audit cannot be written" in caplog.text
            assert log.list(limit=100)[-1]["query"] == "kept"  # what is there can be read
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        log.flush()
        assert "is written again" in caplog.text
        assert queries(path) == ["kept", *(f"large {number}" for number in range(6))]
        assert log.verify() == [] and all(log.replay(row["id"]).equal for row in log.list(limit=7))


def test_a_warning_is_told_once_and_the_retries_are_spaced(path, caplog, monkeypatch):
    monkeypatch.setattr(writer_module, "_FIRST_RETRY", 0.05)
    path.mkdir()
    log = AuditLog(path)
    build(log)
    time.sleep(0.8)
    assert 1 <= log._writer._attempts <= 5
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1
    path.rmdir()
    log.flush()
    assert queries(path) == ["q"]
    log.close()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "nonsense", "empty log"])
def test_a_damaged_file_is_a_clear_error_and_never_a_failed_build(path, damage, caplog):
    with AuditLog(path) as log:
        for number in range(30):
            build(log, f"q{number}", documents=[f"document {number} " * 50])
    raw = bytearray(path.read_bytes())
    if damage == "truncated":
        raw = raw[: len(raw) // 3]
    elif damage == "flipped":
        for at in range(100, len(raw), 1000):
            raw[at] ^= 0xFF
    elif damage == "nonsense":
        raw = bytearray(b"no database at all " * 500)
    else:
        path.with_name(path.name + "-wal").write_bytes(b"\x00" * 5000)
    path.write_bytes(raw)
    with AuditLog(path) as log:
        built = [build(log, f"after {number}", documents=[f"new {number} " * 40]) for number in range(3)]
        assert all(item.text for item in built)
        if damage == "empty log":  # SQLite ignores it
            assert log.count() == 33
            return
        try:
            log.flush()
            for row in log.list(limit=100):
                log.show(row["id"])
        except StoreError as error:
            assert re.search("audit.sqlite3.*(is damaged|is not a ctx_vector store)|not recorded yet", str(error))
        else:
            assert log.verify()


def test_a_file_of_a_newer_version_is_refused(path, caplog):
    with AuditLog(path) as log:
        build(log)
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA user_version=99")
    with AuditLog(path) as log:
        assert build(log).text
        with pytest.raises(StoreError, match="schema 99"):
            log.flush()
        with pytest.raises(SchemaError, match=r"has schema 99.*upgrade with: pip install -U ctx_vector"):
            log.list()
    assert queries(path) == ["q"]


def test_a_database_of_another_program_is_refused(path):
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE own (x)")
    with AuditLog(path) as log, pytest.raises(StoreError, match="database of another program"):
        log.list()


# -- the queue --------------------------------------------------------------------------------------------------------


def test_recording_does_not_wait_for_a_locked_file(path, caplog):
    with AuditLog(path) as log:
        build(log, "first")
        log.flush()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            started = time.perf_counter()
            for number in range(20):
                build(log, f"while locked {number}")
            assert time.perf_counter() - started < 5
            with pytest.raises(StoreError, match=r"20 builds are not recorded yet: .*busy"):
                log.flush(timeout=0.3)
            other.execute("ROLLBACK")
        log.flush()
    assert len(queries(path)) == 21


def test_a_full_queue_refuses_and_says_so(path, monkeypatch, caplog):
    monkeypatch.setattr(writer_module, "MOST_WAITING", 5)
    path.mkdir()
    log = AuditLog(path)
    for number in range(8):
        assert build(log, f"q{number}").text
    assert "is not recording" in caplog.text
    path.rmdir()
    with pytest.raises(StoreError, match="3 builds were not recorded"):
        log.flush()
    log.flush()  # said once
    build(log, "later")
    log.flush()
    assert queries(path) == ["q0", "q1", "q2", "q3", "q4", "later"]
    assert log.stats()["not_recorded"] == 3
    log.close()


def test_the_queue_is_bounded_in_characters_too(path, monkeypatch):
    monkeypatch.setattr(writer_module, "MOST_CHARS", 10_000)
    path.mkdir()
    log = AuditLog(path)
    build(log, "one", documents=["x" * 50_000])  # a single one is taken whatever its size
    build(log, "two")
    path.rmdir()
    with pytest.raises(StoreError, match="1 builds were not recorded"):
        log.flush()
    assert queries(path) == ["one"]
    log.close()


def test_a_build_that_cannot_be_written_does_not_stop_the_others(log, caplog):
    good, bad, again = (ContextBuilder(config=plain()).assemble(name) for name in ("good", "bad", "again"))
    bad.trace.facts["framing"] = {1, 2}
    bad.meta["build_time_ms"] = {"no": "number"}
    for built in (good, bad, again, good):
        log.record(built)
    log.flush()
    assert queries(log.path) == ["good", "again"]
    assert caplog.text.count("a build is not recorded") == 2 and log.stats()["not_recorded"] == 2


# -- rotation ---------------------------------------------------------------------------------------------------------


def test_old_builds_go_by_age(path, monkeypatch):
    monkeypatch.setattr(writer_module, "_ROTATE_SECONDS", 0.0)
    builder = ContextBuilder(config=plain())
    with AuditLog(path, max_age="7d") as log:
        for days in (30, 8, 6, 0):
            built = builder.assemble(f"{days} days", documents=[f"only {days}", "in all"])
            built.trace.started = (datetime.now(UTC) - timedelta(days=days)).timestamp()
            log.record(built)
        log.flush()
        build(log, "now")
        log.flush()
        assert [row["query"] for row in log.list()] == ["now", "0 days", "6 days"]
        assert log.stats(None)["builds"] == 3 and log.stats("9d")["builds"] == 3
        assert all(log.replay(row["id"]).equal for row in log.list())
        with closing(sqlite3.connect(path)) as conn:
            texts = [row[0] for row in conn.execute("SELECT text FROM contents")]
        assert "only 6" in texts and "only 8" not in texts and "only 30" not in texts and "in all" in texts


def test_the_file_stays_within_its_size(path, monkeypatch):
    chance = random.Random(3)
    with AuditLog(path, max_size="1MB") as log:
        largest = 0
        for number in range(90):
            build(log, f"q{number}", documents=[noise(chance)], session_id="s")
            if number % 5 == 4:
                log.flush()
                largest = max(largest, sum(file.stat().st_size for file in path.parent.iterdir()))
        log.flush()
        kept = [row["query"] for row in log.list(limit=200)]
        assert kept == [f"q{number}" for number in range(89, 89 - len(kept), -1)] and 10 < len(kept) < 40
        assert largest < 1_300_000 and log.stats(None)["bytes"] <= 1_000_000
        assert log.verify() == [] and all(log.replay(row["id"]).equal for row in log.list(limit=50))
        assert log.stats(None)["builds"] == 90  # the sums stay


def test_a_file_that_was_larger_is_brought_within_its_new_size(path):
    chance = random.Random(3)
    with AuditLog(path) as log:
        for number in range(75):
            build(log, f"q{number}", documents=[noise(chance)])
    assert path.stat().st_size > 2_000_000
    with AuditLog(path, max_size="1MB") as log:
        build(log, "more")
        log.flush()
        assert log.stats(None)["bytes"] <= 1_000_000 and log.list()[0]["query"] == "more"


def test_builds_of_the_schema_before_are_of_no_user(log, monkeypatch):
    build(log, "old")
    log.close()
    with closing(sqlite3.connect(log.path)) as conn:
        conn.execute("DROP INDEX context_logs_user")
        conn.execute("ALTER TABLE context_logs DROP COLUMN user_id")
        conn.execute("PRAGMA user_version=1")
    with AuditLog(log.path) as again:
        build(again, "new")
        again.record(ContextBuilder(config=plain()).assemble("Ada's"), user_id="ada")
        again.flush()
        assert [(row["query"], row["user_id"]) for row in again.list()] == [
            ("Ada's", "ada"),
            ("new", None),
            ("old", None),
        ]
        assert [row["query"] for row in again.list(user_id="ada")] == ["Ada's"]
        whole = again.resolve("last", user_id="ada")
        assert again.show(whole[:8], user_id="ada").id == again.resolve("last") == whole
        for user in ("bob", ""):
            with pytest.raises(InputError, match="has no build"):
                again.show(whole, user_id=user)
        assert again.replay(again.list()[-1]["id"]).equal


def test_the_schema_is_what_a_reader_of_the_file_expects(log):
    build(log, "q", session_id="s", documents=["d"])
    log.flush()
    with closing(sqlite3.connect(log.path)) as conn:
        names = [row[1] for row in conn.execute("PRAGMA table_info(context_logs)")]
        assert {"id", "session_id", "created_at", "total_tokens", "budget_limit", "messages", "source_stats"} <= set(
            names
        )
        row = conn.execute("SELECT session_id, messages, source_stats FROM context_logs").fetchone()
        assert conn.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        plans = [
            conn.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
            for query in (
                "SELECT id FROM context_logs ORDER BY created_at DESC, number DESC LIMIT 5",
                "SELECT id FROM context_logs WHERE session_id = 's' ORDER BY created_at DESC, number DESC LIMIT 5",
                "SELECT id FROM context_logs WHERE user_id = 'ada' ORDER BY created_at DESC, number DESC LIMIT 5",
            )
        ]
    assert row[0] == "s" and isinstance(json.loads(row[1]), list) and json.loads(row[2])["documents"]["kept"] == 1
    assert all("INDEX" in str(plan) and "TEMP B-TREE" not in str(plan) for plan in plans)
