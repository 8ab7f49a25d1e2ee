"""Promise 1 and 2: nothing is ever over the budget, and what must not be cut is always there."""

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pipeline_help import (
    FRAGMENTS,
    LIMIT_REASONS,
    NOW,
    STEADY,
    build,
    chaos,
    check,
    message_tokens,
    plain,
    short_chaos,
    tokens,
)

from ctx_vector import BudgetError, ContextBuilder, ContextConfig, ContextPacket
from ctx_vector.tokenizer_kinds import estimate_tokens

PLENTY = 1_000_000
TYPES = ["knowledge", "rag_result", "agent_output", "memory", "general", "task_state", "conversation_history"]


@st.composite
def packets(draw):
    metadata = {"type": draw(st.sampled_from(TYPES))}
    if draw(st.integers(0, 5)) == 0:
        metadata = {"section": draw(st.sampled_from(["Notes", "额外", "[x]"]))}
    if draw(st.integers(0, 4)) == 0:
        metadata["cite"] = draw(st.sampled_from(["a.md:1-3", "目录/文件.md:7", "[x]\n[Task]"]))
    when = draw(st.one_of(st.none(), st.integers(-5, 400).map(lambda days: NOW - timedelta(days=days))))
    return ContextPacket(draw(chaos), when, None, draw(st.sampled_from([None, 0.0, 0.5, 0.9, 1.0])), metadata)


@st.composite
def turns(draw):
    said = [{"role": "user", "content": draw(short_chaos)}]
    if draw(st.integers(0, 2)) == 0:
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q": "内存"}'}}
        said.append({"role": "assistant", "content": "", "tool_calls": [call]})
        said.append({"role": "tool", "content": draw(chaos), "tool_call_id": "c1"})
    if draw(st.booleans()):
        said.append({"role": draw(st.sampled_from(["assistant", "planner"])), "content": draw(short_chaos)})
    return said


def requests(least=0):
    return st.fixed_dictionaries(
        {
            "query": short_chaos,
            "conversation_history": st.lists(turns(), max_size=4).map(lambda made: [m for turn in made for m in turn]),
            "system_instructions": st.one_of(st.none(), short_chaos),
            "custom_packets": st.lists(packets(), min_size=least, max_size=6),
            "documents": st.lists(chaos, max_size=4),
            "state": st.one_of(st.none(), st.just({"step": 2, "[x]\ny": "- --"}), short_chaos),
        }
    )


configs = st.fixed_dictionaries(
    {
        "reserve_ratio": st.sampled_from([0, 0, 0.2, 0.5, 1]),
        "fill": st.sampled_from(["skip", "skip", "stop"]),
        "enable_compression": st.sampled_from([True, True, False]),
        "messages_style": st.sampled_from(["single", "split"]),
        "evidence_style": st.sampled_from(["plain", "numbered"]),
        "citations": st.booleans(),
        "history_limit": st.sampled_from([0, 5, 50]),
        "history_relevance": st.sampled_from([0.6, None]),
        "min_relevance": st.sampled_from([0, 0.1]),
        "locale": st.sampled_from(["auto", "zh", "en"]),
        "reminder": st.sampled_from([None, "Only JSON.\n[Task]"]),
        "output_instructions": st.sampled_from([None, "", "Answer in one line."]),
    }
)


def smallest(builder, request):
    """The smallest legal budget, by the error's own word, proven on both sides."""
    try:
        built = builder.assemble(max_tokens=1, now=NOW, **request)
    except BudgetError as error:
        with pytest.raises(BudgetError):
            builder.assemble(max_tokens=error.needed - 1, now=NOW, **request)
        return error.needed
    return built.budget.total_limit


def renamed(request):
    return {("user_query" if name == "query" else name): value for name, value in request.items()}


@settings(STEADY, max_examples=250)
@given(requests(), configs, st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_text_and_messages_never_exceed_any_legal_budget(request, config, places):
    request = renamed(request)
    builder = ContextBuilder(config=plain(max_tokens=PLENTY, **config))
    most = builder.assemble(now=NOW, **request)
    check(most, PLENTY)
    needed = smallest(builder, request)
    top = most.budget.total_used
    budgets = {needed, needed + 1, top, max(needed, top - 1)}
    budgets |= {int(needed + place * max(0, 1.3 * top - needed)) for place in places}
    for limit in sorted(budgets):
        check(builder.assemble(max_tokens=limit, now=NOW, **request), limit)


@pytest.mark.slow
@settings(STEADY, max_examples=3000)
@given(requests(), configs, st.lists(st.floats(0, 1), min_size=8, max_size=8))
def test_text_and_messages_never_exceed_any_legal_budget_at_length(request, config, places):
    test_text_and_messages_never_exceed_any_legal_budget.hypothesis.inner_test(request, config, places)


# -- N and N - 1 ------------------------------------------------------------------------------------------------------


def cut_or_dropped(built):
    """The candidates that the budget touched; all messages of the history are one turn at most."""
    cut = [item for item in built.kept if item.action != "full"]
    gone = [item for item in built.dropped if item.reason not in LIMIT_REASONS]
    return cut + gone


def hold_n(request, config):
    if config["reserve_ratio"] == 1:
        return  # there is no N: nothing may be shared out at all
    builder = ContextBuilder(config=plain(max_tokens=PLENTY, **config))
    most = builder.assemble(now=NOW, **request)
    assert not cut_or_dropped(most)
    if not config["reserve_ratio"]:
        n = most.budget.total_used
        assert n == max(tokens(most.text), message_tokens(most.messages))
    else:
        low, n = 1, PLENTY
        while low < n:  # the promise is about the least one, so look for it
            middle = (low + n) // 2
            try:
                fits = not cut_or_dropped(builder.assemble(now=NOW, max_tokens=middle, **request))
            except BudgetError:
                fits = False
            low, n = (low, middle) if fits else (middle + 1, n)
    at_n = builder.assemble(now=NOW, max_tokens=n, **request)
    check(at_n, n)
    assert not cut_or_dropped(at_n)
    assert (at_n.text, at_n.messages) == (most.text, most.messages)
    if config["fill"] != "skip" or n == 1:
        return
    try:
        below = builder.assemble(now=NOW, max_tokens=n - 1, **request)
    except BudgetError:
        assert all(item.section == "Role & Policies" for item in most.kept)
        return
    check(below, n - 1)
    changed = cut_or_dropped(below)
    turn = [item for item in changed if item.source == "history"]
    assert len(changed) - len(turn) + bool(turn) == 1, [(item.source, item.action, item.reason) for item in changed]


@settings(STEADY, max_examples=250)
@given(requests(), configs)
def test_at_n_everything_is_kept_and_at_n_minus_1_one_decision_changes(request, config):
    hold_n(renamed(request), config)


@pytest.mark.slow
@settings(STEADY, max_examples=3000)
@given(requests(), configs)
def test_n_at_length(request, config):
    hold_n(renamed(request), config)


@pytest.mark.parametrize("fill", ["skip", "stop"])
@pytest.mark.parametrize("again", ["x y z w " * 40, "\n X  y z w" + " x y z w" * 39], ids=["same", "folded"])
def test_a_duplicate_is_one_whatever_room_there_is(fill, again):
    """Else it would stop a greedy choice, or be dropped for another reason as soon as there is less room."""
    request = {"user_query": "", "documents": ["a b.", "x y z w " * 40, again]}
    hold_n(request, {"reserve_ratio": 0, "fill": fill, "min_relevance": 0})


def test_outer_blank_lines_do_not_make_a_packet_look_long():
    request = {"user_query": "", "custom_packets": [ContextPacket("\n" * 300_000 + "x" + "\r\n" * 300_000)]}
    config = {"reserve_ratio": 0, "fill": "skip"}
    hold_n(request, config)


def test_a_text_of_the_longest_tokens_fits_at_n():
    blanks = "x" + " " * 128 * 20 + "y"
    hold_n({"user_query": "", "documents": [blanks, "//" + "-" * 110]}, {"reserve_ratio": 0, "fill": "skip"})


# -- packets of every size --------------------------------------------------------------------------------------------

MEGABYTE = {
    "english": "The quick brown fox jumps over the lazy dog. ",
    "chinese": "使用适当的数据类型可以减少内存占用。",
    "code": "def f(x):\n    return [x, {'a': 1}]\n\n",
    "json": '{"id": 12345, "名": ["a", null, true]},\n',
    "emoji": "👩‍👩‍👧😀🇩🇪",
    "headers": "[Task]\n---\nuser: hi\n",
    "one line of marks": "!?!-",
    "blanks": " ",
    "line breaks": "x\n\n\n",
    "special": "<|endoftext|>",
}


@pytest.mark.parametrize("script", MEGABYTE)
def test_a_packet_of_a_megabyte(script):
    unit = MEGABYTE[script]
    large = unit * (1_000_000 // len(unit.encode()))
    for config in ({}, {"evidence_style": "numbered", "enable_compression": False}):
        built = build("fox 数据", documents=[large, "small one"], config={"max_tokens": 700, **config})
        check(built, 700)
        assert any(item.packet.content == "small one" and item.action == "full" for item in built.kept)
        fates = {item.packet.content[:9]: item for item in (*built.kept, *built.dropped)}
        fate = fates[large[:9]]
        if not large.strip():
            assert fate.reason == "empty"
        elif config:
            assert fate.reason == "oversize"
        else:
            assert fate.action in ("extracted", "truncated") and fate.reason == "budget"


@pytest.mark.parametrize("character", ["a", "字", "😀", "\x00", "[", "-", "\ud800", "\u3164", "ﷺ"])
def test_a_packet_of_one_character(character):
    built = build("", documents=[character], custom_packets=[character], config={"max_tokens": 200})
    check(built, 200)
    assert [item.action for item in built.kept] == ["full", "full"]


# -- the least that is legal ------------------------------------------------------------------------------------------


def test_the_budget_error_says_what_is_needed_and_by_which_part():
    system = "Never give legal advice. " * 40
    with pytest.raises(BudgetError) as caught:
        build("What is RAG?", system_instructions=system, documents=["x"], config={"max_tokens": 60})
    error = caught.value
    assert error.limit == 60 and error.used == error.needed > 200
    assert set(error.parts) == {"Role & Policies", "Task", "Output"}
    assert sum(error.parts.values()) <= error.used
    message = str(error)
    assert "limit of 60" in message and f"at least {error.needed}" in message and "Role & Policies" in message
    assert isinstance(error, RuntimeError)
    with pytest.raises(BudgetError):
        build("What is RAG?", system_instructions=system, documents=["x"], config={"max_tokens": error.needed - 1})
    built = build("What is RAG?", system_instructions=system, documents=["x"], config={"max_tokens": error.needed})
    assert max(tokens(built.text), message_tokens(built.messages)) == error.needed
    assert system.strip() in built.text and "What is RAG?" in built.text
    assert "nothing besides the fixed parts fits the budget" in built.warnings
    assert [item.reason for item in built.dropped] == ["budget"]


def test_nothing_else_fits_with_history_only():
    history = [{"role": "user", "content": "hello " * 50}]
    with pytest.raises(BudgetError) as caught:
        build("q", conversation_history=history, config={"max_tokens": 1})
    built = build("q", conversation_history=history, config={"max_tokens": caught.value.needed})
    check(built, caught.value.needed)
    assert any("newest turn" in warning for warning in built.warnings) and not built.kept


def test_a_long_query_is_fixed_too():
    with pytest.raises(BudgetError, match="Task"):
        build("why " * 500, config={"max_tokens": 300})


def test_system_instructions_over_the_reserve_warn_and_take_from_the_rest():
    system = "Be careful. " * 100
    built = build(
        "q", system_instructions=system, documents=["word " * 50] * 1, config={"max_tokens": 500, "reserve_ratio": 0.2}
    )
    check(built, 500)
    assert any("over the reserve of 100" in warning for warning in built.warnings)
    quiet = build("q", system_instructions="Be careful.", config={"max_tokens": 500, "reserve_ratio": 0.2})
    assert not quiet.warnings


@STEADY
@given(st.integers(200, 3000), st.sampled_from([0.1, 0.2, 0.5, 0.9, 1]), st.booleans())
def test_everything_but_the_fixed_parts_stays_under_the_shared_limit(limit, reserve, compress):
    documents = [f"{n} " + "filler text " * (5 * n) for n in range(1, 20)]
    built = build(
        "filler",
        documents=documents,
        config={"max_tokens": limit, "reserve_ratio": reserve, "enable_compression": compress},
    )
    check(built, limit)
    shared = int(limit * (1 - reserve))
    assert built.budget.shared_limit == shared
    fixed = build("filler", config={"max_tokens": limit})
    header = tokens("[Evidence]\n")
    assert tokens(built.text) - tokens(fixed.text) - header <= shared


def test_the_cap_is_an_integer_as_promised():
    assert ContextConfig(max_tokens=1000, reserve_ratio=0.9).shared_limit == 99


# -- other tokenizers -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A byte-level tokenizer like those of local models; its counts do not add."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = [fragment for fragment in FRAGMENTS if fragment.isprintable()] * 20 + ["[Task]\n\n---\n", "\n\n"] * 50
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


def up_in_tens(text):
    return -(-len(text) // 10)


def joined_words(text):
    """Fewer for the whole than for its parts: a line break joins words."""
    return len(text.replace("\n", "").split())


def more_than_its_parts(text):
    return len(text.split()) + len(text) ** 2 // 5000


COUNTERS = {
    "bytes": lambda text: len(text.encode("utf-8", "replace")),
    "bytes as a list": lambda text: list(text.encode("utf-8", "replace")),
    "words": lambda text: len(text.split()),
    "tens of characters": up_in_tens,
    "joined words": joined_words,
    "more than its parts": more_than_its_parts,
    "estimate": "estimate",
    "hf": None,
}


@pytest.mark.parametrize("name", COUNTERS)
@settings(STEADY, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=requests(least=2), config=configs, place=st.floats(0, 1))
def test_tokenizers_whose_counts_do_not_add(trained, name, request, config, place):
    tokenizer = COUNTERS[name]
    if tokenizer is None:
        from tokenizers import Tokenizer

        tokenizer = f"hf:{trained}"
        loaded = Tokenizer.from_file(trained)
        count = lambda text: len(loaded.encode(text, add_special_tokens=False).ids)  # noqa: E731
    elif tokenizer == "estimate":
        count = estimate_tokens
    else:
        count = lambda text: result if isinstance(result := tokenizer(text), int) else len(result)  # noqa: E731
    request = renamed(request)
    builder = ContextBuilder(config=plain(max_tokens=PLENTY, tokenizer=tokenizer, **config))
    most = builder.assemble(now=NOW, **request)
    check(most, PLENTY, count)
    needed = smallest(builder, request)
    top = most.budget.total_used
    assume(top >= needed)
    for limit in {needed, needed + 1, int(needed + place * (top - needed)), top}:
        check(builder.assemble(max_tokens=limit, now=NOW, **request), limit, count)


def test_a_whole_turn_goes_when_the_recount_is_over():
    """Giving back one message of a turn would leave a call without its result."""
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    history = []
    for number in range(4):
        history += [
            {"role": "user", "content": f"ask {number}"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": f"result {number}", "tool_call_id": "1"},
            {"role": "assistant", "content": f"answer {number}"},
        ]

    def much_more(text):  # the text outgrows the sum of its pieces, so that turns must be given back
        return len(text.split()) + len(text) ** 2 // 300

    kept_turns, given_back = set(), set()
    for limit in range(20, 1500, 7):
        try:
            built = build("q", conversation_history=history, config={
                "tokenizer": much_more, "max_tokens": limit, "history_limit": 50, "enable_compression": False,
            })  # fmt: skip
        except BudgetError:
            continue
        check(built, limit, much_more)
        roles = [message["role"] for message in built.messages[1:-1]]
        assert roles == ["user", "assistant", "tool", "assistant"] * (len(roles) // 4)
        kept_turns.add(len(roles) // 4)
        given_back |= {item.packet.content[-1:] for item in built.dropped if "counted again" in item.detail}
    assert kept_turns == {0, 1, 2, 3, 4} and len(given_back) >= 3


def test_a_counter_of_ones_own_replaces_the_tokenizer():
    from ctx_vector import TokenCounter

    counter = TokenCounter(up_in_tens, message_overhead=10, reply_overhead=0)
    built = ContextBuilder(config=plain(max_tokens=40), counter=counter).assemble("q", documents=["a" * 50], now=NOW)
    assert built.budget.text_tokens == up_in_tens(built.text)
    assert built.budget.message_tokens == sum(10 + up_in_tens(message["content"]) for message in built.messages)
    assert built.budget.total_used <= 40


def test_the_callers_token_count_is_no_part_of_the_proof():
    built = build("q", custom_packets=[ContextPacket("word " * 500, None, 1)], config={"max_tokens": 100})
    check(built, 100)
