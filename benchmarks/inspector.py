"""How long the inspector's pages take, warm: over many builds, and for a build with thousands of candidates.

    python benchmarks/inspector.py [--builds 10000] [--candidates 2000] [--calls 15]

Requests go to the application in this process. Writes benchmarks/results/inspector.json: milliseconds, and kilobytes of
the page. Query, session and text vary; a third of the builds has no session.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import httpx
from common import hardware, write_result

from ctx_vector import ContextBuilder, ContextConfig, ContextPacket
from ctx_vector.audit import AuditLog
from ctx_vector.inspector import Stores, make_app

TOKEN = "t" * 24
HOST = "127.0.0.1:8766"


def fill(log: AuditLog, builds: int, candidates: int) -> tuple[str, str]:
    """Record builds, and return the ids of a small and of a large one."""
    builder = ContextBuilder(
        audit=log, config=ContextConfig(max_tokens=800, strategy="jaccard", min_relevance=0, tokenizer="estimate")
    )
    for n in range(builds):
        small = builder.assemble(
            f"question {n} about 内存",
            documents=[f"text {n % 500 + i} of pandas memory 内存" for i in range(4)],
            session_id=f"s{n % 300}" if n % 3 else None,
        )
        if n % 1000 == 999:
            log.flush()
    large = ContextBuilder(audit=log, config=ContextConfig(max_tokens=60_000, strategy="jaccard", min_relevance=0))
    documents = [f"document {n} about cats and {'dogs' if n % 2 else '鸟'} " * 3 for n in range(candidates)]
    documents[5] = "字" * 100_000
    built = large.assemble("cats and dogs 字", documents=documents, custom_packets=[ContextPacket("x " * 50_000)])
    log.flush()
    return str(small.meta["build_id"]), str(built.meta["build_id"])


async def measure(log: AuditLog, small: str, large: str, calls: int) -> dict[str, dict[str, float]]:
    middle = log.list(limit=5_000)[-1]["id"]
    pages = {
        "list of builds": "/",
        "list, from the middle": f"/?before={middle}",
        "list, a search that finds one in ten": "/?q=question+1",
        "list, a search that finds nothing": "/?q=nothing+of+this",
        "list, one session": "/?session=s7",
        "a build": f"/build/{small}",
        "a build, what if": f"/build/{small}/what-if?max_tokens=400",
        "a large build": f"/build/{large}",
        "a large build, every row": f"/build/{large}?all=1",
        "a large build, what if": f"/build/{large}/what-if?max_tokens=30000",
        "a candidate of it": f"/build/{large}/item/3",
        "two builds compared": f"/diff?a={small}&b={large}",
    }
    app = make_app(Stores(audit=log), TOKEN, [HOST])
    found = {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{HOST}") as client:
        await client.get(f"/?token={TOKEN}")
        for name, address in pages.items():
            times = []
            for _ in range(calls + 2):
                started = time.perf_counter()
                answer = await client.get(address)
                times.append((time.perf_counter() - started) * 1000)
                assert answer.status_code == 200, (name, answer.status_code)
            found[name] = {
                "median_ms": round(statistics.median(times[2:]), 1),
                "least_ms": round(min(times[2:]), 1),
                "kilobytes": round(len(answer.content) / 1000, 1),
            }
            print(f"{name}: {found[name]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--builds", type=int, default=10_000)
    parser.add_argument("--candidates", type=int, default=2_000)
    parser.add_argument("--calls", type=int, default=15)
    parser.add_argument("--keep", type=Path, default=None, help="a folder where the log stays, to be used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        path = (options.keep or Path(made)) / "audit.sqlite3"
        with AuditLog(path) as log:
            if path.exists():
                large, small = (row["id"] for row in log.list(limit=2))
            else:
                small, large = fill(log, options.builds, options.candidates)
            pages = asyncio.run(measure(log, small, large, options.calls))
    write_result(
        "inspector",
        {"hardware": hardware(), "builds": options.builds, "candidates": options.candidates, "pages": pages},
    )


if __name__ == "__main__":
    main()
