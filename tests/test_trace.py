"""A build is made again from its trace with the same bytes, and without whatever was asked the first time."""

import copy
import pickle

import pytest
from audit_help import evidence, varied
from pipeline_help import NOW, plain

from ctx_vector import ContextBuilder, TokenCounter
from ctx_vector.replay import rebuild


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_a_repeat_has_the_same_bytes(start):
    actions = set()
    for seed in range(start, start + 20):
        builder, arguments = varied(seed)
        built = builder.assemble(**arguments)
        actions |= {item.action for item in built.kept} | {item.reason for item in built.dropped}
        assert evidence(rebuild(built.trace, builder.counter)) == evidence(built)
    assert {"full", "budget", "window", "fault"} <= actions


def test_a_repeat_asks_nobody(caplog):
    class Judge:
        asked = 0

        def score(self, query, candidates):
            Judge.asked += 1
            return [0.5] * len(candidates.texts)

    asked = []

    def shorten(text, most):
        asked.append(text)
        return "short 短"

    config = plain(strategy=Judge(), max_tokens=400, history_strategy="summary", history_relevance=None)
    said = [
        {"role": role, "content": f"{role} {n} " + "word 词 " * 20} for n in range(6) for role in ("user", "assistant")
    ]
    builder = ContextBuilder(config=config, summarizer=shorten)
    built = builder.assemble("q", documents=["d " * 400], conversation_history=said, now=NOW)
    assert Judge.asked and len(asked) == 2 and any(item.action == "summarised" for item in built.kept)
    before = Judge.asked, len(asked)
    caplog.clear()
    for _ in range(2):  # a trace can be repeated more than once
        assert evidence(rebuild(built.trace)) == evidence(built)
    assert (Judge.asked, len(asked)) == before and not caplog.records


def test_a_repeat_needs_no_encoder_for_sentences(encoder):
    text = "One about pandas. " * 40 + "Another about memory and columns. " * 40
    config = plain(strategy="cosine", compress_encode=True, max_tokens=400)
    built = ContextBuilder(config=config, encoder=encoder).assemble("pandas memory", documents=[text], now=NOW)
    assert [item.action for item in built.kept] == ["extracted"]

    class Gone:
        def __getattr__(self, name):
            raise AssertionError(f"the repeat asked the encoder for {name}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ctx_vector.encoders.load_encoder", Gone)
        assert evidence(rebuild(built.trace)) == evidence(built)


def test_a_counter_of_the_callers_has_to_be_given_again():
    class Letters:
        name, additive = "letters", False

        def count(self, text):
            return len(text)

        def count_batch(self, texts):
            return [len(text) for text in texts]

        def count_messages(self, messages):
            return sum(len(message["content"]) + 1 for message in messages)

        def truncate(self, text, most):
            return text[:most]

    counter = Letters()
    built = ContextBuilder(config=plain(max_tokens=400), counter=counter).assemble("q", documents=["d" * 900], now=NOW)
    assert evidence(rebuild(built.trace, counter)) == evidence(built)
    assert evidence(rebuild(built.trace, TokenCounter())) != evidence(built)


def test_a_context_can_still_be_copied_and_pickled():
    builder, arguments = varied(3)
    built = builder.assemble(**arguments)
    for twin in (pickle.loads(pickle.dumps(built)), copy.deepcopy(built)):
        assert evidence(rebuild(twin.trace, builder.counter)) == evidence(built)
    assert "trace" not in built.to_dict() and "Trace" not in repr(built)
