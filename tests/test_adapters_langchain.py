"""The LangChain adapters with the real langchain-core: in chains, sync and async."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from adapter_help import QUESTION, TEXTS, check_choice, kb, memory, missing_message
from cli_fixtures import ROOT
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory

from ctx_vector import ContextBuilder, KnowledgeBase, Memory
from ctx_vector.adapters.langchain import (
    CtxVectorChatMessageHistory,
    CtxVectorCompressor,
    CtxVectorRetriever,
    to_messages,
)

FIXTURES = (kb, memory)


def test_the_retriever_finds_what_the_knowledge_base_finds(kb: KnowledgeBase):
    retriever = CtxVectorRetriever(knowledge=kb, k=3)
    found = retriever.invoke(QUESTION)
    hits = kb.search(QUESTION, 3)
    assert [(item.id, item.page_content, item.metadata["score"]) for item in found] == [
        (str(hit.id), hit.content, round(hit.score, 6)) for hit in hits
    ]
    assert found[0].metadata["cite"] == hits[0].cite
    assert asyncio.run(retriever.ainvoke(QUESTION)) == found
    assert retriever.batch([QUESTION, "绿茶用多热的水？"], config={"max_concurrency": 2})[0] == found
    assert retriever.invoke(QUESTION, k=1) == found[:1]
    assert {item.metadata["source"] for item in retriever.invoke("茶", filter={"source": "docs/zh/tea.md"})} == {
        "docs/zh/tea.md"
    }
    assert CtxVectorRetriever(knowledge=kb, min_score=1.0).invoke(QUESTION) == []


def test_the_retriever_in_a_chain(kb: KnowledgeBase):
    seen = []
    prompt = ChatPromptTemplate.from_template("{context}\n\n{question}")
    joined = CtxVectorRetriever(knowledge=kb, k=1) | (lambda found: "\n".join(item.page_content for item in found))
    chain = (
        {"context": joined, "question": RunnablePassthrough()}
        | prompt
        | RunnableLambda(lambda value: seen.append(value.to_string()) or value)
        | FakeListChatModel(responses=["Hundreds of degrees."])
        | StrOutputParser()
    )
    assert chain.invoke(QUESTION) == "Hundreds of degrees."
    assert "hundreds of degrees" in seen[0] and seen[0].endswith(QUESTION)
    assert asyncio.run(chain.ainvoke(QUESTION)) == "Hundreds of degrees."


def test_a_folder_is_opened(tmp_path: Path, encoder):
    retriever = CtxVectorRetriever.from_folder(tmp_path / "new", encoder, k=2)
    assert retriever.invoke("anything") == [] and retriever.k == 2
    retriever.knowledge.close()
    for wrong in ({"k": 0}, {"min_score": 2}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CtxVectorRetriever(knowledge=retriever.knowledge, **wrong)


SAID = [
    SystemMessage("You help."),
    HumanMessage("Yes."),
    AIMessage("Hello 你好", additional_kwargs={"x": 1}, id="m1"),
    HumanMessage("Yes."),
    AIMessage("", tool_calls=[{"name": "look", "args": {"q": "火山"}, "id": "c1", "type": "tool_call"}]),
    ToolMessage("A mountain.", tool_call_id="c1"),
    HumanMessage([{"type": "text", "text": "And this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]),
]


def test_the_history_keeps_messages_word_for_word(tmp_path: Path, memory: Memory):
    history = CtxVectorChatMessageHistory("s1", tmp_path / "chats", memory=memory, importance=0.8)
    history.add_messages(SAID[:3])
    history.add_messages(SAID[3:])
    asyncio.run(CtxVectorChatMessageHistory("s2", tmp_path / "chats").aadd_messages([HumanMessage("Yes.")]))
    assert history.messages == SAID
    again = CtxVectorChatMessageHistory("s1", tmp_path / "chats", memory=memory)  # as after a restart
    assert asyncio.run(again.aget_messages()) == SAID
    rows = memory.all()
    assert [(row.content, row.speaker, row.session, row.importance) for row in rows] == [
        ("Yes.", "user", "s1", 0.8),
        ("Hello 你好", "assistant", "s1", 0.8),
        ("And this?", "user", "s1", 0.8),
    ]
    memory.add("Ada likes tea")
    again.clear()
    assert history.messages == [] and [row.content for row in memory.all()] == ["Ada likes tea"]
    assert len(CtxVectorChatMessageHistory("s2", tmp_path / "chats").messages) == 1
    history.add_user_message("Still there?")
    assert [message.text for message in history.messages] == ["Still there?"]


def test_a_memory_that_fails_costs_a_warning_and_not_the_messages(tmp_path: Path, memory: Memory, caplog):
    history = CtxVectorChatMessageHistory("s", tmp_path / "chats", memory=memory, importance=7)
    history.add_messages([HumanMessage("Hello")])
    assert [message.text for message in history.messages] == ["Hello"] and memory.all() == []
    assert "these messages are not remembered: item 0: importance" in caplog.text


def test_the_history_in_a_chain(tmp_path: Path):
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{question}")])
    seen = []
    with pytest.warns(DeprecationWarning, match="RunnableWithMessageHistory"):  # it still has many users
        chain = RunnableWithMessageHistory(
            prompt
            | RunnableLambda(lambda value: seen.append(len(value.to_messages())) or value)
            | FakeListChatModel(responses=["One.", "Two."]),
            lambda session: CtxVectorChatMessageHistory(session, tmp_path / "chats"),
            input_messages_key="question",
            history_messages_key="history",
        )
    config = {"configurable": {"session_id": "a"}}
    assert chain.invoke({"question": "First?"}, config).text == "One."
    assert asyncio.run(chain.ainvoke({"question": "第二？"}, config)).text == "Two."
    assert seen == [1, 3]
    kept = CtxVectorChatMessageHistory("a", tmp_path / "chats").messages
    assert [message.text for message in kept] == ["First?", "One.", "第二？", "Two."]


@pytest.mark.parametrize("max_tokens", [20, 45, 70, 500])
def test_the_compressor_keeps_what_fits(encoder, max_tokens: int):
    documents = [Document(text, metadata={"n": n}, id=str(n)) for n, text in enumerate(TEXTS)]
    before = [document.model_copy(deep=True) for document in documents]
    compressor = CtxVectorCompressor(max_tokens=max_tokens, encoder=encoder)
    found = compressor.compress_documents(documents, QUESTION)
    scores = [item.metadata["relevance_score"] for item in found]
    check_choice([item.page_content for item in found], scores, max_tokens)
    assert all(item.metadata["n"] == int(item.id) for item in found)
    assert documents == before
    assert asyncio.run(compressor.acompress_documents(documents, QUESTION)) == found
    if max_tokens == 500:
        assert sorted(item.page_content for item in found) == sorted([TEXTS[0], TEXTS[2], TEXTS[4]])
        top = CtxVectorCompressor(max_tokens=500, top_n=1, encoder=encoder)
        assert top.compress_documents(documents, QUESTION) == found[:1]


def test_what_our_retriever_scored_is_not_scored_again(kb: KnowledgeBase, encoder):
    """The passage's own vector knows the headings above it; its text alone may not."""
    found = CtxVectorRetriever(knowledge=kb, k=4).invoke(QUESTION)
    kept = CtxVectorCompressor(max_tokens=900, encoder=encoder).compress_documents(found, QUESTION)
    assert [(item.id, item.metadata["relevance_score"]) for item in kept] == [
        (item.id, item.metadata["score"]) for item in found if item.metadata["score"] >= 0.1
    ]
    other = CtxVectorCompressor(encoder=encoder).compress_documents(found, "绿茶用多热的水？")
    assert all(item.metadata["relevance_score"] != item.metadata["score"] for item in other)
    forged = [Document("Tea.", metadata={"scored_for": QUESTION, "score": 7.0}), Document("x", metadata={"score": 0.9})]
    assert CtxVectorCompressor(encoder=encoder).compress_documents(forged, QUESTION) == []


def test_the_compressor_at_its_bounds(encoder):
    documents = [Document(text) for text in TEXTS]
    whole = CtxVectorCompressor(max_tokens=20, shorten=False, encoder=encoder)
    assert whole.compress_documents(documents, QUESTION) == []
    assert CtxVectorCompressor(encoder=encoder).compress_documents([], QUESTION) == []
    long = CtxVectorCompressor(max_tokens=60, encoder=encoder).compress_documents(documents, QUESTION * 200)
    assert sum(len(item.page_content) for item in long) > 0  # a long question takes nothing from the documents
    with pytest.raises(ValueError, match="top_n"):
        CtxVectorCompressor(top_n=0)


def test_messages_become_ours():
    ours = to_messages(SAID)
    assert [message.role for message in ours] == ["system", "user", "assistant", "user", "assistant", "tool", "user"]
    assert ours[4].tool_calls[0]["function"]["name"] == "look" and ours[5].tool_call_id == "c1"
    text = ContextBuilder().assemble("And?", conversation_history=ours).text
    assert "user: And this?" in text and "look(" in text


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_code_of_the_readme_runs(kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch, name: str):
    (code,) = re.findall(
        r"```python\n(from ctx_vector\.adapters\.langchain .*?)```", (ROOT / name).read_text("utf-8"), re.S
    )
    monkeypatch.chdir(kb.path.parent)
    found: dict[str, Any] = {}
    exec(code.replace("path parameter", "pyroclastic flow"), found)
    assert isinstance(found["documents"], list)
    found["retriever"].knowledge.close()


def test_without_langchain_the_error_names_the_extra():
    assert missing_message("langchain", "langchain_core") == (
        "OptionalDependencyError ctx_vector.adapters.langchain needs the extra 'langchain'; install it with: "
        "pip install 'ctx_vector[langchain]'"
    )
