"""`ContextAwareAgent`: what it sends, what it keeps, and that nothing but the model can keep it from answering."""

from __future__ import annotations

import json
import logging
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_fixtures import ROOT, environment, kb
from stand_in_server import Server, serving

from ctx_vector import ContextConfig, MemoryTool, Message, RAGTool
from ctx_vector.adapters.openai import OpenAIChat
from ctx_vector.agent import ContextAwareAgent, exchange_text
from ctx_vector.audit import AuditLog
from ctx_vector.errors import AgentError, BudgetError, InputError

FIXTURES = (kb,)
ENGLISH = "How do I reduce the memory usage of Pandas?"
CHINESE = "如何优化Pandas的内存占用？"
DAY = datetime(2025, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def make(tmp_path: Path, encoder):
    """Make agents without knowledge, that say "Noted." unless told otherwise, with their memory in `tmp_path`."""
    made = []

    def one(llm=lambda messages: "Noted.", **options) -> ContextAwareAgent:
        given = {"knowledge_base_path": None, "memory_path": tmp_path / "memory", "encoder": encoder} | options
        made.append(ContextAwareAgent("helper", llm, **given))
        return made[-1]

    yield one
    for agent in made:
        agent.close()


def memories(agent: ContextAwareAgent) -> list[str]:
    return [row.content for row in agent.memory_tool.memory.all()]


# -- one exchange


@pytest.mark.parametrize(("question", "prefix"), [(ENGLISH, "The sources say: "), (CHINESE, "资料说：")])
def test_an_answer_over_http_from_knowledge(make, server: Server, kb: Path, question: str, prefix: str):
    agent = make(OpenAIChat(server.url), knowledge_base_path=kb, system_prompt="You are a consultant.", now=lambda: DAY)
    answer = agent.run(question)
    assert answer.startswith(prefix)
    assert answer.removeprefix(prefix).rstrip() in agent.last_context.sections["Evidence"]
    assert server.requests[-1]["messages"] == agent.last_context.messages
    assert agent.last_context.messages[-1] == {"role": "user", "content": question}
    assert agent.conversation_history == [Message(question, "user", DAY), Message(answer, "assistant", DAY)]
    (row,) = agent.memory_tool.memory.all()
    cut = answer[:200] + ("..." if len(answer) > 200 else "")
    assert (row.content, row.type, row.importance, row.timestamp) == (f"Q: {question}\nA: {cut}", "episodic", 0.6, DAY)
    assert row.session == agent.session_id


def test_a_streamed_answer_is_the_same(make, server: Server, kb: Path):
    whole = make(OpenAIChat(server.url), knowledge_base_path=kb, user_id="one", now=lambda: DAY)
    pieces = make(OpenAIChat(server.url), knowledge_base_path=kb, user_id="two", now=lambda: DAY)
    answer = whole.run(ENGLISH)
    parts = list(pieces.stream(ENGLISH))
    assert len(parts) > 3
    assert "".join(parts) == answer
    assert pieces.conversation_history == whole.conversation_history
    assert memories(pieces) == memories(whole)
    assert server.requests[0]["messages"] == server.requests[1]["messages"]


def test_what_is_remembered_of_an_exchange():
    assert exchange_text("q", "x" * 200) == "Q: q\nA: " + "x" * 200
    assert exchange_text("q", "x" * 201) == "Q: q\nA: " + "x" * 200 + "..."
    assert exchange_text("问", "答" * 250) == "Q: 问\nA: " + "答" * 200 + "..."


class Invoke:
    def __init__(self, answer):
        self.answer = answer

    def invoke(self, messages):
        return self.answer


class Streams(Invoke):
    def stream(self, messages):
        for piece in ("One ", "", None, "two."):
            yield SimpleNamespace(content=piece)


@pytest.mark.parametrize(
    ("llm", "pieces"),
    [
        (lambda messages: "One two.", ["One two."]),
        (lambda messages: iter(["One ", "two."]), ["One ", "two."]),
        (lambda messages: (part for part in ("One ", "two.")), ["One ", "two."]),
        (lambda messages: {"role": "assistant", "content": "One two."}, ["One two."]),
        (Invoke("One two."), ["One two."]),
        (Invoke(SimpleNamespace(content="One two.")), ["One two."]),
        (Invoke(SimpleNamespace(content=[{"type": "text", "text": "One two."}])), ["One two."]),
        (Streams("One two."), ["One ", "", "", "two."]),
    ],
)
def test_all_forms_of_a_model(make, llm, pieces: list[str]):
    agent = make(llm, remember=False)
    assert agent.run("Count.") == "One two."
    assert list(agent.stream("Count.")) == pieces
    assert [message.text for message in agent.conversation_history] == ["Count.", "One two."] * 2


def test_what_is_no_model_or_no_question(make):
    for llm in (None, "gpt", OpenAIChat, object()):
        with pytest.raises(InputError, match="llm: expected a function of messages or an object with invoke"):
            make(llm)
    agent = make()
    for question in ("", " \n", None, 5):
        with pytest.raises(InputError, match="user_input: expected a text that is not blank"):
            agent.run(question)


# -- the conversation


def test_the_history_grows_in_order_and_the_query_stands_there_once(make):
    seen = []

    def llm(messages):
        seen.append(messages)
        return f"Answer {len(seen)}."

    agent = make(llm)
    questions = ["What is a pivot table?", "And a melt?", "And a melt?"]
    for question in questions:
        agent.run(question)
    said = [message.text for message in agent.conversation_history]
    assert said == [questions[0], "Answer 1.", questions[1], "Answer 2.", questions[2], "Answer 3."]
    roles = [message["role"] for message in seen[2]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in seen[2]][1:] == [*said[:4], "And a melt?"]


def test_a_history_that_ends_with_the_question_does_not_repeat_it(make):
    agent = make(lambda messages: str(sum(message["content"] == ENGLISH for message in messages)))
    agent.conversation_history.append(Message(ENGLISH, "user"))
    assert agent.run(ENGLISH) == "1"


def test_what_the_newest_turns_show_is_not_recalled_as_well(make):
    agent = make(lambda messages: "Her dog is called Pluto.", now=lambda: DAY)
    question = "What is the name of Ada's dog?"
    agent.run(question)
    agent.run("What is the dog called?")
    assert "Memory" not in agent.last_context.text
    assert agent.last_context.text.count("Her dog is called Pluto.") == 1
    agent.conversation_history.clear()
    agent.run("What is the dog's name?")
    assert f"Memory: Q: {question}\nA: Her dog is called Pluto." in agent.last_context.text


def test_the_same_holds_for_a_memory_tool_of_others(make):
    class Plain:
        def __init__(self):
            self.kept, self.asked = [], []

        def run(self, parameters):
            if parameters["action"] == "add":
                self.kept.append(parameters)
                return "added"
            self.asked.append(parameters)
            return [{"content": item["content"]} for item in reversed(self.kept)][: parameters["limit"]]

    tool = Plain()
    agent = make(memory_tool=tool, config=ContextConfig(memory_limit=1, min_relevance=0))
    agent.run("Where is the key?")
    assert tool.kept[0]["content"] == "Q: Where is the key?\nA: Noted."
    agent.conversation_history.clear()
    agent.run("Where is the hammer?")
    assert "Memory: Q: Where is the key?" in agent.last_context.text
    agent.run("Where is the saw?")
    assert "Memory: Q: Where is the key?" in agent.last_context.text
    assert "Memory: Q: Where is the hammer?" not in agent.last_context.text
    assert tool.asked[0] == {"action": "search", "query": "Where is the key?", "limit": 1, "min_importance": 0.3}


def test_two_users_share_nothing(make):
    ada, bob = make(user_id="ada"), make(user_id="bob")
    ada.run("My dog is called Pluto.")
    assert (memories(ada), memories(bob)) == (["Q: My dog is called Pluto.\nA: Noted."], [])
    bob.run("What is my dog called?")
    assert "Pluto" not in bob.last_context.text
    assert "Pluto" not in str(bob.last_context.to_dict())
    assert ada.conversation_history is not bob.conversation_history
    later = make(user_id="ada")
    later.run("What is my dog called?")
    assert "Pluto" in later.last_context.text


def test_the_same_talk_at_the_same_time_is_the_same_to_the_byte(make):
    talks = []
    for user in ("one", "two"):
        moments = (DAY + timedelta(minutes=number) for number in range(100))
        agent = make(user_id=user, now=lambda moments=moments: next(moments))
        texts = []
        for question in ("My cat is called Tom.", "It eats fish.", "他喜欢睡觉。", "What is my cat called?"):
            agent.run(question)
            texts.append((agent.last_context.text, agent.last_context.messages))
        talks.append(texts)
    assert talks[0] == talks[1]


TALK = {
    "en": {
        "facts": ["My dog is called Pluto.", "I am allergic to peanuts.", "My sister Clara studies law.",
                  "I work in Oslo."],
        "chat": ["How is the weather?", "Tell me a joke.", "What day is it?", "Translate good morning.",
                 "Name a river.",
                 "What is seven times six?", "Recommend a film.", "How do I make tea?", "What does a comet look like?",
                 "How tall is a giraffe?"],
        "asked": ["What is the name of my dog?", "What am I allergic to?", "What does my sister study?",
                  "In which city do I work?"],
        "reply": "All right.",
        "known": ["Pluto", "peanuts", "law", "Oslo"],
    },
    "zh": {
        "facts": ["我的狗叫布鲁托。", "我对花生过敏。", "我姐姐在读法律。", "我在杭州的一家书店工作。"],
        "chat": ["今天天气怎么样？", "讲个笑话吧。", "今天是星期几？", "早上好用英语怎么说？", "说一条河的名字。",
                 "七乘以六等于多少？", "推荐一部电影。", "怎样泡茶？", "彗星是什么样子的？", "长颈鹿有多高？"],
        "asked": ["我的狗叫什么名字？", "我对什么东西过敏？", "我姐姐学什么专业？", "我在哪里工作？"],
        "reply": "好的。",
        "known": ["布鲁托", "花生", "法律", "杭州"],
    },
}  # fmt: skip
PROCESS = """
import json, sys
from ctx_vector.agent import ContextAwareAgent
process, memory, talks = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
for user, talk in talks.items():
    facts, chat, asked = talk["facts"], talk["chat"], talk["asked"]
    lines = {0: facts + chat[:6], 1: [f"{text} ({n})" for n, text in enumerate(chat)], 2: chat[:6] + asked}[process]
    with ContextAwareAgent("helper", lambda messages: talk["reply"], user_id=user, knowledge_base_path=None,
                           memory_path=memory) as agent:
        for line in lines:
            agent.run(line)
            if line in asked:
                print(json.dumps(agent.last_context.sections["Context"]))
        assert len(agent.conversation_history) == 20
"""


def test_what_was_said_in_the_first_of_three_processes_is_recalled_in_the_third(tmp_path: Path):
    for process in range(3):
        done = subprocess.run(
            [sys.executable, "-c", PROCESS, str(process), str(tmp_path / "memory"), json.dumps(TALK)],
            capture_output=True, encoding="utf-8", env=environment(), cwd=tmp_path, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
    contexts = [json.loads(line) for line in done.stdout.splitlines()]
    for context, known in zip(contexts, [*TALK["en"]["known"], *TALK["zh"]["known"]], strict=True):
        assert known in context


# -- when something fails


def fails(messages):
    raise ValueError("no weights\nin the file")


def refused(messages):
    raise OSError("cannot ask") from ConnectionRefusedError(111, "Connection refused")


def breaks(messages):
    yield "Half an "
    raise RuntimeError("out of memory")


async def waits(messages):
    return "never"


def test_its_contexts_are_recorded_as_its_user_s(make, tmp_path: Path):
    with AuditLog(tmp_path / "audit.sqlite3") as audit:
        for user in ("ada", "小明"):
            make(user_id=user, audit=audit).run(f"I am {user}")
        make(user_id="eve", audit=audit, remember=False).run("no memory")
        assert [(row["user_id"], row["query"]) for row in audit.list()] == [
            ("eve", "no memory"), ("小明", "I am 小明"), ("ada", "I am ada"),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("llm", "said"),
    [
        (fails, "helper: the language model failed (ValueError: no weights in the file)"),
        (refused, "start one, for example: llama-server -m model.gguf --port 8080, or ollama serve"),
        (breaks, "helper: the language model failed (RuntimeError: out of memory)"),
        (waits, "the language model is an async one"),
        (lambda messages: " \n", "the language model gave an empty answer"),
        (lambda messages: None, "the language model gave an empty answer"),
        (lambda messages: iter([]), "the language model gave an empty answer"),
        (lambda messages: 5, "the language model returned int; expected a text"),
        (OpenAIChat("http://127.0.0.1:9/v1"), "no server answers at http://127.0.0.1:9/v1 (Connection refused); start"),
    ],
)
def test_a_model_that_fails_changes_nothing(make, llm, said: str):
    agent = make()
    agent.run("My dog is called Pluto.")
    before = list(agent.conversation_history), memories(agent)
    agent.llm = llm
    for ask in (agent.run, lambda text: list(agent.stream(text))):
        with pytest.raises(AgentError, match=re.escape(said)) as caught:
            ask("What is my dog called?")
        assert "\n" not in str(caught.value)
        assert (agent.conversation_history, memories(agent)) == before
    assert "Pluto" in agent.last_context.text
    agent.llm = lambda messages: "Pluto."
    assert agent.run("What is my dog called?") == "Pluto."


def test_a_system_prompt_over_the_budget_is_the_callers_to_mend(make):
    agent = make(lambda messages: pytest.fail("not to be asked"), system_prompt="word " * 500,
                 config=ContextConfig(max_tokens=100))  # fmt: skip
    with pytest.raises(BudgetError, match="set max_tokens to at least"):
        agent.run("Hello?")
    assert agent.conversation_history == []


def test_a_stream_that_is_left_keeps_what_was_said(make, server: Server):
    agent = make(OpenAIChat(server.url, "long"))
    pieces = agent.stream("Count.")
    said = next(pieces) + next(pieces)
    pieces.close()
    assert server.left_early.wait(5)  # the model is stopped
    assert [message.text for message in agent.conversation_history] == ["Count.", said]
    assert agent.conversation_history[-1].metadata == {"interrupted": True}
    assert memories(agent) == [f"Q: Count.\nA: {said}"]


def test_an_interrupt_keeps_what_was_said_and_goes_on_its_way(make):
    def llm(messages):
        yield "One "
        raise KeyboardInterrupt

    agent = make(llm, remember=False)
    with pytest.raises(KeyboardInterrupt):
        list(agent.stream("Count."))
    assert [message.text for message in agent.conversation_history] == ["Count.", "One "]
    agent.llm = lambda messages: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        list(agent.stream("Again."))
    assert len(agent.conversation_history) == 2  # nothing was said
    pieces = agent.stream("Never begun.")
    pieces.close()
    assert len(agent.conversation_history) == 2


class Broken:
    def run(self, parameters):
        raise OSError("the disk is gone")


def test_neither_knowledge_nor_memory_can_stop_an_answer(make, caplog):
    agent = make(memory_tool=Broken(), rag_tool=Broken())
    with caplog.at_level(logging.WARNING, "ctx_vector"):
        assert agent.run("Hello?") == "Noted."
    faults = {name: use.fault for name, use in agent.last_context.budget.sources.items() if use.fault}
    assert faults == {name: "OSError: the disk is gone" for name in ("knowledge", "memory")}
    assert "this exchange is not remembered: OSError: the disk is gone" in caplog.text
    assert len(agent.conversation_history) == 2


@pytest.mark.parametrize("broken", ["memory", "kb"])
def test_files_that_break_under_a_running_agent_cannot_either(make, tmp_path: Path, caplog, encoder, broken: str):
    rag = RAGTool(tmp_path / "kb", encoder)
    rag.run({"action": "add_text", "text": "Bread is baked for forty minutes.", "source": "bread"})
    agent = make(rag_tool=rag)
    agent.run("How long is bread baked?")
    assert "forty minutes" in agent.last_context.text
    for file in (tmp_path / broken).iterdir():
        if file.is_file():
            file.write_bytes(b"no database" * 1000)
    with caplog.at_level(logging.WARNING, "ctx_vector"):
        assert agent.run("How long is bread baked?") == "Noted."
    faults = {name for name, use in agent.last_context.budget.sources.items() if use.fault}
    assert faults == {"knowledge" if broken == "kb" else broken}
    assert ("this exchange is not remembered" in caplog.text) == (broken == "memory")


def test_without_memory_nothing_is_written_anywhere(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    agent = ContextAwareAgent("helper", lambda messages: "Noted.", knowledge_base_path=None, remember=False)
    agent.run("Hello?")
    assert agent.memory_tool is None
    assert list(tmp_path.iterdir()) == []


def test_the_defaults(tmp_path: Path, monkeypatch, encoder):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    with ContextAwareAgent("helper", lambda messages: "Noted.", encoder=encoder) as agent:
        assert agent.builder.config.max_tokens == 4000
        assert agent.user_id == agent.memory_tool.memory.user_id == "default"
        assert agent.rag_tool.knowledge.path == Path("kb")
        assert agent.memory_tool.memory.path.is_relative_to(tmp_path / "data")


def test_tools_that_are_given_are_used_and_not_closed(make, tmp_path: Path, encoder):
    tool = MemoryTool("ada", tmp_path / "own", encoder)
    with make(memory_tool=tool) as agent:
        agent.run("My dog is called Pluto.")
    assert len(tool.memory.all()) == 1
    tool.memory.close()


# -- the example and the README


@pytest.mark.parametrize(("language", "prefix", "known"), [
    ("en", "The sources say: ", "data analyst at a retail chain"), ("zh", "资料说：", "连锁零售企业的数据分析师"),
])  # fmt: skip
def test_the_example(
    tmp_path: Path, server: Server, kb: Path, language: str, prefix: str, known: str, monkeypatch, capsys
):
    options = ["--base-url", server.url, "--language", language, "--kb", str(kb)]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["agent.py", "--memory", str(tmp_path / "memory"), *options])
    runpy.run_path("examples/agent.py")["main"]()
    shown, warned = capsys.readouterr()
    assert warned == ""
    questions = re.findall("^> (.*)", shown, re.M)
    assert len(questions) == 2
    assert shown.splitlines()[1].startswith(prefix)
    assert len(re.findall(r"^  \(\d+ of 4000 tokens: ", shown, re.M)) == 2
    assert known in json.dumps(server.requests[1]["messages"], ensure_ascii=False)
    assert [message["content"] for message in server.requests[1]["messages"] if message["role"] == "user"] == questions


def test_the_example_without_a_server(tmp_path: Path, kb: Path):
    words = ["--memory", str(tmp_path / "memory"), "--base-url", "http://127.0.0.1:9/v1", "--kb", str(kb)]
    done = subprocess.run(
        [sys.executable, "examples/agent.py", *words], capture_output=True, encoding="utf-8", env=environment(),
        cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == "> How do I reduce the memory usage of Pandas?\n"
    assert done.stderr.startswith("error: no server answers at http://127.0.0.1:9/v1 (")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_code_of_the_readme_runs(tmp_path: Path, server: Server, kb: Path, name: str, monkeypatch, capsys):
    readme = (ROOT / name).read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from ctx_vector\.adapters\.openai .*?)```", readme, re.S)
    assert "http://127.0.0.1:8080/v1" in code
    code = code.replace("http://127.0.0.1:8080/v1", server.url)
    os.symlink(kb, tmp_path / "kb", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    exec(compile(code, name, "exec"), {})
    shown, warned = capsys.readouterr()
    assert shown.startswith(("The sources say: ", "资料说：")) and not warned
    assert len(server.requests) >= 2
