"""LangChain: a retriever, a compressor and a history that lasts, in one chain. Needs the extra `langchain`.

    python examples/langchain_rag.py [QUESTION]

Put your chat model where the last line of the chain says so.
"""

import sys

from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda

from ctx_vector.adapters.langchain import CtxVectorChatMessageHistory, CtxVectorCompressor, CtxVectorRetriever

question = sys.argv[1] if len(sys.argv) > 1 else "How do I reduce the memory usage of Pandas?"
retriever = CtxVectorRetriever.from_folder(".demo/kb", k=20)
retriever.knowledge.sync("data/knowledge")
compressor = CtxVectorCompressor(max_tokens=400)
history = CtxVectorChatMessageHistory("session-1", ".demo/chats")


def evidence(asked: dict) -> str:
    """Return the best passages that fit, with their citations."""
    chosen = compressor.compress_documents(retriever.invoke(asked["question"]), asked["question"])
    return "\n---\n".join(f"({item.metadata['cite']})\n{item.page_content}" for item in chosen)


prompt = ChatPromptTemplate.from_messages(
    [("system", "Answer from this:\n{evidence}"), MessagesPlaceholder("history"), ("human", "{question}")]
)
model = RunnableLambda(lambda value: f"(a model would see {len(value.to_string())} characters)\n{value.to_string()}")
given = {"evidence": evidence, "history": lambda _: history.messages, "question": lambda asked: asked["question"]}
chain = given | prompt | model
answer = chain.invoke({"question": question})
print(answer)
history.add_user_message(question)
history.add_ai_message("Use smaller types.")
