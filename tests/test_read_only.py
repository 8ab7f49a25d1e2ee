"""A knowledge base in an image, or on a mount for reading: it is searched and built from, and leaves no trace."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from ctx_vector import KnowledgeBase
from ctx_vector.errors import StoreError

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")

PROGRAM = """
    import json, os, sys
    from pathlib import Path
    from ctx_vector import ContextBuilder, KnowledgeBase, upkeep  # what root alone may read comes first
    from ctx_vector.audit import AuditLog
    from ctx_vector.errors import StoreError

    folder, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    found = {}

    def use(kb, audit):
        with AuditLog(audit) as log:
            builder = ContextBuilder(rag_tool=kb, audit=log, config={"strategy": "hybrid"})
            built = builder.assemble("服务器什么时候重启？", now=0)
            log.flush()
            return [hit.source for hit in kb.search("When does the server restart?", 2)], built.text, log.count()

    with KnowledgeBase(folder) as kb:  # where it can be written
        found["before"] = use(kb, scratch / "before.sqlite3")
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path == folder else 0o444)
    if os.geteuid() == 0:
        os.setuid(65534)
    names = sorted(path.name for path in folder.iterdir())
    with KnowledgeBase(folder) as kb:
        found["after"] = use(kb, scratch / "after.sqlite3")
        try:
            kb.remove("s0")
        except StoreError as error:
            found["write"] = str(error)
        found["sound"] = kb.verify().ok
    found["traces"] = sorted({path.name for path in folder.iterdir()} - set(names))
    print(json.dumps(found))
"""


@pytest.fixture
def folder():
    """A folder that other users may see: pytest's own are closed to them."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "scratch").mkdir()
    (folder / "scratch").chmod(0o777)
    yield folder
    (folder / "kb").chmod(0o755)
    shutil.rmtree(folder)


def texts(*said):
    return [{"text": text, "source": f"s{number}"} for number, text in enumerate(said)]


def test_it_is_searched_and_built_from_where_nothing_can_be_written(folder, encoder):
    with KnowledgeBase(folder / "kb", encoder) as kb:
        kb.add_texts(texts("The server restarts at four.", "服务器在四点重启。", "Lunch is at noon."))
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder / "kb"), str(folder / "scratch")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    found = json.loads(done.stdout)
    assert found["after"] == found["before"] and sorted(found["after"][0]) == ["s0", "s1"] and found["after"][2] == 1
    assert found["write"].endswith("can only be read: nothing can be written to its folder")
    assert found["sound"] and found["traces"] == []


def test_what_was_not_closed_is_refused_there_and_a_new_file_is_seen(folder, encoder, monkeypatch):
    kb = KnowledgeBase(folder / "kb", encoder)
    kb.add_texts(texts("The server restarts at four."))
    shutil.copytree(folder / "kb", folder / "in use")
    kb.close()
    shutil.copytree(folder / "kb", folder / "copy")
    with KnowledgeBase(folder / "kb", encoder) as kb:
        kb.add_texts(texts("Lunch is at noon."))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # for root may write anywhere
    with pytest.raises(StoreError, match=r"is or was in use: what stands in ctx\.sqlite3-wal"):
        KnowledgeBase(folder / "in use", encoder)
    with KnowledgeBase(folder / "copy", encoder) as copy:
        assert [hit.content for hit in copy.search("When is lunch?", 1, min_score=0)] == [
            "The server restarts at four."
        ]
        shutil.copy(folder / "kb" / "ctx.sqlite3", folder / "copy" / "new")
        (folder / "copy" / "new").replace(folder / "copy" / "ctx.sqlite3")
        assert copy.search("When is lunch?", 1, min_score=0)[0].content == "Lunch is at noon."
