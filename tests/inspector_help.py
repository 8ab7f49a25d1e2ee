"""What the tests of the inspector share: stores with ordinary and hostile contents, and a server over them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from ctx_vector import ContextBuilder, ContextConfig, ContextPacket, KnowledgeBase, Message
from ctx_vector.audit import AuditLog
from ctx_vector.inspector import Stores, make_app
from ctx_vector.memory import Memory

TOKEN = "a-token-of-the-tests-0123"
SCRIPT = "<script>window.hit = 1</script><img src=x onerror='window.hit = 2'>"
TURNED = "safe \u202eevil\u202c \u2066left\u2069 مرحبا"
LONG = "字" * 100_000
MANY = 2_000
QUESTION, CHINESE = "How do I reduce the memory usage of Pandas?", "如何优化Pandas的内存占用?"
USER = "ada"
REPORT = "<!doctype html><title>r</title><h1>A report</h1><script>parent.document.title = 'hit'</script>"


class Made:
    """Stores in a folder, and the ids of the builds in them."""

    def __init__(self, folder: Path, encoder) -> None:
        self.folder = folder
        documents = folder / "docs"
        documents.mkdir(parents=True)
        (documents / "pandas.md").write_text(
            "# Memory\n\nUse categories to reduce memory.\n\n## Dtypes\n\nDowncast the numbers.\n", encoding="utf-8"
        )
        (documents / "内存 & <b>.md").write_text(f"# 内存\n\n用 category 节省内存。{SCRIPT}\n", encoding="utf-8")
        self.kb = KnowledgeBase(folder / "kb", encoder)
        self.kb.sync(documents)
        self.memory = Memory(folder / "memory", USER, encoder)
        self.memory.add("Ada prefers answers in Chinese", type="semantic", importance=0.8)
        self.memory.add(f"{SCRIPT} 她喜欢简短的回答", type="semantic", importance=0.5)
        self.audit = AuditLog(folder / "kb" / "audit.sqlite3")
        (folder / "reports").mkdir()
        (folder / "reports" / "r 1.html").write_text(REPORT, encoding="utf-8")
        self._builds()

    def _builds(self) -> None:
        config = ContextConfig(max_tokens=400, strategy="jaccard", min_relevance=0.0, citations=True)
        builder = ContextBuilder(audit=self.audit, config=config)

        def build(query: str, **more) -> str:
            documents = [f"pandas memory {n} " * (5 + n) + "内存占用" for n in range(12)]
            history = [Message("My CSV has 5 million rows.", "user"), Message("用 chunksize 分块读取。", "assistant")]
            given = {
                "documents": documents, "conversation_history": history, "session_id": "s 1",
                "system_instructions": "You are a consultant.",
            } | more  # fmt: skip
            return str(builder.assemble(query, **given).meta["build_id"])

        self.chinese = build(CHINESE)
        self.plain = build(QUESTION)
        self.hostile = build(
            f"{SCRIPT} {TURNED}",
            documents=[{"text": f"{SCRIPT} {TURNED}", "id": SCRIPT, "source": SCRIPT, "score": 0.9}],
            conversation_history=[Message(f"</pre>{SCRIPT}", "user")],
            system_instructions=SCRIPT,
            session_id=f"'\"{SCRIPT}",
            custom_packets=[ContextPacket(TURNED, metadata={"section": f"Extra {SCRIPT}"})],
        )
        large = ContextBuilder(
            audit=self.audit, config=ContextConfig(max_tokens=30_000, strategy="jaccard", min_relevance=0.0)
        )
        documents = [f"document {n} about cats and {'dogs' if n % 2 else '鸟'} " * 3 for n in range(MANY - 1)]
        self.large = str(large.assemble("cats and dogs", documents=[*documents, LONG]).meta["build_id"])
        huge = ContextBuilder(audit=self.audit, config=ContextConfig(max_tokens=400_000, strategy="jaccard"))
        packets = [ContextPacket(LONG, relevance_score=1.0)]
        self.huge = str(huge.assemble("one long text", custom_packets=packets).meta["build_id"])
        self.audit.flush()

    @property
    def stores(self) -> Stores:
        return Stores(
            audit=self.audit, knowledge=self.kb, memory=lambda user: self.memory, users=self.memory.users,
            reports=self.folder / "reports", user=USER,
        )  # fmt: skip

    def close(self) -> None:
        self.audit.close()
        self.memory.close()
        self.kb.close()


@contextmanager
def running(stores: Stores) -> Iterator[str]:
    """Serve the stores on a free port, and give the address with its token."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        config = uvicorn.Config(make_app(stores, TOKEN, [host]), log_level="warning", access_log=False, lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://{host}/?token={TOKEN}"
        finally:
            server.should_exit = True
            thread.join(30)
