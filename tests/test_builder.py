"""The builder as a whole: what it returns, shares, logs and refuses; and that its fast path is light."""

import asyncio
import json
import logging
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pipeline_help import NOW, HashEncoder, build, check, plain, tokens

from ctx_vector import ConfigError, ContextBuilder, ContextConfig, ContextPacket, Message
from ctx_vector.errors import InputError, ModelError
from ctx_vector.knowledge import KnowledgeBase
from ctx_vector.memory import Memory

ROOT = Path(__file__).resolve().parent.parent

EXAMPLE = {
    "user_query": "How can pandas use less memory?",
    "system_instructions": "You are a data engineer.",
    "conversation_history": [Message("My frame has 5 GB.", "user"), Message("Which types does it have?", "assistant")],
    "documents": [{"content": "Category columns save memory.", "score": 0.9}, "Bread is baked at 220 degrees."],
    "custom_packets": [ContextPacket("The user has 16 GB.", metadata={"type": "task_state"})],
}


def test_every_argument_is_optional():
    builder = ContextBuilder()
    text = builder.build(user_query="")
    assert text.startswith("[Task]\n\n[Output]\n")
    assert builder.config == ContextConfig()


def test_build_is_the_text_of_assemble():
    builder = ContextBuilder(config=plain())
    built = builder.assemble(**EXAMPLE, now=NOW)
    assert builder.build(**EXAMPLE, now=NOW) == built.text == str(built)
    check(built, 3000)


def test_aassemble_is_assemble():
    builder = ContextBuilder(config=plain())

    async def several():
        return await asyncio.gather(*(builder.aassemble(**EXAMPLE, now=NOW) for _ in range(4)))

    built = asyncio.run(several())
    assert {one.text for one in built} == {builder.build(**EXAMPLE, now=NOW)}


def test_explain_debug_and_to_dict_are_views_of_one_record():
    built = build(
        config={"min_relevance": 0.1}, **{("query" if k == "user_query" else k): v for k, v in EXAMPLE.items()}
    )
    rows = built.explain()
    assert [row["kept"] for row in rows] == [True] * len(built.kept) + [False] * len(built.dropped)
    assert {row["reason"] for row in rows if not row["kept"]} == {"below_floor"}
    assert [row["source"] for row in rows if row["kept"]] == ["custom", "history", "history", "custom", "documents"]
    debug = built.debug()
    assert [row["index"] for row in debug] == list(range(len(debug)))
    assert sum(row["tokens"] for row in debug) == tokens(built.text)
    assert {row["section"] for row in debug} == set(built.sections)
    assert all(len(row["preview"]) <= 50 and "\n" not in row["preview"] for row in debug)
    again = json.loads(json.dumps(built.to_dict()))
    assert again["text"] == built.text and again["budget"]["sources"]["documents"]["kept"] == 1
    assert built.sources is built.budget.sources
    assert built.stats == {
        "gathered": 6, "selected": 5, "dropped": {"below_floor": 1}, "compressed": False,
        "usage_rate": round(built.budget.total_used / 3000, 4),
    }  # fmt: skip


def test_debug_adds_up_for_tokenizers_that_do_not_add():
    built = build("q", documents=["a b", "c"], config={"tokenizer": lambda text: len(text.split("\n")) ** 2})
    assert sum(row["tokens"] for row in built.debug()) == len(built.text.split("\n")) ** 2
    assert built.debug()[-1]["preview"] == "(joins)"


def test_meta_says_how_it_was_made():
    builder = ContextBuilder(config=plain(strategy="cosine_raw"), encoder=HashEncoder())
    one = builder.assemble("q", documents=["x"], system_instructions="s", session_id="s1", now=NOW)
    two = builder.assemble("another", documents=["y"], system_instructions="s", now=NOW)
    other = builder.assemble("q", system_instructions="t", now=NOW, max_tokens=500)
    meta = one.meta
    assert meta["build_id"] != two.meta["build_id"] and len(meta["build_id"]) == 32
    assert meta["now"] == NOW.isoformat() and meta["session_id"] == "s1" and meta["tokenizer"] == "cl100k_base"
    assert (meta["strategy"], meta["model"], meta["model_fingerprint"]) == ("cosine_raw", "hash", "hash:1")
    assert meta["config_hash"] == builder.config.hash == two.meta["config_hash"] != other.meta["config_hash"]
    assert other.meta["config_hash"] == builder.config.with_(max_tokens=500).hash
    assert meta["prefix_hash"] == two.meta["prefix_hash"] != other.meta["prefix_hash"]
    assert set(meta["stages_ms"]) == {"gather", "rank", "select", "record"}
    assert meta["build_time_ms"] >= sum(meta["stages_ms"].values()) * 0.99
    from ctx_vector import __version__

    assert meta["version"] == __version__


def test_now_is_the_clock_unless_it_is_given():
    from datetime import UTC, datetime, timedelta

    built = ContextBuilder(config=plain()).assemble("q")
    assert abs(datetime.fromisoformat(built.meta["now"]) - datetime.now(UTC)) < timedelta(minutes=1)


# -- budgets ----------------------------------------------------------------------------------------------------------


def test_max_tokens_of_a_call_beats_the_policy_and_the_config():
    asked = []
    builder = ContextBuilder(config=plain(max_tokens=900), budget_policy=lambda request: asked.append(request) or 700)
    assert builder.assemble("q", now=NOW).budget.total_limit == 700 and asked[0].user_query == "q"
    assert builder.assemble("q", now=NOW, max_tokens=800).budget.total_limit == 800
    assert builder.config.max_tokens == 900
    for wrong in (0, -1, 2.5, True, "many"):
        with pytest.raises(ConfigError, match="max_tokens"):
            builder.assemble("q", max_tokens=wrong)


def test_over_seventy_percent_of_the_window_warns():
    builder = ContextBuilder(config=plain(), model_max_tokens=100)
    assert not builder.assemble("q", now=NOW).warnings
    (warning,) = builder.assemble("q " * 60, now=NOW).warnings
    assert "of the model's 100 tokens" in warning


# -- shared between builders ------------------------------------------------------------------------------------------


def test_with_config_shares_encoder_caches_and_sources():
    encoder = HashEncoder()

    class Memories:
        def run(self, parameters):
            return [{"content": f"limit {parameters['limit']}", "score": 1}]

    builder = ContextBuilder(config=plain(strategy="cosine_raw"), encoder=encoder, memory_tool=Memories())
    other = builder.with_config(plain(strategy="cosine_raw", max_tokens=500, memory_limit=3))
    builder.build("q", documents=["x"], now=NOW)
    text = other.build("q", documents=["x"], now=NOW)
    assert encoder.queries == ["q"] and encoder.documents == ["x"]  # once for both
    assert "limit 3" in text and other.config.max_tokens == 500 and builder.config.max_tokens == 3000
    assert other.counter is builder.counter


def test_the_default_encoder_is_loaded_once_whatever_the_number_of_threads(monkeypatch):
    import threading
    import time

    from ctx_vector import encoders

    loads = []

    def load():
        loads.append(1)
        time.sleep(0.05)
        return HashEncoder()

    monkeypatch.setattr(encoders, "load_encoder", load)
    builder = ContextBuilder(config=plain(strategy="cosine_raw"))
    threads = [threading.Thread(target=builder.build, args=("q",), kwargs={"documents": ["x"]}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1


def test_an_encoder_that_cannot_be_loaded_is_a_clear_error(monkeypatch):
    from ctx_vector import encoders

    def load():
        raise ModelError("no model; run: ctx-vector models prepare")

    monkeypatch.setattr(encoders, "load_encoder", load)
    with pytest.raises(ModelError, match="models prepare"):
        ContextBuilder().build("q", documents=["x"])


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_an_unknown_strategy_is_told_at_once():
    with pytest.raises(ConfigError, match="did you mean 'cosine'"):
        ContextBuilder(config=ContextConfig(strategy="cosin"))


# -- logging ----------------------------------------------------------------------------------------------------------


def test_nothing_is_printed_and_a_build_logs_one_line(capsys, caplog):
    caplog.set_level(logging.INFO, logger="ctx_vector")
    builder = ContextBuilder(config=plain(min_relevance=0.1))
    built = builder.assemble(**EXAMPLE, now=NOW)
    (record,) = caplog.records
    assert (
        record.levelname == "INFO" and "evidence 2 -> 1" in record.message and "history 1 -> 1 turns" in record.message
    )
    assert f"{built.budget.total_used} of 3000 tokens" in record.message
    assert capsys.readouterr() == ("", "")


# -- light ------------------------------------------------------------------------------------------------------------


def test_a_build_with_the_onnx_encoder_never_imports_torch(encoder):
    code = """
        import sys
        from ctx_vector import ContextBuilder, ContextConfig, Message
        text = ContextBuilder(config=ContextConfig(history_relevance=None)).build(
            "How can pandas use less memory?", documents=["Category columns save memory.", "long text " * 900],
            conversation_history=[Message("hello", "user")], system_instructions="s")
        assert "Category columns" in text
        heavy = {"torch", "sentence_transformers", "transformers", "scipy", "pandas",
                 "ctx_vector.late", "ctx_vector.cross_encoder"} & set(sys.modules)  # a second pass is off
        assert not heavy, heavy
        assert "onnxruntime" in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=ROOT, timeout=120)


def test_a_build_without_vectors_loads_no_model():
    code = """
        import sys
        from ctx_vector import ContextBuilder, ContextConfig
        ContextBuilder(config=ContextConfig(strategy="jaccard")).build("a b", documents=["a"])
        heavy = {"torch", "onnxruntime", "faiss", "tokenizers", "asyncio", "sqlite3", "yaml"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=ROOT, timeout=120)


def test_a_warm_build_encodes_the_query_and_nothing_else():
    encoder = HashEncoder()
    builder = ContextBuilder(config=plain(strategy="cosine_raw"), encoder=encoder)
    for query in ("one", "two"):
        builder.build(query, documents=["a", "b"], conversation_history=EXAMPLE["conversation_history"], now=NOW)
    assert encoder.queries == ["one", "two"] and encoder.documents == ["a", "b"]


def test_a_counter_may_be_a_function_and_is_refused_at_once_when_it_is_none():
    by_function = ContextBuilder(config=plain(), counter=len).assemble("q", documents=["ab"], now=NOW)
    assert by_function.budget.text_tokens == len(by_function.text)
    by_name = ContextBuilder(config=plain(), counter="estimate").assemble("q", now=NOW)
    assert by_name.meta["tokenizer"] == "estimate"

    class Half:
        name = "half"

        def count(self, text):
            return len(text)

    for none in (Half(), object(), 7):
        with pytest.raises(ConfigError, match="counter: expected a tokenizer, or an object with name, additive, count"):
            ContextBuilder(counter=none)
    with pytest.raises(InputError, match="tokenizer: expected one of"):
        ContextBuilder(counter="cl200k")


def test_a_warm_build_counts_each_text_once():
    counted = []

    def count(text):
        counted.append(text)
        return len(text.split())

    from ctx_vector import TokenCounter

    counter = TokenCounter(count)
    counter.additive = True
    documents = [f"document number {n}" for n in range(10)]
    builder = ContextBuilder(config=plain(), counter=counter)
    builder.build("first", documents=documents, now=NOW)
    counted.clear()
    builder.build("second", documents=documents, now=NOW)
    assert len(counted) == len(set(counted)) <= 6  # the query alone, its piece, its section, its message


def test_a_name_from_elsewhere_is_answered_with_ours():
    builder = ContextBuilder()
    for given, expected in [
        ({"system_prompt": "x"}, "unknown argument 'system_prompt'; here it is called 'system_instructions'"),
        ({"history": []}, "here it is called 'conversation_history'"),
        ({"custom_packet": []}, "did you mean 'custom_packets'"),
        ({"zzz": 1}, "unknown argument 'zzz'; it takes user_query, conversation_history, "),
    ]:
        with pytest.raises(InputError, match=re.escape(expected)):
            builder.assemble("q", **given)
        with pytest.raises(InputError, match=re.escape(expected)):
            builder.build("q", **given)


def test_a_knowledge_base_or_a_memory_is_taken_as_its_tool(tmp_path, encoder):
    with KnowledgeBase(tmp_path / "kb", encoder) as kb, Memory(tmp_path / "memory", "ada", encoder) as memory:
        kb.add_text("咖啡机每周一清洗一次。", "coffee")
        memory.add("Ada 每天早上清洗咖啡机。")
        built = ContextBuilder(rag_tool=kb, memory_tool=memory, encoder=encoder).assemble("咖啡机多久清洗一次？")
        assert "每周一" in built.text and "每天早上" in built.text
        assert not built.warnings
        for wrong in ("kb", memory, len):
            with pytest.raises(
                ConfigError, match=r"rag_tool: expected an object with run.*RAGTool\(knowledge_base_path"
            ):
                ContextBuilder(rag_tool=wrong)
        with pytest.raises(ConfigError, match=r"memory_tool: .*MemoryTool\(user_id"):
            ContextBuilder(memory_tool=kb)


def test_a_config_may_be_a_mapping_and_nothing_else_that_is_none():
    given = ContextBuilder(config={"max_tokens": 500, "strategy": "jaccard"})
    config = ContextConfig(max_tokens=500, strategy="jaccard")
    assert given.config == config
    assert ContextBuilder().with_config({"max_tokens": 500, "strategy": "jaccard"}).config == config
    assert ContextBuilder(config={}).config == ContextConfig()
    with pytest.raises(ConfigError, match="did you mean 'max_tokens'"):
        ContextBuilder(config={"max_token": 500})
    for wrong in ("x", 0, [("max_tokens", 500)]):
        with pytest.raises(ConfigError, match="config: expected a ContextConfig or a mapping of its fields, got "):
            ContextBuilder(config=wrong)
    for wrong in (5, True, object()):
        with pytest.raises(ConfigError, match="audit: expected an AuditLog or the path of its file, got "):
            ContextBuilder(audit=wrong)
    for wrong in (5, None, {"max_tokens": 500}):
        with pytest.raises(ConfigError, match="from_config: expected the path of a YAML file or Settings, got "):
            ContextBuilder.from_config(wrong)
