"""`ctx-vector doctor`: whether everything is here that is needed, and works."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ctx_vector.cli.common import count, note, out, print_json
from ctx_vector.cli.opening import DEFAULT_KB, default_kb
from ctx_vector.cli.options import Json, guarded


@guarded
def doctor(
    kb: Annotated[
        str | None,
        typer.Option("--kb", metavar="DIR", help=f"Check this knowledge base; else ./{DEFAULT_KB}, if it is there."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="DIR", help="Check this memory; else the default one, if it is there."),
    ] = None,
    json: Json = False,
) -> int:
    """Check the installation, the model and what is on disk. Exit code 1 if something does not work.

    It looks at Python, packages and extras, SQLite with FTS5, FAISS, the tokenizer, the terminal, disk space, the model
    and an encoding; at the knowledge base that commands use, and its audit.

    For example:
      ctx-vector doctor --kb kb
    """
    from ctx_vector.cli.checks import all_checks

    found = []
    for check in all_checks(kb if kb is not None else default_kb(), memory):
        if sys.stderr.isatty() and not json:
            sys.stderr.write(f"\r\x1b[Kchecking {check.name} ...")
            sys.stderr.flush()
        found.append(check.run())
    if sys.stderr.isatty() and not json:
        sys.stderr.write("\r\x1b[K")
    failed = [row for row in found if row.status == "fail"]
    warned = [row for row in found if row.status == "warn"]
    if json:
        print_json({"ok": not failed, "checks": [row.to_dict() for row in found]})
    else:
        from ctx_vector.cli.tables import show_table

        show_table(
            ["", "check", "result"],
            [[row.status, row.name, row.detail + (f"\n→ {row.todo}" if row.todo else "")] for row in found],
            styles={"ok": "green", "warn": "yellow", "fail": "bold red"},
            folding=("result",),
        )
        if not failed:
            out("all is well" if not warned else f"it works, with {count(len(warned), 'warning')}")
    if failed:
        names = ", ".join(row.name for row in failed)
        note(f"error: {count(len(failed), 'check')} failed ({names}); see above what to do")
    return 1 if failed else 0
