"""LlamaIndex: a query engine over a knowledge base, and a memory that lasts. Needs the extra `llama-index`.

    python examples/llama_index_rag.py [QUESTION]

`MockLLM` says its prompt; put your model in its place.
"""

import asyncio
import sys

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine

from ctx_vector import Memory
from ctx_vector.adapters.llama_index import CtxVectorMemoryBlock, CtxVectorPostprocessor, CtxVectorRetriever

question = sys.argv[1] if len(sys.argv) > 1 else "How do I reduce the memory usage of Pandas?"
retriever = CtxVectorRetriever(".demo/kb", similarity_top_k=20)
retriever.knowledge.sync("data/knowledge")
engine = RetrieverQueryEngine.from_args(
    retriever, llm=MockLLM(), node_postprocessors=[CtxVectorPostprocessor(max_tokens=400)]
)
answer = engine.query(question)
print(answer)
for item in answer.source_nodes:
    print(f"{item.score:.2f}  {item.metadata['cite']}")

with Memory(".demo/memory", user_id="ada") as memory:
    block = CtxVectorMemoryBlock(memory=memory)  # for Memory.from_defaults(memory_blocks=[block])
    asyncio.run(block.aput([ChatMessage(role="user", content="My CSV file has 5 million rows.")]))
    print(asyncio.run(block.aget([ChatMessage(role="user", content="How large is my file?")])))
