import multiprocessing
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_vector.common_tables import add_encodings, common_tables, find_encodings, get_meta, model_id, set_meta
from ctx_vector.errors import SchemaError, StoreError
from ctx_vector.store import Store

KIND = "knowledge base"


def notes(conn):
    conn.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL)")


def second(conn):
    conn.execute("ALTER TABLE notes ADD COLUMN extra TEXT NOT NULL DEFAULT 'new'")


MIGRATIONS = [common_tables, notes]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "知识 库" / "ctx.sqlite3"


@pytest.fixture
def store(path):
    store = Store(path, MIGRATIONS, kind=KIND)
    yield store
    store.close()


def add(store, text):
    with store.write() as conn:
        return conn.execute("INSERT INTO notes (text) VALUES (?)", (text,)).lastrowid


def texts(store):
    with store.read() as conn:
        return [row[0] for row in conn.execute("SELECT text FROM notes ORDER BY id")]


# -- opening ------------------------------------------------------------------------------------------------------


def test_at_the_end_of_a_process_what_a_thread_still_used_is_closed_too(path):
    program = """
        import atexit, sqlite3, sys, threading

        @atexit.register  # before anything is imported that registers: so it comes last, as the audit's thread does
        def last():
            go_on.set()
            thread.join()
            store.close()
            try:
                lent[0].execute("SELECT 1")
            except sqlite3.ProgrammingError:
                print("closed")

        from pathlib import Path
        from ctx_vector.store import Store

        store, lent = Store(Path(sys.argv[1]), [], kind="test"), []
        go_on, reading = threading.Event(), threading.Event()

        def read():
            with store.read() as conn:
                lent.append(conn)
                reading.set()
                go_on.wait(20)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        reading.wait(20)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("closed\n", "")


def test_what_was_written_is_there_after_reopening(store, path):
    add(store, "你好")
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        texts(store)
    again = Store(path, MIGRATIONS, kind=KIND)
    assert texts(again) == ["你好"]
    again.close()


def test_a_newer_migration_is_applied_once_and_keeps_the_rows(store, path):
    add(store, "old")
    for _ in range(2):
        newer = Store(path, [*MIGRATIONS, second], kind=KIND)
        with newer.read() as conn:
            assert conn.execute("SELECT text, extra FROM notes").fetchall() == [("old", "new")]
        newer.close()


def test_a_newer_schema_is_refused_with_both_numbers(store, path):
    Store(path, [*MIGRATIONS, second], kind=KIND).close()
    with pytest.raises(SchemaError, match=r"schema 3.*up to 2.*pip install -U"):
        Store(path, MIGRATIONS, kind=KIND)


def test_a_failing_migration_leaves_the_file_as_it_was(store, path):
    def broken(conn):
        conn.execute("CREATE TABLE half (id)")
        raise ZeroDivisionError

    add(store, "kept")
    with pytest.raises(ZeroDivisionError):
        Store(path, [*MIGRATIONS, broken], kind=KIND)
    assert texts(store) == ["kept"]
    with store.read() as conn:
        assert conn.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone()[0] == 0


def test_a_store_of_another_kind_is_refused(store, path):
    with pytest.raises(StoreError, match="holds a knowledge base, not a memory"):
        Store(path, MIGRATIONS, kind="memory")


def test_another_programs_database_is_refused_and_untouched(tmp_path):
    path = tmp_path / "other.sqlite3"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mine (id)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store(path, MIGRATIONS, kind=KIND)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"hello, I am a text " * 100, b"SQLite format 3\0" + b"\xff" * 5000], ids=["text", "torn"]
)
def test_a_file_that_is_no_database_has_a_clear_message(tmp_path, content):
    path = tmp_path / "ctx.sqlite3"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"is not a ctx_vector store|is damaged"):
        Store(path, MIGRATIONS, kind=KIND)
    assert path.read_bytes() == content


def test_an_empty_file_is_what_a_killed_first_run_leaves(tmp_path):
    (tmp_path / "ctx.sqlite3").touch()
    Store(tmp_path / "ctx.sqlite3", MIGRATIONS, kind=KIND).close()


def test_a_missing_file_is_not_made_unless_wanted(path):
    with pytest.raises(StoreError, match="does not exist"):
        Store(path, MIGRATIONS, kind=KIND, create=False)
    assert not path.parent.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file.*cannot be made"):
        Store(tmp_path / "file" / "ctx.sqlite3", MIGRATIONS, kind=KIND)


def test_a_damaged_page_is_found_by_check(store, path):
    for i in range(200):
        add(store, f"{i} " * 300)
    store.scrub()
    assert store.check() == []
    store.close()
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    damaged = Store(path, MIGRATIONS, kind=KIND)
    assert damaged.check()
    damaged.close()


# -- transactions -------------------------------------------------------------------------------------------------


def test_an_exception_undoes_the_whole_write(store):
    add(store, "before")
    with pytest.raises(KeyboardInterrupt), store.write() as conn:
        conn.execute("INSERT INTO notes (text) VALUES ('half')")
        raise KeyboardInterrupt
    add(store, "after")
    assert texts(store) == ["before", "after"]


def test_a_read_sees_one_moment_and_never_waits_for_a_writer(store):
    add(store, "one")
    with store.read() as conn:
        assert conn.execute("SELECT count(*) FROM notes").fetchone()[0] == 1
        thread = threading.Thread(target=add, args=(store, "two"))
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        assert conn.execute("SELECT count(*) FROM notes").fetchone()[0] == 1
    assert texts(store) == ["one", "two"]


def test_ids_are_never_used_again(store):
    first = add(store, "a")
    with store.write() as conn:
        conn.execute("DELETE FROM notes")
    store.scrub()
    assert add(store, "b") > first


def count_up(path, times):
    store = Store(path, MIGRATIONS, kind=KIND)
    for _ in range(times):
        with store.write() as conn:
            set_meta(conn, "count", get_meta(conn, "count", 0) + 1)
        with store.read() as conn:
            get_meta(conn, "count")
    store.close()


def test_many_threads_share_one_store(store):
    def work():
        for _ in range(25):
            with store.write() as conn:
                set_meta(conn, "count", get_meta(conn, "count", 0) + 1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    with store.read() as conn:
        assert get_meta(conn, "count") == 200


def test_processes_that_open_and_write_a_new_store_at_once_take_turns(path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=count_up, args=(path, 40)) for _ in range(4)]
    [process.start() for process in processes]
    [process.join(120) for process in processes]
    assert [process.exitcode for process in processes] == [0] * 4
    store = Store(path, MIGRATIONS, kind=KIND)
    with store.read() as conn:
        assert get_meta(conn, "count") == 160
    store.close()


# -- no room ------------------------------------------------------------------------------------------------------


def test_a_full_disk_loses_nothing_that_was_acknowledged(store):
    add(store, "kept")
    with store.write() as conn:
        pages = conn.execute("PRAGMA page_count").fetchone()[0]
        conn.execute(f"PRAGMA max_page_count={pages + 5}")
    with pytest.raises(StoreError, match=r"cannot grow.*full.*[Nn]othing that was acknowledged is lost"):
        add(store, "x" * 200_000)
    assert texts(store) == ["kept"]
    assert store.check() == []
    add(store, "still works")


@pytest.mark.skipif(sys.platform == "win32", reason="no file size limits")
def test_a_file_size_limit_loses_nothing_that_was_acknowledged(path):
    program = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from tests.test_store import *
        store = Store(Path(sys.argv[1]), MIGRATIONS, kind=KIND)
        add(store, "kept")
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        try:
            for i in range(100):
                add(store, f"{i} " * 2_000)
        except StoreError as error:
            print("StoreError:", error)
        print(len(texts(store)), i + 1)
        store.close()
    """)
    run = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    message, counts = run.stdout.strip().splitlines()
    assert message.startswith("StoreError:")
    assert "acknowledged" in message
    rows, tried = map(int, counts.split())
    assert rows == tried  # the first note and all but the last of the others
    store = Store(path, MIGRATIONS, kind=KIND)
    assert len(texts(store)) == rows
    assert store.check() == []
    store.close()


# -- purging ------------------------------------------------------------------------------------------------------


def traces(path, secret):
    return [file.name for file in path.parent.iterdir() if secret.encode() in file.read_bytes()]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12_000), st.booleans()), min_size=3, max_size=60))
def test_nothing_deleted_is_left_in_any_file(tmp_path_factory, sizes):
    path = tmp_path_factory.mktemp("purge") / "ctx.sqlite3"
    store = Store(path, MIGRATIONS, kind=KIND)
    try:
        secret, kept = "purge-me-Ωmega", "stay-with-us"
        doomed = []
        for size, gone in sizes:
            id_ = add(store, f"{secret if gone else kept} {'x' * size} {secret if gone else kept}")
            if gone:
                doomed.append(id_)
        with store.write() as conn:  # rows move between pages
            conn.execute("UPDATE notes SET text = text || text WHERE id % 3 = 0")
        with store.write() as conn:
            conn.executemany("DELETE FROM notes WHERE id = ?", ((id_,) for id_ in doomed))
        assert store.scrub()
        assert traces(path, secret) == []
        assert len(texts(store)) == len(sizes) - len(doomed)
        if len(doomed) < len(sizes):
            assert traces(path, kept) == ["ctx.sqlite3"]
    finally:
        store.close()


def test_an_open_reader_puts_the_end_of_a_purge_off_and_the_next_scrub_ends_it(store, path, monkeypatch, caplog):
    monkeypatch.setattr("ctx_vector.store.LOCK_SECONDS", 0.05)
    secret = add(store, "secret-words")
    with store.read() as reader:
        reader.execute("SELECT count(*) FROM notes").fetchone()
        with store.write() as conn:
            conn.execute("PRAGMA busy_timeout=50")
            conn.execute("DELETE FROM notes WHERE id = ?", (secret,))
        assert not store.scrub()
    assert "another process is reading" in caplog.text
    assert store.scrub()
    assert traces(path, "secret-words") == []


def test_the_log_gives_back_its_room_after_a_long_read(store, path, monkeypatch):
    monkeypatch.setattr("ctx_vector.store._LOG_BYTES", 100_000)
    store.close_idle()
    log = path.with_name(path.name + "-wal")
    with store.read() as reader:
        reader.execute("SELECT count(*) FROM notes").fetchone()
        for letter in "abcdefghij":
            add(store, letter * 500_000)
        assert log.stat().st_size > 4_500_000
    for _ in range(3):
        add(store, "short")
    assert log.stat().st_size < 200_000 and len(texts(store)) == 13


def test_a_file_that_another_program_keeps_locked_is_said_to_be(store, path, monkeypatch):
    monkeypatch.setattr("ctx_vector.store.LOCK_SECONDS", 0.05)
    store.close_idle()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="database is locked; another program keeps it locked: close that"):
            add(store, "x")
    assert add(store, "x")


# -- the common tables --------------------------------------------------------------------------------------------


def test_encodings_are_found_by_model_and_hash(store):
    with store.write() as conn:
        model = model_id(conn, "print", "name", 2)
        assert model_id(conn, "print", "name", 2) == model
        other = model_id(conn, "another", "name", 2)
        add_encodings(conn, model, [(b"h", b"v")])
        assert list(find_encodings(conn, model, [b"h", b"x"])) == [b"h"]
        assert find_encodings(conn, other, [b"h"]) == {}


def test_a_write_inside_a_write_is_an_error_and_no_deadlock(store):
    with store.write(), pytest.raises(RuntimeError, match="would wait for itself"):
        add(store, "inner")
    add(store, "later")
