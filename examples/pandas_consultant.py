"""A Pandas consultant who remembers: two memories, four messages of a conversation, and a folder of knowledge.

    python examples/pandas_consultant.py [en|zh] [FOLDER]

Prints the context an LLM would see. What was said in the conversation is in the section Context, what is remembered of
the user stands after it. In a real conversation leave out `now`, which is fixed here for the sake of equal output.
"""

import json
import sys
import tempfile
from pathlib import Path

from ctx_vector import BuiltContext, ContextBuilder, ContextConfig, MemoryTool, Message, RAGTool

DATA = Path(__file__).resolve().parent.parent / "data"
ASK = {
    "en": ("How do I reduce the memory usage of Pandas?", "You are a senior consultant for Python data tools."),
    "zh": ("如何优化Pandas的内存占用?", "你是一位资深的Python数据工具顾问。"),
}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def consult(language: str, folder: Path) -> BuiltContext:
    memory = MemoryTool(user_id=f"analyst-{language}", path=folder / "memory")
    for item in lines(DATA / "memories" / f"pandas_{language}.jsonl"):
        memory.run({"action": "add", **item})
    knowledge = RAGTool(knowledge_base_path=folder / "kb")
    knowledge.run({"action": "sync", "paths": [str(DATA / "knowledge")]})

    question, role = ASK[language]
    builder = ContextBuilder(memory_tool=memory, rag_tool=knowledge, config=ContextConfig(max_tokens=3000))
    return builder.assemble(
        user_query=question,
        conversation_history=[Message(**item) for item in lines(DATA / "history" / f"pandas_{language}.jsonl")],
        system_instructions=role,
        now="2025-05-20T09:20:00+00:00",
    )


if __name__ == "__main__":
    asked = sys.argv[1] if len(sys.argv) > 1 else "en"
    if len(sys.argv) > 2:
        print(consult(asked, Path(sys.argv[2])).text)
    else:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            print(consult(asked, Path(temporary)).text)
