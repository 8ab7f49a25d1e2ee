"""The quick start of the README: index a folder, build a context, see why each piece is in it."""

from ctx_vector import ContextBuilder, ContextConfig, Message, RAGTool

rag = RAGTool(knowledge_base_path=".demo/kb")
rag.run({"action": "sync", "paths": ["data/knowledge"]})

builder = ContextBuilder(rag_tool=rag, config=ContextConfig(max_tokens=550, citations=True))
built = builder.assemble(
    user_query="How do I reduce the memory usage of Pandas?",
    system_instructions="You are a Pandas consultant.",
    conversation_history=[
        Message("My CSV file has 5 million rows.", "user"),
        Message("Which columns do you need?", "assistant"),
    ],
)
print(built.text)
for row in built.explain():
    print("kept" if row["kept"] else row["reason"], row["section"], row["tokens"], row["action"], row["cites"])
print(built.budget.total_used, "of", built.budget.total_limit, "tokens")
