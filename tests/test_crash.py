"""Kill the process anywhere: what was acknowledged is there, and the next run finishes the work."""

import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from ctx_vector.knowledge import KnowledgeBase
from tests.knowledge_help import CountingEncoder, age

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")

SYNC = """
    import sys
    from ctx_vector import encoding_cache, sync
    from ctx_vector.encoders import load_encoder
    from ctx_vector.knowledge import KnowledgeBase

    encoding_cache.BATCH = sync.BATCH = 4  # more moments to be killed at
    encoder = load_encoder()
    encoder.encode_documents(["warm"])
    kb = KnowledgeBase(sys.argv[1], encoder, file_rows=5)
    print("ready", flush=True)
    kb.sync(sys.argv[2])
    print("done", flush=True)
"""

ADD = """
    import sys
    from ctx_vector.encoders import load_encoder
    from ctx_vector.knowledge import KnowledgeBase

    kb = KnowledgeBase(sys.argv[1], load_encoder())
    print("ready", flush=True)
    for number in range(10_000):
        kb.add_text(f"Note {number} says that {number * number} is a square.", f"note-{number % 50}")
        print(number, flush=True)
"""


def start(program, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process):
    process.send_signal(signal.SIGKILL)
    output = process.stdout.read()
    process.stdout.close()
    process.wait(30)
    return output


def write_round(docs, number):
    """Every round changes two thirds of the files, removes one and adds one."""
    docs.mkdir(exist_ok=True)
    for page in range(12):
        if page % 3 != number % 3 or number == 0:
            paragraphs = [
                f"# Page {page}\n\nRound {number}, page {page}. " + f"The river bends {page + number} times. " * 8
            ]
            paragraphs += [f"## Part {part}\n\n" + f"Stone {part} of page {page} lies still. " * 9 for part in range(3)]
            (docs / f"page-{page}.md").write_text("\n\n".join(paragraphs) + "\n")
    (docs / f"extra-{number}.md").write_text(f"# Extra\n\nOnly in round {number}. " + "Leaves fall slowly. " * 12)
    (docs / f"extra-{number - 1}.md").unlink(missing_ok=True)
    age(docs)


def contents(kb):
    found = {}
    for row in kb.export():
        if row["type"] == "document":
            found[row["source"]] = []
        else:
            found[row["source"]].append(row["content"])
    return found


def survive(tmp_path, encoder, kills, seed):
    rng = random.Random(seed)
    docs, folder = tmp_path / "docs", tmp_path / "kb"
    write_round(docs, 0)
    counting = CountingEncoder(encoder)
    before, longest, interrupted = {}, 1.0, 0
    for number in range(1, kills + 1):
        write_round(docs, number)
        process = start(SYNC, folder, docs)
        began = time.monotonic()
        time.sleep(rng.random() * longest)
        finished = "done" in kill(process)
        interrupted += not finished
        if finished:
            longest = max(0.1, (time.monotonic() - began) * 0.8)
        else:
            longest *= 1.1
        with KnowledgeBase(folder, counting, file_rows=5) as kb:
            report = kb.verify()
            assert report.ok, report.problems
            # all of the former version or all of the new one
            found = contents(kb)
            assert found == before or any(f"Round {number}, page" in text for texts in found.values() for text in texts)
            kb.search("How often does the river bend?", limit=50)
            counting.encoded.clear()
            kb.sync(docs)
            assert len(set(counting.encoded)) == len(counting.encoded)
            before = contents(kb)
            assert before.keys() == {f"docs/{path.name}" for path in docs.iterdir()}
            for source, texts in before.items():
                text = (docs.parent / source).read_text()
                assert all(part in text for part in texts)
                assert sum(len(part.split()) for part in texts) == len(text.split())
            assert kb.sync(docs).encoded == 0
            assert kb.verify().ok
            assert kb.verify().repaired == ()
    with KnowledgeBase(tmp_path / "clean", encoder) as clean:
        clean.sync(docs)
        assert contents(clean) == before
    return interrupted


def test_an_index_killed_at_random_moments(tmp_path, encoder):
    survive(tmp_path, encoder, 3, seed=1)


@pytest.mark.slow
def test_an_index_killed_at_twenty_random_moments(tmp_path, encoder):
    assert survive(tmp_path, encoder, 20, seed=2) >= 10


def acknowledged(tmp_path, encoder, seconds):
    process = start(ADD, tmp_path / "kb")
    time.sleep(seconds)
    numbers = [int(line) for line in kill(process).splitlines()]
    with KnowledgeBase(tmp_path / "kb", encoder) as kb:
        assert kb.verify().ok
        texts = {source: texts[0] for source, texts in contents(kb).items()}
        for number in numbers[-50:]:  # earlier ones were replaced
            said = int(texts[f"note-{number % 50}"].split()[1])
            assert said in (number, number + 50)  # the latter was written, but not yet acknowledged
        version = kb.version
        assert version >= len(numbers)
        assert kb.add_text("One more.", "more").version == version + 1


def test_what_was_acknowledged_before_a_kill_is_there(tmp_path, encoder):
    acknowledged(tmp_path, encoder, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_what_was_acknowledged_before_a_kill_is_there_at_any_moment(tmp_path, encoder, seed):
    acknowledged(tmp_path, encoder, 0.2 + random.Random(seed).random() * 2)


def test_a_search_in_one_process_while_another_indexes(tmp_path, encoder):
    docs, folder = tmp_path / "docs", tmp_path / "kb"
    write_round(docs, 0)
    vector = encoder.encode_queries(["How often does the river bend?"])[0]
    with KnowledgeBase(folder, encoder) as kb:
        kb.sync(docs)
        before = contents(kb)
        write_round(docs, 1)
        process = start(SYNC, folder, docs)
        searches = 0
        while process.poll() is None:
            found = {hit.content for hit in kb.search_vector("river", vector, 200)}
            searches += 1
            time.sleep(0.01)  # the other one needs the processor too
            if kb.version == 1:
                assert found <= {text for texts in before.values() for text in texts} or kb.version == 2
        process.stdout.close()
        assert process.returncode == 0
        assert searches > 3
        assert kb.version == 2
        assert {hit.source for hit in kb.search_vector("river", vector, 200)} == contents(kb).keys()
        assert kb.verify().ok
