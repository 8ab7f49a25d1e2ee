"""HelloAgents: memory, knowledge and contexts as tools of its registry. Needs the extra `hello-agents`.

    python examples/hello_agents_tools.py [QUESTION]

Give the registry to an agent of HelloAgents, and its model calls the tools itself.
"""

import json
import sys

from hello_agents import Message, ToolRegistry

from ctx_vector import ContextBuilder
from ctx_vector.adapters.hello_agents import CtxContextTool, CtxMemoryTool, CtxRAGTool

question = sys.argv[1] if len(sys.argv) > 1 else "如何优化Pandas的内存占用？"
memory = CtxMemoryTool(user_id="ada", path=".demo/memory")
rag = CtxRAGTool(knowledge_base_path=".demo/kb")
builder = ContextBuilder(memory_tool=memory, rag_tool=rag)
registry = ToolRegistry()
for tool in (memory, rag, CtxContextTool(builder)):
    registry.register_tool(tool)


def call(name: str, **parameters: object) -> str:
    """Call a tool as a model does."""
    response = registry.execute_tool(name, json.dumps(parameters))
    return response.text if response.error_info is None else f"error: {response.error_info['message']}"


print(call("rag", action="sync", paths=["data/knowledge"]))
print(call("memory", action="add", content="Ada 的 CSV 文件有500万行", memory_type="semantic", importance=0.8))
print(call("context", query=question, max_tokens=600))
# its messages work in a build as they are
print(builder.build(question, conversation_history=[Message("我用的是 Pandas 2", "user")], max_tokens=300))
