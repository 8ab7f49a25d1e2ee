"""What a dropped item would have taken, counted when somebody asks: a build and its record pay nothing for it.

    size_of = sizes(built)
    size_of(built.dropped[0])       # 86, None for what has no size: a source that failed, a text that was purged

The item is made into the piece that it would have been, by the template of the build, from its trace.
"""

from __future__ import annotations

from collections.abc import Callable

from ctx_vector.audit_decode import restored_counter
from ctx_vector.audit_tables import PURGED
from ctx_vector.built import BuiltContext, Decision
from ctx_vector.errors import CtxVectorError, InputError
from ctx_vector.layout import Layout
from ctx_vector.packets import Candidate
from ctx_vector.stages import TokenCounter
from ctx_vector.structure import Template, slot_of


def sizes(built: BuiltContext, counter: TokenCounter | None = None) -> Callable[[Decision], int | None]:
    """Return what tells the tokens that a decision's item takes in the text, whole and with what joins it to others.

    For what is kept these are its tokens as they are. `counter` is the build's tokenizer; by default it is found by its
    name, and when it has none, no size is known.
    """
    trace = built.trace
    if counter is None:
        try:
            counter = restored_counter(trace.facts)
        except (InputError, AttributeError, LookupError):  # an object of the caller's, or a context without its trace
            return lambda item: item.tokens if item.kept else None
    titles: dict[str, str] | None = {} if "layers" in trace.given else None
    template = Template(trace.config, counter, trace.query, trace.roles, titles)
    candidates = {id(item.packet): item for item in trace.gathered.candidates}
    layouts: dict[str, Layout] = {}
    said = {id(item.packet): item.message for item in trace.said}

    def size(item: Decision) -> int | None:
        if item.kept:
            return item.tokens
        packet = item.packet
        if not packet.content or PURGED in packet.content:
            return None
        candidate = candidates.get(id(packet)) or Candidate(packet, item.source, message=said.get(id(packet)))
        try:
            section, group = slot_of(candidate)
            body = template.body(candidate)
            piece = template.piece(candidate, (section, group), (), body)
            if section not in layouts:
                layouts[section] = template.layout([section])
            joiner = layouts[section].joiner(section, group, piece) if body else 0
            return (piece.tokens or piece.message_tokens) + joiner
        except CtxVectorError:  # what was not even looked at by the build may make no sense
            return None

    return size
