"""The command line: `ctx-vector`, or `python -m ctx_vector`.

    __init__    starts: a plain `search` at once, everything else through Typer
    app         the Typer application: which commands there are
    common      what all commands share: errors to exit codes, output, log lines
    opening     which encoder, knowledge base and audit a command uses, and opens
    the rest    one file a group of commands: parse, call one library function, print

Results go to stdout, everything else to stderr. Exit codes: 0, 1 (one line ``error: ...``), 2 (wrong usage), 130
(interrupted).

Loading Typer takes as long as loading the model and searching together, so a `search` whose arguments need no help and
have no error is read here (`search.read_plain`); a test holds the two readers together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command line (default: the process's) and exit."""
    from ctx_vector.cli.common import finish, run, set_up_streams

    own = arguments is None
    given = list(sys.argv[1:] if arguments is None else arguments)
    set_up_streams()
    if given[:1] == ["search"]:
        from ctx_vector.cli.search import read_plain, search

        plain = read_plain(given[1:])
        if plain is not None:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one query needs no pool of threads
            finish(run(lambda: search(plain)), quick=own, own=own)
    finish(run(lambda: _typer(given)), own=own)


def _typer(given: list[str]) -> int:
    from ctx_vector.cli.app import app

    try:
        app(args=given, prog_name="ctx-vector")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
