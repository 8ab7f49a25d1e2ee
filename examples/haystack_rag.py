"""Haystack: retriever, ranker and prompt in a pipeline. Needs the extra `haystack`.

    HAYSTACK_TELEMETRY_ENABLED=False python examples/haystack_rag.py [QUESTION]

Connect a chat generator to the prompt, and it answers.
"""

import sys

from haystack import Pipeline
from haystack.components.builders import PromptBuilder

from ctx_vector import KnowledgeBase
from ctx_vector.adapters.haystack import CtxVectorRanker, CtxVectorRetriever

question = sys.argv[1] if len(sys.argv) > 1 else "How do I reduce the memory usage of Pandas?"
with KnowledgeBase(".demo/kb") as kb:
    kb.sync("data/knowledge")

template = """Answer from these sources:
{% for document in documents %}({{ document.meta.cite }})
{{ document.content }}
{% endfor %}
Question: {{ query }}"""
pipeline = Pipeline()
pipeline.add_component("retriever", CtxVectorRetriever(".demo/kb", top_k=20))
pipeline.add_component("ranker", CtxVectorRanker(max_tokens=400))
pipeline.add_component("prompt", PromptBuilder(template, required_variables=["documents", "query"]))
pipeline.connect("retriever.documents", "ranker.documents")
pipeline.connect("ranker.documents", "prompt.documents")
found = pipeline.run({name: {"query": question} for name in ("retriever", "ranker", "prompt")})
print(found["prompt"]["prompt"])
