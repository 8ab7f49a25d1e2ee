"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def whole_file(path: Path, mode: str = "w", **options: Any) -> Generator[IO[Any]]:
    """Lend a new file beside `path`, which takes its place at the end; after an error nothing of it is left.

    `options` go to `open`; text is UTF-8, and its line breaks are written as they are. Raises OSError naming `path`
    before anything is written, when it is a folder or cannot be made.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    if "b" not in mode:
        options = {"encoding": "utf-8", "newline": "\n", **options}
    try:
        lent = part.open(mode, **options)
    except OSError as error:  # about a file that nobody has heard of
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    try:
        with lent as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
