"""What the tests of trace and audit share: builds of every kind, in English and Chinese, and what must be equal."""

import base64
import json
import random
import struct
from datetime import timedelta

from pipeline_help import NOW, HashEncoder

from ctx_vector import ContextBuilder, ContextConfig, ContextPacket, Message, SourceConfig
from ctx_vector.config import HISTORY_STRATEGIES

WORDS = (
    "pandas memory 内存 数据 frame column dtype 类型 category fox dog [Task] --- user: 记忆: 句子。 Sentence! "
    "one. 二。\n three\r\n [Evidence] 工具 index 索引 chunk (x) {y} <|endoftext|> 🙂 e\u0301 a\u200bb  \\[z]"
).split(" ")


def words(chance, most):
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, most)))


class Source:
    """A source that gives what it was made with, or fails."""

    def __init__(self, name, answer):
        self.name, self.answer = name, answer

    def load(self, request):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def summarizer(text, max_tokens):
    return "总结: " + text[: max_tokens * 2 // 3]


def conversation(chance):
    made = []
    for number in range(chance.randint(0, 14)):
        stamp = NOW - timedelta(hours=chance.randint(0, 900)) if chance.random() < 0.3 else None
        importance = {"importance": chance.random()} if chance.random() < 0.3 else None
        made.append(Message(words(chance, 30), "user", stamp, metadata=importance))
        if chance.random() < 0.3:
            call = {
                "id": f"c{number}",
                "type": "function",
                "function": {"name": "查询", "arguments": '{"city": "北京"}'},
            }
            made.append(Message(None, "assistant", tool_calls=[call]))
            made.append(Message(words(chance, 200), "tool", tool_call_id=f"c{number}"))
        made.append({"role": chance.choice(["assistant", "助手"]), "content": words(chance, 60)})
        if chance.random() < 0.1:
            part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}}
            made.append({"role": "user", "content": [{"type": "text", "text": words(chance, 9)}, part, picture(900)]})
    return made


def picture(side):
    """Return an image as a part of a message: the header of a PNG, which is all that its cost needs."""
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", side, side, 8, 2, 0, 0, 0)
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(head).decode()}"}}


def packets(chance):
    made = []
    for number in range(chance.randint(0, 8)):
        kind = "system_instruction" if number == 0 and chance.random() < 0.3 else None
        metadata = {
            "type": kind or chance.choice(["knowledge", "memory", "general", "agent_output", "rag_result"]),
            "cite": f"docs/{number}.md:1-9",
            "heading": ["标题", "Heading"],
            "expires_at": chance.choice([None, "2024-01-01", "2030-01-01"]),
        }
        if chance.random() < 0.2:
            metadata = {"section": chance.choice(["Extra", "附加"])}
        score = chance.choice([None, None, chance.random()])
        made.append(ContextPacket(words(chance, 90), NOW - timedelta(days=chance.random() * 40), None, score, metadata))
    return made


def schemas(chance):
    made = []
    for number in range(chance.randint(0, 5)):
        field = {"type": "string", "description": words(chance, 25), "enum": ["a", "二"]}
        parameters = {"type": "object", "properties": {"q": field, "步骤": {"type": "integer"}}, "required": ["q"]}
        function = {"name": f"tool_{number}", "description": words(chance, 50), "parameters": parameters}
        made.append({"type": "function", "function": function})
    return made


def layered(chance):
    """Return sources with layers, of every layer and way of degrading; one fails, one is out of date."""

    def give(texts):
        return lambda request: texts

    def texts(most):
        return [words(chance, 90) for _ in range(chance.randint(1, most))]

    def broken(request):
        raise RuntimeError("no line 断线")

    return [
        SourceConfig("rules", "system", give("Be kind. 要友好。")),
        SourceConfig("policy", "static", give(texts(3)), version="2", priority=2, degrade="drop"),
        SourceConfig("faq", "static", give([{"content": words(chance, 80), "id": "f1"}, *texts(2)]), max_share=0.5),
        SourceConfig("found", "dynamic", give(texts(6)), authoritative=True),
        SourceConfig("old", "dynamic", give(texts(1)), expires="2020-01-01"),
        SourceConfig("orders", "tool", broken if chance.random() < 0.5 else give(texts(2)), degrade="summarise"),
    ]


def varied(seed, **tools):
    """Return a builder and the arguments of one build; every seed another kind."""
    chance = random.Random(seed)
    config = ContextConfig(
        max_tokens=chance.choice([600, 900, 2000]),
        reserve_ratio=chance.choice([0.0, 0.2]),
        min_relevance=chance.choice([0.0, 0.1]),
        enable_compression=chance.random() < 0.8,
        strategy=chance.choice(["jaccard", "jaccard", "cosine"]) if tools else "jaccard",
        fill=chance.choice(["skip", "stop"]),
        history_strategy=HISTORY_STRATEGIES[seed % len(HISTORY_STRATEGIES)],
        history_relevance=chance.choice([0.6, None]),
        history_limit=chance.choice([2, 5, 9]),
        summary_keep_turns=2,
        budgets=chance.choice([{}, {"history": 250}]),
        evidence_style=chance.choice(["plain", "numbered"]),
        messages_style=chance.choice(["single", "split"]),
        tools_in=chance.choice(["text", "text", "api"]),
        citations=chance.random() < 0.5,
        reminder=chance.choice([None, "Be brief. 简短。"]),
        tokenizer=chance.choice(["cl100k_base", "cl100k_base", "estimate"]),
        locale=chance.choice(["auto", "zh"]),
        knowledge_min_score=0.0,
    )
    sources = [
        Source("weather", [{"content": words(chance, 120), "id": "w1", "score": 0.9}, "plain text 文本"]),
        Source("broken", RuntimeError("no line 断线")),
        Source("lying", "Error: index missing"),
    ][: chance.randint(0, 3)]
    layers = chance.random() < 0.25
    builder = ContextBuilder(
        config=config.with_(max_tokens=max(900, config.max_tokens)) if layers else config,
        sources=layered(chance) if layers else sources,
        budget_ratio={"system": 0.1, "dynamic": 0.4} if layers else None,
        encoder=tools.pop("encoder", None) or HashEncoder(),
        summarizer=chance.choice([None, summarizer]),
        model_max_tokens=chance.choice([None, 600]),
        **tools,
    )
    query = chance.choice(["How does pandas use memory?", "怎样减少内存？", words(chance, 6), ""])
    arguments = {
        "user_query": query,
        "conversation_history": conversation(chance),
        "system_instructions": chance.choice([None, "You are a consultant.\n---\n你是顾问。"]),
        "custom_packets": packets(chance),
        "documents": [words(chance, 150) for _ in range(chance.randint(0, 5))]
        + [{"text": "scored 打分", "score": 0.8, "timestamp": "2025-01-01", "id": 7}] * chance.randint(0, 2),
        "state": chance.choice([None, "state 状态", {"step": 1, "步骤": "a\nb"}]),
        "tools": schemas(chance),
        "tool_results": chance.choice([(), {"查询": {"rows": [{"a": 1, "b": words(chance, 9)}] * 3}, "text": "二"}]),
        "agent_outputs": chance.choice([(), [words(chance, 60)]]),
        "images": ()
        if not query.strip()
        else chance.choice([(), (), [picture(300), {"type": "image_url", "image_url": {"url": "https://x/二.png"}}]]),
        "session_id": chance.choice([None, "s1", "会话"]),
        "now": NOW,
    }
    return builder, arguments


def evidence(built):
    """Return everything of a build that has to be the same in its repeat, as bytes."""
    record = built.to_dict()
    once = ("build_id", "version", "stages_ms", "build_time_ms")
    meta = {name: value for name, value in record.pop("meta").items() if name not in once}
    exact = [(item.relevance, item.recency, item.score, item.packet.scored) for item in (*built.kept, *built.dropped)]
    return json.dumps([record, meta, exact, built.debug(), built.explain(), built.query], ensure_ascii=False).encode()
