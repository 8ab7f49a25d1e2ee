"""What the MCP server costs: its start, and each call against the same done in this process.

    python benchmarks/mcp_server.py [--calls 100]

A server of its own over the sample knowledge, by stdin and stdout and by HTTP; every query is new, so that each is
encoded. Writes benchmarks/results/mcp_server.json.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from common import hardware, write_result
from mcp import Client, StdioServerParameters

from ctx_vector import ContextBuilder, ContextConfig, KnowledgeBase, RAGTool

ROOT = Path(__file__).resolve().parent.parent


def median(work: Callable[[int], object], calls: int) -> float:
    """Return the median milliseconds of `work(n)`."""
    times = []
    for n in range(calls + 3):
        started = time.perf_counter()
        work(n)
        times.append((time.perf_counter() - started) * 1000)
    return round(statistics.median(times[3:]), 2)


async def amedian(work: Callable[[int], Awaitable[object]], calls: int) -> float:
    """Do the same for what is awaited."""
    times = []
    for n in range(calls + 3):
        started = time.perf_counter()
        await work(n)
        times.append((time.perf_counter() - started) * 1000)
    return round(statistics.median(times[3:]), 2)


async def through(connect: Callable[[], Client], calls: int) -> dict[str, float]:
    """Return the figures of one way of reaching a server."""
    started = time.perf_counter()
    async with connect() as client:
        await client.list_tools()
        ready = time.perf_counter() - started

        async def search(n: int) -> None:
            done = await client.call_tool("search_knowledge", {"query": f"memory of column {n}", "limit": 5})
            assert not done.is_error

        async def build(n: int) -> None:
            done = await client.call_tool("build_context", {"query": f"types of column {n}", "max_tokens": 1500})
            assert not done.is_error

        return {
            "ready_s": round(ready, 2),
            "search_ms": await amedian(search, calls),
            "build_ms": await amedian(build, calls),
        }


def main() -> None:
    """Measure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--calls", type=int, default=100)
    calls = options.parse_args().calls
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "kb"
        with KnowledgeBase(place) as kb:
            kb.sync(ROOT / "data" / "knowledge")
            builder = ContextBuilder(rag_tool=RAGTool(knowledge=kb), config=ContextConfig(citations=True))
            here = {
                "search_ms": median(lambda n: kb.search(f"memory of column {n}", 5), calls),
                "build_ms": median(lambda n: builder.assemble(f"types of column {n}", max_tokens=1500), calls),
            }
        words = ["-m", "ctx_vector", "mcp", "--kb", str(place), "--no-memory"]
        stdio = asyncio.run(through(lambda: Client(StdioServerParameters(command=sys.executable, args=words)), calls))
        process = subprocess.Popen([sys.executable, *words, "--http", "--port", "0"], stderr=subprocess.PIPE, text=True)
        try:
            address = re.search(r"http://\S+", process.stderr.readline())[0].rstrip(";")
            http = asyncio.run(through(lambda: Client(address), calls))
        finally:
            process.terminate()
            process.wait()
    write_result("mcp_server", {"hardware": hardware(), "calls": calls, "here": here, "stdio": stdio, "http": http})


if __name__ == "__main__":
    main()
