"""`ctx-vector search`: the one command that has to answer at once, so it needs neither Typer nor Rich."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.cli.common import UsageError, check_query, out, print_json
from ctx_vector.cli.opening import DEFAULT_KB, open_encoder, own_model
from ctx_vector.cli.text import BOLD, DIM, GREEN, columns, cut, plain, style, wrap

if TYPE_CHECKING:
    from ctx_vector.hits import Hit

DEFAULT_LIMIT: Final = 5
WEAK: Final = 0.1  # the line between unrelated and matched (calibration.py)
_LINES: Final = 4


@dataclass(frozen=True, slots=True)
class Search:
    """The arguments of one search; `filters` are ``key=value`` as given."""

    query: str
    kb: str = DEFAULT_KB
    limit: int = DEFAULT_LIMIT
    min_score: float = 0.0
    strategy: str = "cosine"
    rerank: str | None = None
    filters: tuple[str, ...] = ()
    model: str | None = None
    as_json: bool = False


VALUES: Final[Mapping[str, tuple[str, Any]]] = {
    "--kb": ("kb", str),
    "--limit": ("limit", int),
    "-n": ("limit", int),
    "--min-score": ("min_score", float),
    "--strategy": ("strategy", str),
    "--rerank": ("rerank", str),
    "--filter": ("filters", str),
    "--model": ("model", str),
}


def read_plain(arguments: Sequence[str]) -> Search | None:
    """Return the search that a plain command line asks for, or None when Typer has to look at it (help, errors)."""
    found: dict[str, Any] = {"filters": ()}
    rest = list(arguments)
    words: list[str] = []
    try:
        while rest:
            word = rest.pop(0)
            name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
            if word == "--":
                words += rest
                break
            if word == "--json":
                found["as_json"] = True
            elif name in VALUES:
                field, kind = VALUES[name]
                read = kind(value if equals else rest.pop(0))
                if field == "filters":
                    found["filters"] += (read,)
                else:
                    found[field] = read
            elif word.startswith("-") and word != "-":
                return None
            else:
                words.append(word)
        (query,) = words
        return Search(query, **found)
    except (IndexError, ValueError):
        return None


def search(asked: Search) -> int:
    """Search and print; exit code 0 whether or not something was found."""
    from ctx_vector.errors import ModelMismatchError

    check_query(asked.query)
    wanted = read_filters(asked.filters)
    try:
        hits = found_hits(asked, wanted, asked.model)
    except ModelMismatchError:
        other = _model_of(asked)
        if other is None:
            raise
        hits = found_hits(asked, wanted, other)
    if asked.as_json:
        print_json([hit.to_dict() for hit in hits])
    else:
        show(hits, asked)
    return 0


def found_hits(asked: Search, wanted: Mapping[str, Any], model: str | None) -> list[Hit]:
    """Return what a search finds; `model` opens another encoder than the default one."""
    from ctx_vector.knowledge import KnowledgeBase

    with KnowledgeBase(asked.kb, open_encoder(model), create=False) as kb:
        return kb.search(
            asked.query,
            asked.limit,
            asked.min_score,
            wanted or None,
            strategy=asked.strategy,
            rerank=asked.rerank,
        )


def _model_of(asked: Search) -> str | None:
    """Return the model that the knowledge base was made with, when nobody named one and it is a known one."""
    from ctx_vector.knowledge import KnowledgeBase
    from ctx_vector.model_store import cards

    if asked.model is not None:
        return None
    with KnowledgeBase(asked.kb, create=False) as kb:
        name = own_model(kb)
    return name if name != next(iter(cards())) else None


def read_filters(given: Sequence[str]) -> dict[str, Any]:
    """Return the `filter` of a search from ``key=value`` words; a key given twice may have either value.

    A value that looks like a number, true, false or null also stands for that.
    """
    wanted: dict[str, list[Any]] = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--filter: expected key=value, got {word!r}; for example: --filter 'source=docs/*'")
        values = wanted.setdefault(key.strip(), [])
        values.append(value)
        if key.strip() != "source":
            try:
                read = json.loads(value)
            except ValueError:
                continue
            if isinstance(read, (int, float)) or read is None:
                values.append(read)
    return dict(wanted)


def show(hits: Sequence[Hit], asked: Search) -> None:
    """Print hits for a person: score, citation, headings, the first lines."""
    if not hits:
        why = f"no passage scores {asked.min_score:g} or more" if asked.min_score else "no passage was found"
        todo = ["lower --min-score"] if asked.min_score else []
        todo += ["loosen --filter"] if asked.filters else []
        todo = todo or [f"see what is in it with: ctx-vector kb stats --kb {asked.kb}"]
        out(f"{why}; {' or '.join(todo)}")
        return
    if hits[0].score < WEAK:
        out(f"no close match (all score under {WEAK:g}); the nearest passages are:\n")
    room = columns()
    for number, hit in enumerate(hits, 1):
        if number > 1:
            out()
            if hit.score < WEAK <= hits[number - 2].score:
                out(f"no close match from here on (under {WEAK:g}):\n")
        _show_hit(number, hit, room)


def _show_hit(number: int, hit: Hit, room: int) -> None:
    lead = f"{number}. "
    pad = " " * len(lead)
    out(f"{lead}{style(f'{hit.score:.2f}', BOLD, GREEN)}  {style(plain(hit.cite), BOLD)}")
    heading = " › ".join(plain(title) for title in hit.heading)
    if heading:
        out(style(pad + cut(heading, room - len(pad)), DIM))
    content = plain(hit.content).strip("\n")
    if hit.heading:
        content = _below(content, plain(hit.heading[-1]))
    for line in wrap(content, room - len(pad), _LINES):
        out(pad + line)


def _below(content: str, title: str) -> str:
    """Return a passage without the heading at its beginning, which is shown already: that of Markdown, of Word, or of
    reStructuredText between its rules.
    """
    rule = r"(?:([^\w\s])\{}{{2,}}[ \t]*\n)?"
    found = re.match(rf"#[^\n]*\n|{rule.format(1)}[ \t]*{re.escape(title)}[ \t]*\n{rule.format(2)}", content)
    return content[found.end() :] if found and content[found.end() :].strip() else content
