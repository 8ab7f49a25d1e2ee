"""Progress on stderr: bars where it is a terminal, nothing where it is not. Rich is loaded for a bar only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctx_vector.stages import Encoder, Vectors
    from ctx_vector.sync_report import Progress

Tick = Callable[[int], None]


def _bar(*columns: Any) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        *columns,
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        transient=True,
        expand=True,
    )


@contextmanager
def step_line(title: str) -> Generator[Callable[[str, float], None]]:
    """Give a function to call with a step and the share done: a line that changes; one line at the start elsewhere."""
    terminal = sys.stderr.isatty()
    if not terminal:
        sys.stderr.write(f"{title}; this happens once\n")
    longest = 0

    def tell(step: str, done: float) -> None:
        nonlocal longest
        if terminal:
            line = f"{title}: {step} ({done:.0%})"
            longest = max(longest, len(line))
            sys.stderr.write(f"\r{line.ljust(longest)}")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        if longest:
            sys.stderr.write("\r" + " " * longest + "\r")
            sys.stderr.flush()


@contextmanager
def index_bar() -> Generator[Callable[[Progress], None] | None]:
    """Give the `progress` of `KnowledgeBase.sync`, or None when stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import TextColumn

    speed, files = TextColumn("{task.fields[speed]}"), TextColumn("{task.fields[files]}")
    with _bar(files, speed) as bar:
        task = bar.add_task("indexing", total=None, files="looking for files", speed="")
        began: float | None = None

        def tell(progress: Progress) -> None:
            nonlocal began
            now = time.monotonic()
            began = began or now
            rate = progress.encoded / (now - began) if now > began + 0.2 else 0.0
            bar.update(
                task,
                description="stopping, keeping what is being encoded" if progress.stopping else "indexing",
                total=max(progress.bytes_total, 1),
                completed=progress.bytes_done,
                files=f"{progress.files_done:,}/{progress.files_total:,} files",
                speed=f"{rate:.0f} chunks/s" if rate else "",
            )

        yield tell


@contextmanager
def count_bar(title: str, total: int, unit: str = "texts") -> Generator[Tick]:
    """Give a function to call with the number of items just done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import TextColumn

    with _bar(TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit)) as bar:
        task = bar.add_task(title, total=max(total, 1))
        yield lambda done: bar.advance(task, done)


@contextmanager
def stage_bar() -> Generator[Callable[[str, int, int], None] | None]:
    """Give the `progress` of an experiment, told (what, done, total), or None when stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import TextColumn

    with _bar(TextColumn("{task.completed:,.0f}/{task.total:,.0f}")) as bar:
        task = bar.add_task("starting", total=1)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=max(total, 1))


class Watched:
    """An encoder that tells how many texts it has encoded; everything else is the one behind it."""

    def __init__(self, encoder: Encoder, tick: Tick) -> None:
        self._encoder = encoder
        self._tick = tick

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode_documents(self, texts: Sequence[str]) -> Vectors:
        """Return (n, dim) float32, unit rows, encoded a few at a time."""
        return self._in_parts(self._encoder.encode_documents, texts)

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Return (n, dim) float32, unit rows, encoded a few at a time."""
        return self._in_parts(self._encoder.encode_queries, texts)

    def _in_parts(self, encode: Callable[[Sequence[str]], Vectors], texts: Sequence[str]) -> Vectors:
        import numpy as np

        parts = []
        for start in range(0, len(texts), 16):
            part = texts[start : start + 16]
            parts.append(encode(part))
            self._tick(len(part))
        return np.concatenate(parts) if parts else encode(texts)
