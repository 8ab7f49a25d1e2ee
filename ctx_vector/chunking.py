"""Documents into chunks: small enough for the encoder, whole enough to be understood, stable under edits.

A chunk is a slice of its document's text. Sections come first (no chunk crosses a heading of level 1 or 2, unless
what it joins is tiny), then blocks (code, tables and paragraphs stay whole where they fit), then sentences and
lines, then characters. There is no overlap, and only blank text between chunks is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ctx_vector.documents import Block, Document, one_line, plain_title, strip_anchor
from ctx_vector.errors import InputError
from ctx_vector.packing import LEAST_ROOM, Group, Section, Sizes, groups_of, section_tree
from ctx_vector.text_cut import cut

Count = Callable[[Sequence[str]], Sequence[int]]

MAX_TOKENS = 480  # the default encoder reads 512, with its prompt
# What passages are filled up to, in knowledge bases and on the command line too. A context of a given size holds fewer
# answers with 320; between 64 and 224 no difference is shown, but from long texts without headings 128 brings more, and
# within five hits it brings fewer with the hybrid (benchmarks/chunk_size.py).
TARGET_TOKENS = 224
MIN_TOKENS = 48
_SLAB = 2048  # characters counted at once to estimate how many tokens a long text has
_SLABS = 256  # slabs counted of one long text; all of them below half a million characters
_BATCH_CHARS = 500_000  # characters passed to the counter in one call, which bounds its memory
_CONTEXT_SHARE = 4  # heading path and column names take at most a fourth of a chunk

_HEADING_LINE = re.compile(r"#{1,6}[ \t]")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document: ``text == document.text[start_char:end_char]``.

    Lines are 1-based and inclusive, and lines of the file (`Document.line_at`). `heading` is the path of headings
    that lead here. `kind` is ``prose | list | code | table | record``, whatever most of it is. `context` is
    what the encoder is given before the text: the path and, for rows of a table, the names of its columns.
    """

    text: str
    start_line: int
    end_line: int
    start_char: int
    end_char: int
    heading: tuple[str, ...] = ()
    kind: str = "prose"
    context: str = ""


def chunk_document(
    document: Document,
    count_tokens: Count,
    *,
    max_tokens: int = MAX_TOKENS,
    target_tokens: int = TARGET_TOKENS,
    min_tokens: int = MIN_TOKENS,
) -> list[Chunk]:
    """Divide a document into chunks, in order.

    `count_tokens` returns the encoder's tokens of each text with its prompt (`Encoder.count_tokens`); it is called a
    few times with many texts. Neither ``embedding_text(chunk)`` nor ``chunk.text`` is over `max_tokens`
    for any chunk, by a recount. Chunks are filled up to `target_tokens`; one block that is longer stays whole up to
    `max_tokens`. Tiny sections, of fewer than `min_tokens`, are joined with their neighbours.

    Raises InputError when the sizes leave no room for text.
    """
    counter = _Counter(count_tokens)
    least = counter.base + LEAST_ROOM
    if not least <= max_tokens or not 0 <= min_tokens <= target_tokens <= max_tokens:
        raise InputError(
            f"expected 0 <= min_tokens <= target_tokens <= max_tokens and max_tokens >= {least}, "
            f"got min_tokens={min_tokens}, target_tokens={target_tokens}, max_tokens={max_tokens}"
        )
    sizes = Sizes(max_tokens - counter.base, target_tokens - counter.base, min_tokens - counter.base)
    root = section_tree(document.blocks)
    _measure(document.text, root, counter, sizes)
    chunks = [chunk for group in groups_of(document.text, root, sizes) if (chunk := _chunk(document, group, sizes))]
    return _verified(document, chunks, counter, max_tokens)


def embedding_text(chunk: Chunk) -> str:
    """Return what the encoder is given for a chunk: its context and its text, without heading anchors.

    A heading that opens the chunk and ends its path already is not said twice.
    """
    first, _, rest = chunk.text.partition("\n")
    body = chunk.text
    if chunk.context and chunk.heading and rest and _HEADING_LINE.match(first):
        body = rest.lstrip("\n") if plain_title(first.lstrip("#")) == chunk.heading[-1] else body
    if "#" in body:
        body = "\n".join(strip_anchor(line) if line.startswith("#") else line for line in body.split("\n"))
    return f"{chunk.context}\n{body}" if chunk.context else body


# --- Counting ----------------------------------------------------------------------------------------------


class _Counter:
    """The caller's counter, less the tokens of an empty text, in batches of a bounded size."""

    def __init__(self, count: Count) -> None:
        self.count = count
        self.base = int(count([""])[0])

    def __call__(self, texts: Sequence[str]) -> list[int]:
        counts: list[int] = []
        batch: list[str] = []
        size = 0
        for text in texts:
            if batch and size + len(text) > _BATCH_CHARS:
                counts += self.count(batch)
                batch, size = [], 0
            batch.append(text)
            size += len(text)
        if batch:
            counts += self.count(batch)
        return [max(0, int(count) - self.base) for count in counts]


def _measure(text: str, root: Section, counter: _Counter, sizes: Sizes) -> None:
    """Give every section its pieces, with their tokens; blocks that are too long are cut."""
    sections = list(root.walk())
    _fit_contexts(text, sections, counter, sizes)
    blocks = [block for section in sections for block in section.blocks]
    short = [block for block in blocks if block.end - block.start <= sizes.chars]
    tokens = dict(zip(short, counter([text[block.start : block.end] for block in short]), strict=True))
    densities = _densities(text, [block for block in blocks if block not in tokens], counter)
    for section in sections:
        for block in section.blocks:
            room = sizes.most - sizes.context(section.path, block.context)[1]
            count = tokens.get(block)
            if count is not None and count <= room:
                section.pieces.append(Group(block.start, block.end, count, block.kind, section.path, block.context))
                continue
            if count is not None:
                density = [max(count, 1) / (block.end - block.start)]
            else:
                density = densities[block]
            section.pieces += _cut_block(text, block, section.path, density, sizes)


def _fit_contexts(text: str, sections: Sequence[Section], counter: _Counter, sizes: Sizes) -> None:
    """Keep of every context what takes at most a fourth of a chunk: all of it, its last heading, or nothing."""
    paths = {" > ".join(section.path): section.path[-1] for section in sections if section.path}
    names = {block.context: "" for section in sections for block in section.blocks if block.context}
    names |= {row: "" for section in sections for block in section.blocks if (row := _first_row(text, block))}
    wanted = {**names, **paths}
    tried = list(dict.fromkeys([*wanted, *wanted.values()]))
    tokens = dict(zip(tried, counter(tried), strict=True))
    for context, shorter in wanted.items():
        fits = next((part for part in (context, shorter) if part and tokens[part] <= sizes.most // _CONTEXT_SHARE), "")
        sizes.contexts[context] = fits, tokens[fits] if fits else 0


def _densities(text: str, blocks: Sequence[Block], counter: _Counter) -> dict[Block, list[float]]:
    """Return the tokens per character of the slabs of each long block; slabs not counted are like the one before."""
    slabs: list[tuple[Block, int]] = []
    for block in blocks:
        count = -(-(block.end - block.start) // _SLAB)
        step = -(-count // _SLABS)
        slabs += [(block, index) for index in range(0, count, step)]
    pieces = [text[b.start + i * _SLAB : min(b.end, b.start + (i + 1) * _SLAB)] for b, i in slabs]
    found: dict[Block, list[float]] = {block: [] for block in blocks}
    for (block, index), piece, tokens in zip(slabs, pieces, counter(pieces), strict=True):
        known = found[block]
        known.extend(known[-1:] * (index - len(known)))
        known.append(max(tokens, 1) / len(piece))
    return found


def _cut_block(
    text: str, block: Block, path: tuple[str, ...], density: Sequence[float], sizes: Sizes
) -> Iterator[Group]:
    names = block.context
    goal = max(sizes.target - sizes.context(path, names)[1], LEAST_ROOM // 2)

    def dense(at: int) -> float:
        return density[min((at - block.start) // _SLAB, len(density) - 1)]

    def length_at(at: int) -> int:
        length = min(sizes.chars, int(goal / dense(at)))
        return max(1, min(length, int(goal / dense(at + length))))  # the text may be getting denser

    for start, end in cut(text, block.start, block.end, block.kind, length_at):
        yield Group(start, end, int((end - start) * dense(start)) + 1, block.kind, path, names)
        names = names or _first_row(text, block)


def _first_row(text: str, block: Block) -> str:
    """Return the names of a table's columns."""
    return one_line(text[block.start : text.find("\n", block.start, block.end)], 300) if block.kind == "table" else ""


# --- Chunks ------------------------------------------------------------------------------------------------


def _chunk(document: Document, group: Group, sizes: Sizes) -> Chunk | None:
    kind = "prose" if group.kind == "heading" else group.kind
    return _slice(document, group.start, group.end, group.path, kind, sizes.context(group.path, group.names)[0])


def _slice(document: Document, start: int, end: int, path: tuple[str, ...], kind: str, context: str) -> Chunk | None:
    """Return the chunk of a span without the blank lines around it; None when all of it is blank."""
    span = document.text[start:end]
    body = span.strip()
    if not body:
        return None
    inner = len(span) - len(span.lstrip())
    line = span.rfind("\n", 0, inner) + 1
    # The first line keeps its indentation, unless that is no indentation but a waste.
    opens_line = line > 0 or start == 0 or document.text[start - 1] == "\n"
    first = start + (line if opens_line and inner - line <= 64 else inner)
    last = start + inner + len(body)
    text = document.text[first:last]
    return Chunk(text, document.line_at(first), document.line_at(last - 1), first, last, path, kind, context)


def _verified(document: Document, chunks: list[Chunk], counter: _Counter, max_tokens: int) -> list[Chunk]:
    """Count every chunk as it will be encoded and as it stands, and cut those that are too long until none is."""
    done: list[Chunk] = []
    pending = chunks
    while pending:
        encoded = [embedding_text(chunk) for chunk in pending]
        counts = counter(encoded)
        # A heading and its anchor may take more tokens in the text than the path that stands for them.
        other = [at for at, chunk in enumerate(pending) if chunk.text != encoded[at]]
        for at, tokens in zip(other, counter([pending[at].text for at in other]), strict=True):
            counts[at] = max(counts[at], tokens)
        again: list[Chunk] = []
        for chunk, tokens in zip(pending, counts, strict=True):
            if tokens + counter.base <= max_tokens:
                done.append(chunk)
            elif len(chunk.text) > 1:
                again += _halved(document, chunk, (max_tokens - counter.base) / tokens)
            elif chunk.context:
                again.append(replace(chunk, context=""))
            else:
                raise InputError(f"max_tokens={max_tokens} does not hold the character {chunk.text!r}, {tokens} tokens")
        pending = again
    return sorted(done, key=lambda chunk: chunk.start_char)


def _halved(document: Document, chunk: Chunk, share: float) -> Iterator[Chunk]:
    """Yield the parts of a chunk, each of which should have this share of its tokens, and is shorter than it."""
    length = max(1, min(len(chunk.text) - 1, int(len(chunk.text) * share * 0.85)))
    for start, end in cut(document.text, chunk.start_char, chunk.end_char, chunk.kind, lambda _: length):
        if part := _slice(document, start, end, chunk.heading, chunk.kind, chunk.context):
            yield part
