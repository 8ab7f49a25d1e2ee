"""The MCP server from a client: what an agent program does with `ctx-vector mcp`. Needs the extra `mcp`.

python examples/mcp_client.py [FOLDER] [QUESTION] [--kb DIR]
"""

import argparse
import asyncio
import sys

from mcp import Client, StdioServerParameters

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("folder", nargs="?", default="data/knowledge")
options.add_argument("question", nargs="?", default="How do I reduce the memory usage of Pandas?")
options.add_argument("--kb", default=".demo/kb")
given = options.parse_args()


async def tell(done: float, total: float | None, message: str | None) -> None:
    """Show how far indexing is."""
    print(f"  {message}")


async def main() -> None:
    """Index, search, and build a context."""
    words = ["-m", "ctx_vector", "mcp", "--kb", given.kb, "--root", given.folder, "--no-memory"]
    async with Client(StdioServerParameters(command=sys.executable, args=words)) as client:
        print("tools:", ", ".join(tool.name for tool in (await client.list_tools()).tools))
        indexed = await client.call_tool("index_path", {"path": "."}, progress_callback=tell)
        print(indexed.content[0].text)
        found = await client.call_tool("search_knowledge", {"query": given.question, "limit": 3})
        for passage in found.structured_content["passages"]:
            print(f"  {passage['score']:.2f}  {passage['cite']}")
        built = await client.call_tool("build_context", {"query": given.question, "max_tokens": 500})
        for part in built.content:
            print(part.text)


asyncio.run(main())
