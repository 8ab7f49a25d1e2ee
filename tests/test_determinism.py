"""Promise 4: the same inputs and the same `now` give the same bytes, in any process and from any thread."""

import hashlib
import json
import os
import random
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from pipeline_help import NOW, plain

from ctx_vector import ContextBuilder, ContextPacket, Message

ROOT = Path(__file__).resolve().parent.parent

SCRIPT = """
    import hashlib, json, sys
    sys.path[:0] = ["tests", "."]
    from test_determinism import digest, requests
    from ctx_vector import ContextBuilder
    from pipeline_help import plain
    for strategy, count in (("jaccard", 4), ("cosine", 2)):
        builder = ContextBuilder(config=plain(strategy=strategy, max_tokens=700, reserve_ratio=0.2))
        print(json.dumps([digest(builder.assemble(**request)) for request in requests(count)]))
"""


def requests(count=4):
    chance = random.Random(7)
    words = "pandas memory 内存 数据 frame column fox dog\nline [Task] type. Sentence! 句子。 user: --- x".split(" ")

    def text(length):
        return " ".join(chance.choice(words) for _ in range(length))

    made = []
    for number in range(count):
        packets = [
            ContextPacket(text(30), NOW - timedelta(days=chance.randint(0, 3)), None, chance.choice([None, 0.5]),
                          {"type": chance.choice(["knowledge", "memory", "general", "agent_output"])})
            for _ in range(12)
        ]  # fmt: skip
        packets += [ContextPacket(text(9), metadata={"section": name}) for name in ("B", "A", "B")]
        made.append({
            "user_query": text(4), "custom_packets": packets,
            "documents": [text(60) for _ in range(8)],
            "conversation_history": [Message(text(12), role) for role in ("user", "assistant", "评审", "user", "bot")],
            "state": {"step": number, "k": "v"}, "system_instructions": text(5), "now": NOW,
        })  # fmt: skip
    return made


def digest(built):
    record = built.to_dict()
    del record["meta"]
    return hashlib.sha256(json.dumps([record, built.debug(), built.explain()], ensure_ascii=False).encode()).hexdigest()


def in_process(seed):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        cwd=ROOT, timeout=300, capture_output=True, text=True,
        env={**os.environ, "PYTHONHASHSEED": seed, "TZ": {"1": "Asia/Tokyo"}.get(seed, "America/New_York")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_two_processes_with_other_hash_seeds_and_time_zones_give_the_same_bytes(encoder):
    one, two = in_process("1"), in_process("4242")
    assert one == two and [len(set(digests)) for digests in one] == [4, 2]


def test_eight_threads_on_one_builder_give_what_one_gives(encoder):
    for strategy, count in (("jaccard", 4), ("cosine", 2)):
        config = plain(strategy=strategy, max_tokens=700, reserve_ratio=0.2)
        alone = [ContextBuilder(config=config, encoder=encoder).assemble(**request) for request in requests(count)]
        want = [digest(built) for built in alone]
        builder = ContextBuilder(config=config, encoder=encoder)
        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(builder.assemble, **request) for request in requests(count) * 6]
        assert [digest(job.result()) for job in jobs] == want * 6


def test_a_build_leaves_nothing_behind_for_the_next():
    config = plain(max_tokens=700)
    first, *others = requests()
    builder = ContextBuilder(config=config)
    one = digest(builder.assemble(**first))
    for request in others:
        builder.assemble(**request)
    assert digest(builder.assemble(**first)) == one


def test_the_order_of_what_is_given_decides_nothing_but_ties():
    request = requests()[0]
    packets = [packet for packet in request["custom_packets"] if "section" not in packet.meta]
    builder = ContextBuilder(config=plain(max_tokens=700))
    texts = set()
    for seed in range(5):
        shuffled = random.Random(seed).sample(packets, len(packets))
        texts.add(builder.build("pandas memory", custom_packets=shuffled, now=NOW))
    assert len(texts) == 1  # ids decide ties, and they come from the content
