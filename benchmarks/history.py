"""What a long history costs a warm build, against encoding its query.

    python benchmarks/history.py [--turns 500] [--rounds 40]

1,000 messages in 500 turns of about 40 tokens a message; every strategy, in three sizes of context. `history_ms` is a
build less one without a history: reading, choosing, placing, rendering, recording. `trim_ms` is a build less one given
nothing but the turns kept: what the other messages cost. Each round has a query that no cache knows, which is encoded
in the same round. Writes benchmarks/results/history.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time

from common import hardware, write_result
from search import WORDS_EN

from ctx_vector import ContextBuilder, ContextConfig, Message
from ctx_vector.config import HISTORY_STRATEGIES
from ctx_vector.encoders import load_encoder

NUMBERS = itertools.count()
SIZES = (3000, 8000, 32_000)


def history(turns, tokens=40, important=False):
    count = tokens - 8
    messages = []
    for turn in range(turns):
        for role, step in (("user", 7), ("assistant", 3)):
            words = " ".join(WORDS_EN[(turn * step + n * n) % len(WORDS_EN)] for n in range(count))
            metadata = {"importance": turn * 7 % 10 / 10} if important else None
            messages.append(Message(f"{role} said in turn {turn}: {words}", role, metadata=metadata))
    return messages


def seconds(call, *arguments, **options):
    start = time.perf_counter()
    call(*arguments, **options)
    return (time.perf_counter() - start) * 1000


def measure(encoder, messages, rounds, **config):
    builder = ContextBuilder(
        config=ContextConfig(**config), encoder=encoder, summarizer=lambda text, most: "They spoke of many things. " * 9
    )
    built = builder.assemble("warm", conversation_history=messages, session_id="s")
    kept = [Message(**message) for message in built.messages[1:-1] if message["role"] != "system"]
    config |= {"history_strategy": "window", "history_limit": len(messages)}
    short = ContextBuilder(config=ContextConfig(**config), encoder=encoder)
    encoding, whole, bare, alone = [], [], [], []
    for number in range(rounds):
        query = f"How do I declare the {WORDS_EN[number % len(WORDS_EN)]} of order number {next(NUMBERS)}?"
        encoding.append(seconds(encoder.encode_queries, [query]))
        builder.assemble(query, documents=["one"])  # the query's vector is known from here on
        bare.append(seconds(builder.assemble, query))
        alone.append(seconds(short.assemble, query, conversation_history=kept))
        whole.append(seconds(builder.assemble, query, conversation_history=messages, session_id="s"))
    encode = statistics.median(encoding)
    costs = statistics.median(whole) - statistics.median(bare)
    trim = statistics.median(whole) - statistics.median(alone)
    return {
        "turns_kept": built.meta["history"]["kept"],
        "encode_ms": round(encode, 3),
        "history_ms": round(costs, 3),
        "history_ratio": round(costs / encode, 3),
        "trim_ms": round(trim, 3),
        "trim_ratio": round(trim / encode, 3),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    encoder = load_encoder()
    messages = history(given.turns)
    counter = ContextBuilder().counter
    result = {
        "what": "a history of a warm build, against encoding its query",
        "hardware": hardware(),
        "messages": len(messages),
        "tokens_a_message": round(statistics.mean(counter.count(message.content) for message in messages), 1),
        "rounds": given.rounds,
    }
    important = history(given.turns, important=True)
    cases = {name: (name, messages) for name in HISTORY_STRATEGIES} | {"importance_given": ("importance", important)}
    for size in SIZES:
        result[f"max_tokens_{size}"] = {
            name: measure(encoder, said, given.rounds, max_tokens=size, history_strategy=strategy)
            for name, (strategy, said) in cases.items()
        }
    write_result("history", result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
