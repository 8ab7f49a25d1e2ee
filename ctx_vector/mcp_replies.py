"""What the MCP server answers: the models behind its output schemas, and the same as text for a language model.

Text of documents and memories stands inside items, each under a line that starts with a bracket, with lines of dashes
between them; a line of the text itself that could be read as either gets one backslash (see `escaping`), so that no
document can end its item or begin another one. In the structured answers such text is a JSON string.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydantic import BaseModel, Field

from ctx_vector.built import BuiltContext
from ctx_vector.escaping import escape, normalise, single_line
from ctx_vector.hits import Hit
from ctx_vector.memory_hits import MemoryHit
from ctx_vector.naming import details
from ctx_vector.sizes import sizes
from ctx_vector.sync_report import SyncReport, skip_kind

_FAILED_NAMED: Final = 20


class HistoryMessage(BaseModel):
    """One message of the conversation so far."""

    role: str = Field(min_length=1, max_length=60, description="user, assistant, system or tool. 角色。")
    content: str | None = Field(description="What was said; null where only tools were called. 内容。")
    timestamp: str | None = Field(None, description="When it was said, ISO 8601. 时间。")


class Document(BaseModel):
    """A text found elsewhere, such as a web page or the answer of another tool."""

    content: str = Field(description="The text. 正文。")
    source: str = Field("", max_length=500, description="Where it is from; shown as its citation. 来源。")
    score: float | None = Field(None, ge=0, le=1, description="Relevance, if it is known; else it is scored here.")


class BuildReply(BaseModel):
    """A context that was built, and what it took."""

    build_id: str = Field(description="For explain_build.")
    text: str = Field(description="The context.")
    tokens: int = Field(description="What it takes, counted exactly.")
    max_tokens: int = Field(description="What it may take.")
    kept: int = Field(description="Candidates in it, whole or shortened.")
    dropped: int = Field(description="Candidates left out; explain_build says why.")
    sources: list[str] = Field(description="Citations of the evidence in it, source:first line-last line.")
    warnings: list[str] = Field(description="What the caller should know of.")

    @classmethod
    def of(cls, built: BuiltContext) -> BuildReply:
        """Make it of a build."""
        cites = (str(item.packet.meta.get("cite") or "") for item in built.kept)
        return cls(
            build_id=built.meta["build_id"],
            text=built.text,
            tokens=built.budget.total_used,
            max_tokens=built.budget.total_limit,
            kept=len(built.kept),
            dropped=len(built.dropped),
            sources=list(dict.fromkeys(cite for cite in cites if cite)),
            warnings=list(built.warnings),
        )

    def note(self) -> str:
        """Return the line for people and models that do not see the structured answer."""
        parts = [f"build {self.build_id}: {self.tokens} of {self.max_tokens} tokens"]
        parts += [f"{self.kept} candidates kept, {self.dropped} left out", *map(single_line, self.warnings)]
        return "; ".join(parts)


class Passage(BaseModel):
    """A passage of the knowledge base."""

    cite: str = Field(description="source:first line-last line")
    source: str
    start_line: int
    end_line: int
    heading: list[str]
    score: float = Field(description="Relevance in [0, 1]; about 0.1 divides unrelated from related.")
    content: str

    @classmethod
    def of(cls, hit: Hit) -> Passage:
        """Make it of a hit."""
        return cls(
            cite=hit.cite,
            source=hit.source,
            start_line=hit.start_line,
            end_line=hit.end_line,
            heading=list(hit.heading),
            score=round(hit.score, 4),
            content=hit.content,
        )


class SearchReply(BaseModel):
    """The passages found, best first."""

    passages: list[Passage]

    def text(self, min_score: float) -> str:
        """Return the passages as items."""
        if not self.passages:
            return f"No passage scores {min_score:g} or more. Lower min_score, or ask in other words."
        return items_text(
            (" › ".join([found.cite, *found.heading]), found.score, found.content) for found in self.passages
        )


class Remembered(BaseModel):
    """A memory."""

    memory_id: str = Field(description="For forget.")
    content: str
    type: str
    importance: float
    timestamp: str | None
    score: float = Field(description="Relevance in [0, 1].")

    @classmethod
    def of(cls, hit: MemoryHit) -> Remembered:
        """Make it of a hit."""
        return cls(
            memory_id=hit.id,
            content=hit.content,
            type=hit.memory.type,
            importance=hit.memory.importance,
            timestamp=hit.timestamp.isoformat() if hit.timestamp else None,
            score=round(hit.score, 4),
        )


class RecallReply(BaseModel):
    """The memories found, best first."""

    memories: list[Remembered]

    def text(self, min_score: float) -> str:
        """Return the memories as items."""
        if not self.memories:
            return f"No memory scores {min_score:g} or more."
        return items_text(
            (f"memory {found.memory_id}, {found.type}, {(found.timestamp or '')[:10]}", found.score, found.content)
            for found in self.memories
        )


class RememberReply(BaseModel):
    """The id of what is remembered now."""

    memory_id: str


class ForgetReply(BaseModel):
    """The ids of the memories that are gone."""

    forgotten: list[str]


class IndexReply(BaseModel):
    """What indexing did, or would do."""

    version: int = Field(description="The version of the knowledge base that is active now.")
    added: int
    updated: int
    removed: int
    unchanged: int
    chunks: int = Field(description="Passages in the knowledge base now.")
    encoded: int = Field(description="Passages that went through the model.")
    seconds: float
    failed: dict[str, str] = Field(description="Files that could not be read, and why; the first 20.")
    failures: int = Field(description="How many those are in all.")
    skipped: dict[str, int] = Field(description="Reasons for which files were left out, and how many.")
    dry_run: bool

    @classmethod
    def of(cls, report: SyncReport, *, dry_run: bool) -> IndexReply:
        """Make it of a report."""
        skipped: dict[str, int] = {}
        for reason in map(skip_kind, report.skipped.values()):
            skipped[reason] = skipped.get(reason, 0) + 1
        return cls(
            version=report.version,
            added=len(report.added),
            updated=len(report.updated),
            removed=len(report.removed),
            unchanged=len(report.unchanged),
            chunks=report.chunks,
            encoded=report.encoded,
            seconds=round(report.seconds, 3),
            failed=dict(list(report.failed.items())[:_FAILED_NAMED]),
            failures=len(report.failed),
            skipped=skipped,
            dry_run=dry_run,
        )

    def text(self) -> str:
        """Return it in a line, and a line for each file that failed."""
        counts = ", ".join(f"{getattr(self, name)} {name}" for name in ("added", "updated", "removed", "unchanged"))
        lines = [
            f"{'would be' if self.dry_run else 'documents'}: {counts}; {self.chunks} passages, {self.encoded} encoded"
        ]
        lines += [f"failed: {single_line(name)}: {single_line(why)}" for name, why in self.failed.items()]
        if (more := self.failures - len(self.failed)) > 0:
            lines.append(f"failed: {more} more")
        lines += [f"left out: {count}, {single_line(why)}" for why, count in self.skipped.items()]
        return "\n".join(lines)


class ExplainReply(BaseModel):
    """What became of every candidate of a build."""

    build_id: str
    query: str
    tokens: int
    max_tokens: int
    kept: int
    left_out: dict[str, int] = Field(description="How many were left out, by reason.")
    candidates: list[dict[str, Any]] = Field(
        description="Kept first, in order of choice: kept, section, source, relevance, recency, score, tokens, action, "
        "reason, detail, cites, preview, size (tokens taken, or that it would have taken). At most `limit`."
    )
    more: int = Field(description="How many candidates are not listed.")
    warnings: list[str]

    @classmethod
    def of(cls, built: BuiltContext, limit: int) -> ExplainReply:
        """Make it of a build."""
        rows, items, size_of = built.explain(), (*built.kept, *built.dropped), sizes(built)
        tell = details(built)
        left_out: dict[str, int] = {}
        for row in rows[len(built.kept) :]:
            left_out[row["reason"]] = left_out.get(row["reason"], 0) + 1
        return cls(
            build_id=built.meta["build_id"],
            query=built.query,
            tokens=built.budget.total_used,
            max_tokens=built.budget.total_limit,
            kept=len(built.kept),
            left_out=left_out,
            candidates=[
                row | {"detail": tell(item), "size": size_of(item)}
                for row, item in zip(rows[:limit], items, strict=False)
            ],
            more=max(0, len(rows) - limit),
            warnings=list(built.warnings),
        )

    def text(self) -> str:
        """Return the counts, and a line for each candidate."""
        gone = ", ".join(f"{reason} {number}" for reason, number in self.left_out.items()) or "none"
        lines = [
            f"build {self.build_id}: {self.tokens} of {self.max_tokens} tokens, for: {single_line(self.query)}",
            f"{self.kept} candidates kept; left out: {gone}",
        ]
        lines += [f"warning: {single_line(text)}" for text in self.warnings]
        for row in self.candidates:
            fate = f"kept {row['action']}, {row['tokens']} tokens" if row["kept"] else f"left out: {row['reason']}"
            if not row["kept"] and row["size"]:
                fate += f", would have taken {row['size']} tokens"
            what = single_line(row["cites"] or row["source"])
            numbers = f"relevance {row['relevance']:.2f}, recency {row['recency']:.2f}, score {row['score']:.2f}"
            said = single_line(row["detail"] or row["preview"])
            lines.append(f"- {fate}; {row['section'] or '-'}; {what}; {numbers}; {said}")
        if self.more:
            lines.append(f"and {self.more} more")
        return "\n".join(lines)


def items_text(items: Iterable[tuple[str, float, str]]) -> str:
    r"""Return items of (label, score, content) that no content can leave.

    >>> items_text([("a.md:1-2", 0.5, "one\n---\n[2] b.md"), ("c.md:1-1", 0.25, "two")])
    '[1] a.md:1-2 (0.50)\none\n\\---\n\\[2] b.md\n---\n[2] c.md:1-1 (0.25)\ntwo'
    """
    blocks = [
        f"[{number}] {single_line(label)} ({score:.2f})\n{escape(normalise(content))}"
        for number, (label, score, content) in enumerate(items, 1)
    ]
    return "\n---\n".join(blocks)


def sentence(tool: str, errors: Sequence[Any]) -> str:
    """Return what pydantic found wrong with the arguments of a tool as one sentence, like our own errors."""
    parts = []
    for error in errors:
        where = ".".join(map(str, error["loc"])) or "arguments"
        said = error["msg"][:1].lower() + error["msg"][1:]
        got = "" if error["type"] == "missing" else f", got {error['input']!r:.80}"
        parts.append(f"{where}: {said}{got}")
    return f"{tool}: {'; '.join(parts)}"
