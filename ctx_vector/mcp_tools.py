"""What the MCP server does: a method for each tool and resource, over one knowledge base and one user's memories.

The signature of a method is its input schema, its docstring is what a language model reads. Methods that are not async
run in threads. `allowed_path` is the rule for what may be indexed.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, Field

from ctx_vector import mcp_replies
from ctx_vector.builder import ContextBuilder
from ctx_vector.config import ContextConfig
from ctx_vector.errors import CtxVectorError, InputError
from ctx_vector.knowledge import KnowledgeBase
from ctx_vector.mcp_builds import Builds, summary
from ctx_vector.mcp_replies import Document, HistoryMessage
from ctx_vector.memory import Memory
from ctx_vector.sync_report import Progress, SyncReport
from ctx_vector.tools import MemoryTool, RAGTool

MAX_TEXT: Final = 1_000_000  # characters of one argument
_TICK: Final = 0.25  # seconds between two notes of progress

Query = Annotated[str, Field(min_length=1, max_length=MAX_TEXT, description="The question, in any language. 问题。")]
MinScore = Annotated[
    float,
    Field(ge=0, le=1, description="Least relevance: about 0.1 divides unrelated from related. 最低相关度。"),
]
MemoryType = Literal["working", "episodic", "semantic", "profile"]


class Tools:
    """What the server offers: a method a tool or resource. Their docstrings are what a language model reads."""

    def __init__(
        self,
        knowledge: KnowledgeBase,
        memory: Memory | None,
        roots: Iterable[str | os.PathLike[str]],
        config: ContextConfig,
        builds: Builds,
    ) -> None:
        self._knowledge = knowledge
        self._memory = memory
        self._roots = [_folder(root) for root in roots]
        self._builder = ContextBuilder(
            rag_tool=RAGTool(knowledge=knowledge),
            memory_tool=MemoryTool(memory=memory) if memory is not None else None,
            config=config,
            audit=builds.audit,
            user_id=builds.user_id,
        )
        self._builds = builds

    # -- contexts ----------------------------------------------------------------------------------------------------

    def build_context(
        self,
        query: Query,
        history: Annotated[
            list[HistoryMessage],
            Field(max_length=10_000, description="The conversation so far, oldest first. 对话历史。"),
        ] = [],  # noqa: B006  (a schema's default; never changed)
        system_instructions: Annotated[
            str, Field(max_length=MAX_TEXT, description="Rules for whoever answers; never cut. 系统指令。")
        ] = "",
        state: Annotated[str, Field(max_length=MAX_TEXT, description="Where the task stands. 任务状态。")] = "",
        documents: Annotated[
            list[Document],
            Field(max_length=1000, description="Texts found elsewhere, to choose from. 其他来源的资料。"),
        ] = [],  # noqa: B006
        max_tokens: Annotated[
            int | None, Field(ge=1, le=10_000_000, description="Size of the whole context; 3000 unless set. 预算。")
        ] = None,
        session: Annotated[
            str, Field(max_length=500, description="Name of the conversation, for the record. 会话。")
        ] = "",
        use_knowledge: Annotated[bool, Field(description="Look into the knowledge base. 使用知识库。")] = True,
        use_memory: Annotated[bool, Field(description="Look into the memories. 使用记忆。")] = True,
    ) -> Annotated[CallToolResult, mcp_replies.BuildReply]:
        """Build the context for a question: what matters of knowledge, memories, conversation and given texts, chosen
        by meaning and recency, in fixed sections, never over the token budget.

        为问题构建上下文：从知识、记忆、对话中挑选相关内容，绝不超出预算。
        """
        off = {"knowledge_limit": 0} if not use_knowledge else {}
        off |= {"memory_limit": 0} if not use_memory else {}
        builder = self._builder.with_config(self._builder.config.with_(**off)) if off else self._builder
        built = builder.assemble(
            query,
            conversation_history=[message.model_dump(exclude_none=True) for message in history],
            system_instructions=system_instructions or None,
            documents=[_as_document(item) for item in documents],
            state=state or None,
            session_id=session or None,
            max_tokens=max_tokens,
        )
        self._builds.add(built)
        reply = mcp_replies.BuildReply.of(built)
        return _answer(reply, reply.text, reply.note())

    def explain_build(
        self,
        build_id: Annotated[
            str, Field(max_length=100, description="Of build_context; the last build if left out.")
        ] = "",
        limit: Annotated[int, Field(ge=1, le=2000, description="List at most this many candidates. 条数。")] = 50,
    ) -> Annotated[CallToolResult, mcp_replies.ExplainReply]:
        """Say what became of every candidate of a recent build: kept or left out, scores, tokens and the reason.

        说明最近一次构建中每个候选为何保留或丢弃。
        """
        reply = mcp_replies.ExplainReply.of(self._builds.get(build_id), limit)
        return _answer(reply, reply.text())

    # -- knowledge ---------------------------------------------------------------------------------------------------

    def search_knowledge(
        self,
        query: Query,
        limit: Annotated[int, Field(ge=1, le=100, description="At most this many passages. 条数。")] = 5,
        min_score: MinScore = 0.1,
        source: Annotated[
            str, Field(max_length=1000, description="Only documents with this name; * is anything: docs/en/*. 来源。")
        ] = "",
    ) -> Annotated[CallToolResult, mcp_replies.SearchReply]:
        """Find the passages of the local knowledge base nearest in meaning to a question, each with its citation.

        在本地知识库中按语义搜索，返回带出处的段落。
        """
        only = {"source": source} if source else None
        hits = self._knowledge.search(query, limit, min_score, only)
        reply = mcp_replies.SearchReply(passages=[mcp_replies.Passage.of(hit) for hit in hits])
        return _answer(reply, reply.text(min_score))

    async def index_path(
        self,
        path: Annotated[
            str,
            Field(
                min_length=1,
                max_length=4096,
                description="A file or folder in an open folder, or the source of a document as citations name it: "
                "guides/vpn.md, docs/guides/vpn.md. 路径，或引用中的文件名。",
            ),
        ],
        ctx: Context[Any, Any],
        dry_run: Annotated[bool, Field(description="Only say what would be done. 只预演。")] = False,
    ) -> Annotated[CallToolResult, mcp_replies.IndexReply]:
        """Bring the knowledge base up to date with a file or folder; only what changed is encoded. Only what lies in
        folders that were opened when the server was started can be indexed. A path starts in such a folder or with its
        name, as sources of search_knowledge do.

        索引文件或文件夹（仅限启动时开放的目录），只编码有变化的部分。
        """
        target = allowed_path(path, self._roots, self._knowledge.places(path))
        stop, latest = threading.Event(), [Progress(0, 0, 0, 0, 0, "")]

        def tell(progress: Progress) -> None:  # called from the threads that index
            latest[0] = progress
            if stop.is_set():
                raise InputError("index_path: cancelled; what was encoded is kept")

        async def report() -> None:
            try:
                told = None
                while True:
                    await anyio.sleep(_TICK)
                    if (now := latest[0]) != told and now.bytes_total:
                        told = now
                        message = f"{now.files_done} of {now.files_total} files, {now.encoded} passages encoded"
                        await ctx.report_progress(now.bytes_done, now.bytes_total, message)
            finally:
                stop.set()

        def work() -> SyncReport | CtxVectorError:
            try:
                return self._knowledge.sync(target, progress=tell, dry_run=dry_run)
            except CtxVectorError as error:  # raised in a task group it would become an exception group
                return error

        async with anyio.create_task_group() as group:
            group.start_soon(report)
            done = await anyio.to_thread.run_sync(work)
            group.cancel_scope.cancel()
        if isinstance(done, CtxVectorError):
            raise done
        if not dry_run:
            await ctx.notify_resource_updated("ctx-vector://knowledge")
            await ctx.notify_resource_updated("ctx-vector://knowledge/versions")
        reply = mcp_replies.IndexReply.of(done, dry_run=dry_run)
        return _answer(reply, reply.text())

    # -- memory ------------------------------------------------------------------------------------------------------

    def remember(
        self,
        content: Annotated[
            str, Field(min_length=1, max_length=MAX_TEXT, description="What to remember, one thing. 内容。")
        ],
        type: Annotated[
            MemoryType,
            Field(description="working: a week; episodic: what happened; semantic: facts; profile: the user. 类型。"),
        ] = "episodic",
        importance: Annotated[float, Field(ge=0, le=1, description="How much it matters. 重要度。")] = 0.5,
        session: Annotated[str, Field(max_length=500, description="The conversation it is a turn of. 会话。")] = "",
        speaker: Annotated[str, Field(max_length=500, description="Who said it. 说话人。")] = "",
    ) -> Annotated[CallToolResult, mcp_replies.RememberReply]:
        """Remember one thing about the user for later conversations. What is there already stays one memory.

        记住一件关于用户的事；已有的不会重复。
        """
        id_ = self._kept().add(content, type, importance, session=session or None, speaker=speaker or None)
        return _answer(mcp_replies.RememberReply(memory_id=id_), f"remembered as memory {id_}")

    def recall(
        self,
        query: Query,
        limit: Annotated[int, Field(ge=1, le=100, description="At most this many memories. 条数。")] = 10,
        min_score: MinScore = 0.1,
        type: Annotated[MemoryType | None, Field(description="Only memories of this type. 类型。")] = None,
    ) -> Annotated[CallToolResult, mcp_replies.RecallReply]:
        """Find what is remembered of the user, by meaning.

        按语义查找关于用户的记忆。
        """
        hits = self._kept().search(query, limit, min_score=min_score, type=type)
        reply = mcp_replies.RecallReply(memories=[mcp_replies.Remembered.of(hit) for hit in hits])
        return _answer(reply, reply.text(min_score))

    def forget(
        self,
        memory_ids: Annotated[
            list[str],
            Field(min_length=1, max_length=1000, description="Ids of memories, as recall gives them. 记忆编号。"),
        ],
    ) -> Annotated[CallToolResult, mcp_replies.ForgetReply]:
        """Delete memories for good, every trace of them. Ask the user first. With an unknown id none is deleted.

        彻底删除记忆，请先征得用户同意。
        """
        memory = self._kept()
        wanted = list(dict.fromkeys(str(memory.get(id_).id) for id_ in memory_ids))
        for id_ in wanted:
            memory.remove(id_)
        self._builds.forget(wanted)
        return _answer(mcp_replies.ForgetReply(forgotten=wanted), f"forgotten: {', '.join(wanted)}")

    def _kept(self) -> Memory:
        if self._memory is None:
            raise InputError("this server keeps no memories; start it without --no-memory")
        return self._memory

    # -- resources ---------------------------------------------------------------------------------------------------

    def knowledge_stats(self) -> str:
        """Return counts and sizes as JSON."""
        return _as_json(self._knowledge.stats)

    def knowledge_versions(self) -> str:
        """Return the versions as JSON."""

        def versions() -> list[Any]:
            return [
                {**asdict(version), "created": version.created.isoformat()} for version in self._knowledge.versions()
            ]

        return _as_json(versions)

    def recent_builds(self) -> str:
        """Return a line of figures for each build as JSON."""
        return _as_json(self._builds.recent)

    def one_build(self, build_id: str) -> str:
        """Return a build as JSON."""

        def record() -> Mapping[str, Any]:
            built = self._builds.get(build_id)
            return {**summary(built), "text": built.text, "candidates": built.explain()}

        return _as_json(record)


def _answer(reply: BaseModel, *texts: str) -> CallToolResult:
    content: list[Any] = [TextContent(type="text", text=text) for text in texts]
    return CallToolResult(content=content, structured_content=reply.model_dump(mode="json"))


def _as_json(read: Callable[[], Any]) -> str:
    try:
        return json.dumps(read(), ensure_ascii=False, indent=1)
    except CtxVectorError as error:
        raise ResourceError(str(error)) from error


def _as_document(item: Document) -> dict[str, Any]:
    found: dict[str, Any] = {"content": item.content}
    if item.score is not None:
        found["score"] = item.score
    if item.source:
        found["metadata"] = {"source": item.source, "cite": item.source}
    return found


# -- what may be indexed ---------------------------------------------------------------------------------------------


def _folder(root: str | os.PathLike[str]) -> Path:
    real = Path(os.path.realpath(root))
    if not real.is_dir():
        raise InputError(f"root: no such folder: {os.fspath(root)}")
    return real


def allowed_path(path: str, roots: Sequence[Path], known: Sequence[str] = ()) -> Path:
    """Return the real path of a file or folder in one of `roots` (real paths).

    It is what the path means as the name of a source: one of the paths `known` for it, as the knowledge base has them;
    else what it means in each of the roots in turn; else what it means when it begins with the name of a root.

    Raises InputError for whatever lies outside once symbolic links are resolved, whether it is there or not, and for
    what is not there.
    """
    if not roots:
        raise InputError("index_path: no folder is open to this server; start it with --root DIR")
    try:
        named = [root.parent / path for root in roots if path == root.name or path.startswith(f"{root.name}/")]
        meant = [*map(Path, known), *(root / path for root in roots), *named]
        real = [Path(os.path.realpath(found)) for found in meant]
    except ValueError:  # a NUL in the path
        raise InputError(f"path: expected the path of a file or folder, got {path!r:.80}") from None
    inside = [found for found in real if any(found == root or root in found.parents for root in roots)]
    there = [found for found in inside if found.exists()]
    foreign = bool(known) and not set(real[: len(known)]) & set(inside)  # a document, but of another folder
    if not inside or (foreign and not there):
        raise InputError(
            f"path: {path!r:.200} is not in a folder that is open to this server; open are {', '.join(map(str, roots))}"
        )
    if not there:
        raise InputError(
            f"path: no such file or folder: {path!r:.200}; a path starts in {', '.join(map(str, roots))}, or with the "
            f"folder's name, such as {roots[0].name}/..., as the sources of search_knowledge do"
        )
    return there[0]
