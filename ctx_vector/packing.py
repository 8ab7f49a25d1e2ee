"""Blocks packed into groups of a wished size, section by section: what the chunker decides once it has counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ctx_vector.documents import Block
from ctx_vector.text_cut import WINDOW, content_hash

LEAST_ROOM = 24  # the least number of tokens of text that a chunk must be able to hold
CHARS_PER_TOKEN = 10  # more than this is no text the encoder sees: blanks, or characters it does not know


@dataclass(slots=True)
class Sizes:
    """Numbers of tokens of text alone, without those of the prompt; and the contexts of all paths."""

    most: int
    target: int
    least: int
    contexts: dict[str, tuple[str, int]] = field(default_factory=dict)  # context -> (what fits of it, its tokens)

    @property
    def chars(self) -> int:
        """The most characters of a chunk."""
        return self.most * CHARS_PER_TOKEN

    def context(self, path: tuple[str, ...], names: str = "") -> tuple[str, int]:
        """Return what is said before a text, and its tokens: at most half of a chunk."""
        found = [self.contexts[part] for part in (" > ".join(path), names) if part]
        return "\n".join(text for text, _ in found if text), sum(tokens for _, tokens in found)


@dataclass(slots=True)
class Group:
    """Neighbouring blocks or parts of one, to become a chunk or a part of one."""

    start: int
    end: int
    tokens: int
    kind: str
    path: tuple[str, ...]
    names: str = ""


@dataclass(slots=True)
class Section:
    """A heading with what stands under it, up to the next heading of its level or above."""

    path: tuple[str, ...]
    level: int
    blocks: list[Block] = field(default_factory=list)
    children: list[Section] = field(default_factory=list)
    pieces: list[Group] = field(default_factory=list)

    def walk(self) -> Iterator[Section]:
        """Yield this section and all below it, in order."""
        yield self
        for child in self.children:
            yield from child.walk()


def section_tree(blocks: Iterable[Block]) -> Section:
    """Return the tree of sections; its depth is at most seven, as levels are 1 to 6."""
    root = Section((), 0)
    open_sections = [root]
    for block in blocks:
        if block.kind == "heading":
            while open_sections[-1].level >= block.level:
                open_sections.pop()
            parent = open_sections[-1]
            section = Section((*parent.path, block.title) if block.title else parent.path, block.level)
            parent.children.append(section)
            open_sections.append(section)
        if block.end > block.start:
            open_sections[-1].blocks.append(block)
    return root


def groups_of(text: str, section: Section, sizes: Sizes) -> list[Group]:
    """Return the groups of a section and all below it.

    Sections of level 1 and 2 are joined with their neighbours only when all of these are tiny; deeper ones, such as
    the functions of a file, up to the target.
    """
    own = _packed(text, section.pieces, section, sizes)
    out: list[Group] = []
    run: list[Group] = own if len(own) == 1 and section.children and section.children[0].level > 2 else []
    own = [] if run else own
    for child in section.children:
        groups = groups_of(text, child, sizes)
        if len(groups) == 1 and (child.level > 2 or groups[0].tokens < sizes.least):
            run = [*run, groups[0]]
            continue
        out += _packed(text, run, section, sizes)
        run = []
        out += groups
    out += _packed(text, run, section, sizes)
    if len(own) == 1 and out:
        bare = all(piece.kind == "heading" for piece in section.pieces)
        limit = sizes.most - sizes.context(out[0].path)[1] if bare else sizes.target
        both = own[0].tokens + out[0].tokens
        if (bare or own[0].tokens < sizes.least) and both <= limit and out[0].end - own[0].start <= sizes.chars:
            # What little is said before the first subsection is best found as a part of it.
            out[0] = replace(_joined([own[0], out[0]]), path=out[0].path)
            own = []
    return own + out


def _packed(text: str, pieces: Sequence[Group], section: Section, sizes: Sizes) -> list[Group]:
    """Join neighbouring pieces up to the target.

    Among the boundaries in the last part of a full group the best one is taken: not after a heading or a colon,
    not inside a list, else by what follows it. So the same text is divided alike wherever it stands.
    """
    groups: list[Group] = []
    context = sizes.context(section.path)[1]
    most = sizes.most - context
    first = 0
    while first < len(pieces):
        goal = sizes.least if pieces[first].kind == "record" else max(sizes.target - context, LEAST_ROOM)
        stop, tokens = first, 0
        sums: list[int] = []
        while stop < len(pieces):
            tokens += pieces[stop].tokens
            limit = goal if not sums or sums[-1] >= sizes.least else most
            if sums and (tokens > limit or pieces[stop].end - pieces[first].start > sizes.chars):
                break
            sums.append(tokens)
            stop += 1
        if stop < len(pieces):
            places = [first + n for n, total in enumerate(sums, 1) if total >= WINDOW * goal] or [stop]
            stop = min(
                places,
                key=lambda at: (_cost(text, pieces[at - 1], pieces[at]), content_hash(text, pieces[at].start), at),
            )
        groups.append(_joined(pieces[first:stop]))
        first = stop
    if len(groups) > 1 and groups[-1].tokens < sizes.least:
        before, last = groups[-2:]
        if before.tokens + last.tokens <= most and last.end - before.start <= sizes.chars:
            groups[-2:] = [_joined([before, last])]
    return groups


def _cost(text: str, before: Group, after: Group) -> tuple[int, int]:
    """Return how bad it is to part two pieces: 0 to 2, then a number that depends on what follows."""
    last = text[max(before.start, before.end - 8) : before.end].rstrip()
    if before.kind == "heading" or last.endswith((":", "：")):  # it introduces the code, list or table that follows
        bad = 2
    else:
        bad = int(before.kind == after.kind == "list")
    return bad, content_hash(text, after.start)


def _joined(groups: Sequence[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    path = groups[0].path
    weights: dict[str, int] = {}
    for group in groups:
        same = next((n for n, (a, b) in enumerate(zip(path, group.path, strict=False)) if a != b), None)
        path = path[: min(len(path), len(group.path)) if same is None else same]
        if group.kind != "heading":
            weights[group.kind] = weights.get(group.kind, 0) + group.tokens
    kind = max(weights, key=lambda name: weights[name]) if weights else "heading"
    tokens = sum(group.tokens for group in groups)
    return Group(groups[0].start, groups[-1].end, tokens, kind, path, groups[0].names)
