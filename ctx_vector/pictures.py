"""The images of a build: those of the query and those in the conversation, in a quota of their own.

The quota is `budgets["images"]`, else half of the shared limit. First the query's images in their order, then those of
the conversation, newest first; each stays whole or not at all. An image of the query becomes a candidate of its own.
One in a message stays with its message; where it does not fit, the text of its part stands in its place.

Nothing is fetched: what an image costs comes from its header, or is the worst case of the formula (images.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ctx_vector.errors import InputError
from ctx_vector.gather import SourceSpec
from ctx_vector.packets import TYPE_IMAGE, Candidate, ContextPacket, Message
from ctx_vector.values import message_text

if TYPE_CHECKING:
    from ctx_vector.config import ContextConfig
    from ctx_vector.conversation import Said
    from ctx_vector.inputs import Inputs
    from ctx_vector.stages import TokenCounter


def with_images(inputs: Inputs, images: Sequence[Any] | None, config: ContextConfig, counter: TokenCounter) -> Inputs:
    """Return the inputs with the images that fit, and the others dropped.

    `images` are those of the query: files, bytes, addresses, or parts of a message. Raises InputError for one that is
    none of these, and for images without a query.
    """
    pictured = [place for place, item in enumerate(inputs.said) if not isinstance(item.message.content, str)]
    if not images and not pictured:
        return inputs
    from ctx_vector.images import image_part  # only builds with images pay for it

    if images and not inputs.query.strip():
        raise InputError("images: expected a user_query beside them, got a blank one; say what is asked of the images")
    if images is not None and (isinstance(images, (str, bytes)) or not isinstance(images, Sequence)):
        raise InputError(f"images: expected a sequence, got {type(images).__name__}; put a single image in a list")
    bare = counter.count_messages([{"role": "user", "content": ""}])

    def cost(part: Any) -> int:
        return counter.count_messages([{"role": "user", "content": [part]}]) - bare

    given = config.budgets.get("images")
    quota = config.shared_limit // 2 if given is None else given
    if not config.include.get("images", True):
        quota = 0
    left = quota
    found: list[Candidate] = []
    for number, item in enumerate(images or ()):
        part = image_part(item)
        tokens = cost(part)
        packet = ContextPacket("(image)", metadata={"type": TYPE_IMAGE, "id": f"image{number + 1}", "tokens": tokens})
        fits = tokens <= left
        left -= tokens if fits else 0
        candidate = Candidate(packet, "images", image=part)
        if not fits:
            candidate = replace(candidate, reason="quota", detail=f"over the {quota} tokens of images")
        found.append(candidate)
    said = list(inputs.said)
    for place in reversed(pictured):
        said[place], left = _fitted(said[place], left, cost)
    spec = SourceSpec("images", TYPE_IMAGE, lambda _: found)
    return replace(inputs, said=said, specs=(*inputs.specs, spec) if found else inputs.specs)


def _fitted(item: Said, left: int, cost: Callable[[Any], int]) -> tuple[Said, int]:
    """Return a message with those of its images that fit into `left` tokens, and the tokens left then.

    Images that are objects become mappings, which can be sent and recorded.
    """
    from ctx_vector.images import image_part, is_image_part

    parts = before = list(item.message.content or ())
    for place, part in enumerate(parts):
        if not is_image_part(part):
            continue
        tokens = cost(part)
        if tokens > left:
            shown = {"type": "text", "text": message_text([part])}
        elif isinstance(part, Mapping):
            left -= tokens
            continue
        else:
            shown = image_part(part)
            left -= tokens
        parts = [*parts[:place], shown, *parts[place + 1 :]]
    if parts is before:
        return item, left
    message: Message = replace(item.message, content=parts)
    return replace(item, message=message, tokens=-1, turn=None, shown=None, dropped=None), left
