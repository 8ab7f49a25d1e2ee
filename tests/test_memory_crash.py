"""Two processes at once, and processes killed in the middle: no error, nothing acknowledged is lost."""

import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from store_help import opened

from ctx_vector.memory import Memory

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")

# adds turns and facts for one user of two, searches, now and then removes, and says what it was told
WORK = """
    import sys, time
    from ctx_vector.encoders import load_encoder
    from ctx_vector.memory import Memory

    folder, name, user, seconds = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
    memory = Memory(folder, user, load_encoder())
    memory.search("warm")
    print("ready", flush=True)
    end, number, mine = time.monotonic() + seconds, 0, []
    while time.monotonic() < end:
        number += 1
        text = f"{name} says that {number} times {number} is {number * number}"
        if number % 3:
            id_ = memory.add(text, session=f"talk of {user}", speaker=name)
        else:
            id_ = memory.add(text, "semantic")
        print("added", id_, text, flush=True)
        mine.append(id_)
        hits = memory.search(text, 5)
        assert hits
        if number % 25 == 0:
            gone = mine.pop(0)
            print("removing", gone, flush=True)
            memory.remove(gone)
    print("done", flush=True)
"""


def start(*arguments):
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(WORK), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


def told(output):
    """Return the memories that a process was told are there, by id, and the ids it began to remove."""
    added, removing = {}, set()
    for line in output.splitlines():
        word, _, rest = line.partition(" ")
        if word == "added":
            id_, _, text = rest.partition(" ")
            added[id_] = text
        elif word == "removing":
            removing.add(rest)
    return added, removing


def at_once(tmp_path, encoder, seconds, users):
    processes = [start(tmp_path, f"P{number}", user, seconds) for number, user in enumerate(users)]
    added, removing = {user: {} for user in users}, set()
    for process, user in zip(processes, users, strict=True):
        output, errors = process.communicate(timeout=seconds + 60)
        assert process.returncode == 0, errors
        assert errors == ""
        assert output.endswith("done\n")
        new, gone = told(output)
        assert not set(new) & set(added[user])
        added[user] |= new
        removing |= gone
    for user, expected in added.items():
        with Memory(tmp_path, user, encoder) as memory:
            found = {str(row.id): row.content for row in memory.all()}
            assert found == {id_: text for id_, text in expected.items() if id_ not in removing}
            assert len(found) > seconds
            assert memory.verify() == []
            text = next(iter(found.values()))
            assert memory.search(text, 5)
            check_vectors(memory)


def check_vectors(memory):
    """Every turn has its vector among its neighbours of now, whoever added them, and no vector is left over."""
    from ctx_vector.dialogue import alone_text, around_text
    from ctx_vector.encoding_cache import text_hash

    with opened(memory).read() as conn:
        hashes = dict(conn.execute("SELECT id, hash FROM encodings").fetchall())
    rows = memory.all()
    talk = [row for row in rows if row.session]
    for place, row in enumerate(talk):
        assert hashes[row.alone] == text_hash(alone_text(row))
        assert hashes[row.around] == text_hash(around_text(talk, place) or alone_text(row))


def test_two_processes_at_once(tmp_path, encoder):
    at_once(tmp_path, encoder, 2, ("ada", "ada"))


@pytest.mark.slow
@pytest.mark.parametrize("users", [("ada", "ada"), ("ada", "bob")])
def test_two_processes_at_once_for_a_minute(tmp_path, encoder, users):
    at_once(tmp_path, encoder, 60, users)


def survive(tmp_path, encoder, kills, seed):
    rng = random.Random(seed)
    expected, maybe = {}, set()
    for number in range(kills):
        process = start(tmp_path, f"R{number}", "ada", 600)
        time.sleep(0.1 + rng.random() * 1.5)
        process.send_signal(signal.SIGKILL)
        new, removing = told(process.communicate(timeout=60)[0])
        expected |= new
        maybe |= removing
        with Memory(tmp_path, "ada", encoder) as memory:
            found = {str(row.id): row.content for row in memory.all()}
            assert {id_: text for id_, text in expected.items() if id_ not in maybe}.items() <= found.items()
            # besides what was acknowledged at most the one that was being added
            unknown = set(found) - set(expected)
            assert len(unknown) <= 1
            expected |= {id_: found[id_] for id_ in unknown}
            assert memory.verify() == []
            check_vectors(memory)
            assert memory.search("What is nine times nine?", now=None)


def test_killed_in_the_middle_of_adding(tmp_path, encoder):
    survive(tmp_path, encoder, 3, seed=1)


@pytest.mark.slow
def test_killed_twenty_times_in_the_middle_of_adding(tmp_path, encoder):
    survive(tmp_path, encoder, 20, seed=2)


BULK = """
    import sys
    from ctx_vector import encoding_cache
    from ctx_vector.encoders import load_encoder
    from ctx_vector.memory import Memory

    encoding_cache.BATCH = 16
    memory = Memory(sys.argv[1], "ada", load_encoder())
    memory.search("warm")
    print("ready", flush=True)
    memory.add_many([{"content": f"Turn {n} is about the number {n * n}", "session": "s", "timestamp": 0}
                     for n in range(100)])
    print("done", flush=True)
"""


def test_many_are_added_as_a_whole_or_not_at_all_and_nothing_is_encoded_twice(tmp_path, encoder):
    from tests.knowledge_help import CountingEncoder

    command = [sys.executable, "-c", textwrap.dedent(BULK), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.7)
    process.kill()
    finished = "done" in process.communicate(timeout=60)[0]
    counting = CountingEncoder(encoder)
    with Memory(tmp_path, "ada", counting) as memory:
        assert len(memory.all()) == (100 if finished else 0)
        with opened(memory).read() as conn:
            kept = conn.execute("SELECT count(*) FROM encodings").fetchone()[0]
        items = [
            {"content": f"Turn {n} is about the number {n * n}", "session": "s", "timestamp": 0} for n in range(100)
        ]
        memory.add_many(items)
        assert len(counting.encoded) == 200 - kept
        assert len(memory.all()) == 100
        check_vectors(memory)
