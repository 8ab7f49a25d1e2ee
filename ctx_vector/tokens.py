"""Exact token counts, offline.

`TokenCounter(tokenizer)` counts by any of the tokenizers of tokenizer_kinds.py. Lone surrogates count as U+FFFD.
Nothing is loaded before the first count.

**Additivity.** BPE counts do not add over concatenation in general, but those of cl100k_base do exactly where the
first text ends in a line feed and the second has no CR or LF in its leading white space: its pre-tokenizer then always
splits at that point. `additive` tells; tests/test_tokens.py holds it over a million pairs.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from numbers import Real
from typing import Any, Final

from ctx_vector.errors import ConfigError, InputError
from ctx_vector.images import Formula, image_formula, image_parts, image_tokens, is_image_part, openai_tiles
from ctx_vector.lru import LRU
from ctx_vector.rules import MOST_TOKENS, shown
from ctx_vector.tokenizer_kinds import DEFAULT_TOKENIZER, Cl100k, Encode, find_tokenizer
from ctx_vector.values import clean_text, message_text

# blanks as the tokenizer sees them (Python's \s has U+001C-1F too); the look-behind keeps the search linear
_BLANKS: Final = "\t\v\f \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WIDE_GAP = re.compile(f"(?<![{_BLANKS}])[{_BLANKS}]{{50000,}}+(?=[^\r\n])")
_SAFE_LENGTH: Final = 49_000  # of a text that cannot hold such a gap
_LONG_KEY: Final = 2_000
_PARTS: Final = ("name", "additive", "count", "count_batch", "count_messages", "truncate")
_MOST_CUT: Final = 1_000
_MOST_BREAKS: Final = 1_000
_LONGEST_END: Final = 16  # characters
_NEAR: Final = 32  # characters: in a text with blanks between words, one is as near
# joiners, half-width voicing marks, the vowels and finals of conjoining Hangul, skin tones, tags
_EXTENDERS = re.compile(
    "[\u200c\u200d\uff9e\uff9f\u1160-\u11ff\ud7b0-\ud7ff\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
)
_FLAG_LETTER = re.compile("[\U0001f1e6-\U0001f1ff]")

_PROBES: Final = (
    "The quick brown fox jumps over the lazy dog, doesn't it? 1234567890 3.14159 internationalisation",
    "如何优化Pandas的内存占用？数据框往往需要数倍于源文件的内存。",
    "def f(x: int) -> dict[str, float]:\n    return {'a': x ** 2, \"b\": [None, True]}\n\n\n\t# done\r\n",
    "Straße naïve Ελληνικά русский עברית العربية हिन्दी ไทย 日本語カタカナ 한국어 🙂👍🏽 e\u0301 \u200b",
    "https://example.org/a_b?c=d&e=%20#f  <|endoftext|>  [Task]\n---\nuser: x",
)


class TokenCounter:
    """Counts tokens of one tokenizer, with an LRU cache of `cache_size` texts. Safe to share between threads.

    `message_overhead` tokens are charged for each chat message and `reply_overhead` once, as the OpenAI chat format
    does. Images in messages cost what `images` says, the name of a published formula or a function (images.py). Of a
    long text only a digest is remembered. Raises InputError for an unknown tokenizer or formula, and ModelError at the
    first count when its file cannot be loaded.
    """

    def __init__(
        self,
        tokenizer: str | Callable[[str], Any] = DEFAULT_TOKENIZER,
        cache_size: int = 10_000,
        *,
        message_overhead: int = 3,
        reply_overhead: int = 3,
        images: str | Formula = "openai_tiles",
    ) -> None:
        if cache_size < 0:
            raise InputError(f"cache_size: expected an integer >= 0, got {cache_size}")
        self.message_overhead = message_overhead
        self.reply_overhead = reply_overhead
        self.images = image_formula(images)
        self.additive = isinstance(tokenizer, str) and tokenizer == DEFAULT_TOKENIZER
        self._cache_size = cache_size
        self._cache: OrderedDict[str | bytes, int] = OrderedDict()
        self._breaks = {"": 1}  # by the end of a line, of which there are few
        self._cut: LRU[str, array[int]] = LRU(_MOST_CUT)  # the tokens of texts that were truncated last
        self._lock = threading.Lock()
        self._encode: Encode | None = None
        self.name, self._load = find_tokenizer(tokenizer)
        if self.images is not openai_tiles:  # no name to make it from again: a record of builds has to ask for it
            named = images if isinstance(images, str) else getattr(images, "__qualname__", type(images).__name__)
            self.name += f", images by {named}"

    def _loaded(self) -> Encode:
        encode = self._encode
        if encode is None:
            with self._lock:
                encode = self._encode = self._encode or self._load()
        return encode

    def _count_raw(self, text: str) -> int:
        result: Any = self._loaded()(text)
        if isinstance(result, Mapping):  # of transformers, whose length is that of its keys
            result = result.get("input_ids")
        if isinstance(result, Sized):
            return len(result)
        if isinstance(result, Real) and 0 <= (number := float(result)) <= MOST_TOKENS:
            return int(number)
        raise InputError(f"tokenizer {self.name}: expected a list of tokens or their number, got {shown(result)}")

    def _count_now(self, text: str) -> int:
        if not text:
            return 0
        text = clean_text(text)
        if not self.additive or len(text) <= _SAFE_LENGTH:
            return self._count_raw(text)
        total, start = 0, 0
        for match in _WIDE_GAP.finditer(text):
            # the tokenizer's pattern overflows its stack on such a gap; it cuts before the gap and before the gap's
            # last blank, and so do we
            gap, end = match.start(), match.end() - 1
            total += self._count_raw(text[start:gap]) + self._count_raw(text[gap:end])
            start = end
        return total + self._count_raw(text[start:])

    def count(self, text: str) -> int:
        """Return the exact number of tokens of `text`.

        >>> TokenCounter().count("hello <|endoftext|>")
        7
        """
        cache = self._cache
        key: str | bytes = text
        try:
            if len(text) > _LONG_KEY:
                key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            with self._lock:
                found = cache.get(key)
                if found is not None:
                    cache.move_to_end(key)
                    return found
        except (TypeError, AttributeError):
            raise InputError(f"count: expected a str, got {shown(text)}") from None
        if not isinstance(text, str):
            raise InputError(f"count: expected a str, got {shown(text)}")
        tokens = self._count_lines(text) if key is text and text.endswith("\n") else self._count_now(text)
        self._remember(key, tokens)
        return tokens

    def _remember(self, key: str | bytes, tokens: int) -> None:
        with self._lock:
            self._cache[key] = tokens
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)

    def _count_lines(self, text: str) -> int:
        """Count lines as the first one, the last one, and those between: label, text and marker of an item, of which
        the text is often known.
        """
        if not self.additive:
            return self._count_now(text)
        first, last = text.find("\n") + 1, text.rfind("\n", 0, -1) + 1
        parts = [text[:first], text[first:last], text[last:]] if last else [text]
        if any(part[:1].isspace() for part in parts):  # where there may be a line break, counts may not add
            return self._count_now(text)
        total = 0
        for part in filter(None, parts):
            total += self.count(part[:-1]) + self._line_break(ending(part[:-1]))
        return total

    def _line_break(self, end: str) -> int:
        """Return what a line break costs after the marks that a text ends in."""
        cost = self._breaks.get(end)
        if cost is None:
            cost = self._count_now(end + "\n") - self._count_now(end)
            if len(self._breaks) < _MOST_BREAKS and len(end) <= _LONGEST_END:
                self._breaks[end] = cost
        return cost

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """Return the counts of many texts, each equal to its single `count`."""
        known = self._cache
        try:
            with self._lock:  # once for all that are known; what is not moved up here is so by `count`
                found = [known.get(text) if len(text) <= _LONG_KEY else None for text in texts]
        except TypeError:
            return [self.count(text) for text in texts]  # which says what is no text
        return [self.count(text) if tokens is None else tokens for text, tokens in zip(texts, found, strict=True)]

    def count_messages(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Return the tokens of chat messages: contents, images, names, tool calls, and the framing of each message."""
        total = self.reply_overhead
        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
            raise InputError(f"count_messages: expected a sequence of messages, got {shown(messages)}")
        for message in messages:
            total += self.count_message(message)
        return total

    def count_message(self, message: Mapping[str, Any]) -> int:
        """Return the tokens of one chat message with its own framing."""
        try:
            content = message.get("content")
        except AttributeError:
            raise InputError(f"message: expected a mapping with role and content, got {shown(message)}") from None
        tokens = self.message_overhead
        if not isinstance(content, str):
            if images := image_parts(content):
                tokens += sum(image_tokens(part, formula=self.images) for part in images)
                content = [part for part in content or () if not is_image_part(part)]
            content = message_text(content)
        tokens += self.count(content)
        if message.get("name"):
            tokens += self.count(str(message["name"]))
        if message.get("tool_calls"):
            tokens += self.count(_compact_json(message["tool_calls"]))
        if message.get("tool_call_id"):
            tokens += self.count(str(message["tool_call_id"]))
        return tokens

    def truncate(self, text: str, max_tokens: int) -> str:
        """Return the longest prefix found that has at most `max_tokens` tokens and never splits a character.

        A character with its combining marks, variation selectors and joiners stays whole, and so does a flag.
        """
        if max_tokens <= 0 or not text:
            return ""
        text = clean_text(text)
        low, low_count, guess, total = self._measured(text, max_tokens)
        if total <= max_tokens:
            return text
        # Bisection, every other step by interpolation: a prefix's count mostly grows in proportion to its length. Where
        # the tokenizer tells how far its first tokens reach, that is tried first, and mostly right.
        start, start_count, high, high_count = low, low_count, len(text), total
        halve = False
        while high - low > 1 and low_count < max_tokens:
            share = 0.5 if halve else (max_tokens - low_count) / max(1, high_count - low_count)
            halve = not halve and not guess
            middle = guess or min(high - 1, max(low + 1, low + int((high - low) * share)))
            tokens = start_count + self._count_now(text[start:middle])
            if guess and middle <= _LONG_KEY:  # what is counted next, if it fits
                self._remember(text[:middle], tokens)
            guess = 0
            if tokens <= max_tokens:
                low, low_count = middle, tokens
            else:
                high, high_count = middle, tokens
        cut = text[: _whole_characters(text, low)]
        while cut and len(cut) < low and self._count_now(cut) > max_tokens:
            cut = text[: _whole_characters(text, len(cut) - 1)]
        return cut

    def _measured(self, text: str, limit: int) -> tuple[int, int, int, int]:
        """Return the end of a word not far before the first `limit` tokens end, the tokens up to there, how many
        characters the first `limit` hold, fewer than all, and the tokens of the text.

        All but the last are 0 where the tokenizer does not tell.
        """
        encode = self._loaded() if self.additive and len(text) <= _SAFE_LENGTH else None
        if not isinstance(encode, Cl100k):
            return 0, 0, 0, self.count(text)
        tokens = self._cut.get(text)
        if tokens is None:
            tokens = array("I", encode(text))
            if len(text) <= _LONG_KEY:  # what did not fit once, often does not fit the next time
                self._cut.put({text: tokens})
        first = tokens[:limit].tolist()
        if len(first) == len(tokens):
            return 0, 0, 0, len(tokens)
        held = encode.held(first)
        guess = min(len(held.decode("utf-8", "ignore")), len(text) - 1)
        # no token of cl100k reaches over a blank that follows something else: there, counts add
        end = text.rfind(" ", max(1, guess - _NEAR), guess + 1)
        if end < 0 or text[end - 1].isspace():
            return 0, 0, guess, len(tokens)
        count, rest = len(first), len(held) - len(text[:end].encode())
        while rest > 0:
            count -= 1
            rest -= len(encode.held(first[count : count + 1]))
        if rest < 0:
            return 0, 0, guess, len(tokens)
        if end <= _LONG_KEY:
            self._remember(text[:end], count)
        return end, count, guess, len(tokens)


def as_counter(given: Any) -> Any:
    """Return a counter as it is, or one of a tokenizer: its name, or a function of a text.

    Raises ConfigError for what is neither, InputError for an unknown name.
    """
    lacks = [name for name in _PARTS if not hasattr(given, name)]
    if not lacks:
        return given
    if not callable(given) and not isinstance(given, str):
        raise ConfigError(
            [
                f"counter: expected a tokenizer, or an object with {', '.join(_PARTS)}, got one without "
                f"{', '.join(lacks)}: {given!r:.80}"
            ]
        )
    return TokenCounter(given)


def ending(text: str) -> str:
    """Return the end of a text that decides what a line break after it costs: its last marks, without the word before.

    cl100k never joins a word or a number with what follows it; marks it joins with the blank before and the line
    breaks after.
    """
    at = len(text.rstrip())
    while at and not (text[at - 1].isalnum() or text[at - 1].isspace()):
        at -= 1
    return text[at - 1 :] if at and text[at - 1] == " " else text[at:]


def framing(counter: Any) -> tuple[int, int]:
    """Return what a counter charges for each chat message besides its text, and once for the reply."""
    reply = counter.count_messages([])
    return counter.count_messages([{"role": "user", "content": ""}]) - reply, reply


def tokenizer_fingerprint(counter: Any) -> str:
    """Return a digest of how a counter counts a few texts of every kind (16 hex digits): equal for equal tokenizers."""
    counts = [*counter.count_batch(_PROBES), *framing(counter)]
    if (images := getattr(counter, "images", None)) is not None:
        counts += [images(*size) for size in ((None, None, "auto"), (1024, 1024, "high"), (300, 2000, "low"))]
    return hashlib.blake2b(json.dumps(counts).encode(), digest_size=8).hexdigest()


def _compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _whole_characters(text: str, end: int) -> int:
    """Return the largest cut <= end that leaves no mark, selector, joined emoji or half of a flag cut off its base."""
    start = max(0, end - 64)  # a run of marks longer than this is noise, and may be cut
    cut = end
    while start < cut < len(text) and _joined(text, cut):
        cut -= 1
    return end if cut == start and start > 0 else cut


def _joined(text: str, position: int) -> bool:
    """Tell whether the character at `position` belongs to the one before it."""
    import unicodedata

    char = text[position]
    if char.isascii():
        return char == "\n" and text[position - 1] == "\r"
    if unicodedata.category(char) in ("Mn", "Me", "Mc") or _EXTENDERS.match(char) or text[position - 1] == "\u200d":
        return True
    if _FLAG_LETTER.match(char):  # flags are pairs, counted from the start of their run
        first = position
        while first > 0 and _FLAG_LETTER.match(text[first - 1]):
            first -= 1
        return (position - first) % 2 == 1
    return False
