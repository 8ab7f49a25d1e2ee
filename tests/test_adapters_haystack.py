"""The Haystack adapters in a real pipeline, sync and async."""

from __future__ import annotations

import asyncio

import pytest
from adapter_help import QUESTION, TEXTS, check_choice, kb, missing_message

from ctx_vector import KnowledgeBase

FIXTURES = (kb,)


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Haystack reports to its makers unless told not to."""
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")


def test_a_pipeline(kb: KnowledgeBase, encoder):
    from haystack import Pipeline

    from ctx_vector.adapters.haystack import CtxVectorRanker, CtxVectorRetriever

    retriever = CtxVectorRetriever(kb.path, top_k=4)
    pipeline = Pipeline()
    pipeline.add_component("retriever", retriever)
    pipeline.add_component("ranker", CtxVectorRanker(max_tokens=150, encoder=encoder))
    pipeline.connect("retriever.documents", "ranker.documents")
    given = {"retriever": {"query": QUESTION}, "ranker": {"query": QUESTION}}
    found = pipeline.run(given)["ranker"]["documents"]
    hits = kb.search(QUESTION, 4)
    assert found[0].content == hits[0].content and found[0].meta["cite"] == hits[0].cite
    plain = retriever.run(QUESTION)["documents"]
    assert [(item.content, item.score) for item in plain] == [(hit.content, hit.score) for hit in hits]
    assert (
        retriever.run("茶", top_k=1, filters={"source": "docs/zh/*"})["documents"][0].meta["source"].endswith("tea.md")
    )
    assert asyncio.run(retriever.run_async(QUESTION))["documents"] == plain
    again = Pipeline.from_dict(pipeline.to_dict(), allowed_modules=["ctx_vector.adapters.haystack"])
    assert again.run(given)["ranker"]["documents"] == found
    again.get_component("retriever").knowledge.close()
    retriever.knowledge.close()


@pytest.mark.parametrize("max_tokens", [20, 45, 70, 500])
def test_the_ranker_keeps_what_fits(encoder, max_tokens: int):
    from haystack import Document

    from ctx_vector.adapters.haystack import CtxVectorRanker

    documents = [Document(content=text, meta={"n": n}) for n, text in enumerate(TEXTS)]
    ranker = CtxVectorRanker(max_tokens=max_tokens, encoder=encoder)
    found = ranker.run(QUESTION, documents)["documents"]
    check_choice([item.content for item in found], [item.score for item in found], max_tokens)
    assert [item.content for item in documents] == TEXTS
    assert asyncio.run(ranker.run_async(QUESTION, documents))["documents"] == found


def test_without_haystack_the_error_names_the_extra():
    assert missing_message("haystack", "haystack") == (
        "OptionalDependencyError ctx_vector.adapters.haystack needs the extra 'haystack'; install it with: "
        "pip install 'ctx_vector[haystack]'"
    )
