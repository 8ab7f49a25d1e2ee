"""An agent over a folder of documents and what it remembers of its user, with a model server on this machine.

    python examples/agent.py                                                        # llama-server on port 8080
    python examples/agent.py --base-url http://127.0.0.1:11434/v1 --model qwen3:4b  # Ollama
    python examples/agent.py --language zh                                          # 中文

Start a server first: `llama-server -m model.gguf --port 8080`, or `ollama serve`. What the agent remembers is in
`.demo/memory`: run it twice, and the second run recalls the first.
"""

import argparse
import sys

from ctx_vector import CtxVectorError
from ctx_vector.adapters.openai import DEFAULT_URL, OpenAIChat
from ctx_vector.agent import ContextAwareAgent

TALKS = {
    "en": (
        "You are a Pandas consultant. Answer in at most five sentences.",
        ["How do I reduce the memory usage of Pandas?", "What do you know about me and my data?"],
    ),
    "zh": (
        "你是一位Pandas顾问，回答不超过五句话。",
        ["如何优化Pandas的内存占用？", "关于我和我的数据，你知道些什么？"],
    ),
}


def main() -> None:
    """Ask two questions, and show what each answer was built from."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--base-url", default=DEFAULT_URL)
    options.add_argument("--model", default="local")
    options.add_argument("--language", choices=sorted(TALKS), default="en")
    options.add_argument("--kb", default=".demo/kb")
    options.add_argument("--memory", default=".demo/memory")
    given = options.parse_args()
    system, questions = TALKS[given.language]
    with ContextAwareAgent(
        "consultant",
        OpenAIChat(given.base_url, given.model),
        system_prompt=system,
        user_id=f"analyst-{given.language}",
        knowledge_base_path=given.kb,
        memory_path=given.memory,
    ) as agent:
        agent.rag_tool.run({"action": "sync", "paths": ["data/knowledge"]})
        with open(f"data/memories/pandas_{given.language}.jsonl", encoding="utf-8") as lines:
            agent.memory_tool.memory.import_lines(lines)
        for question in questions:
            print(f"> {question}")
            for piece in agent.stream(question):
                print(piece, end="", flush=True)
            built = agent.last_context
            kept = [
                row["cites"] or row["preview"] for row in built.explain() if row["kept"] and row["section"] != "Task"
            ]
            print(f"\n  ({built.budget.total_used} of {built.budget.total_limit} tokens: {'; '.join(kept)})\n")


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8")
    try:
        main()
    except CtxVectorError as error:
        sys.exit(f"error: {error}")
