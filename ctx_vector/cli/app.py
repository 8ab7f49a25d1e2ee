"""The Typer application: all commands, and the options that come before a command."""

from __future__ import annotations

from typing import Annotated

import typer

from ctx_vector.cli.ab import ab
from ctx_vector.cli.audit import audit_app
from ctx_vector.cli.build import build
from ctx_vector.cli.chat import chat
from ctx_vector.cli.common import out, set_up_logging
from ctx_vector.cli.config import config_app
from ctx_vector.cli.doctor import doctor
from ctx_vector.cli.inspect import inspect
from ctx_vector.cli.kb import kb_app
from ctx_vector.cli.knowledge import index, search
from ctx_vector.cli.mcp import mcp
from ctx_vector.cli.memory import memory_app
from ctx_vector.cli.models import models_app
from ctx_vector.cli.options import keep_lines_of_examples, new_app
from ctx_vector.cli.tune import tune

app = new_app(completion=True)


def _version(asked: bool) -> None:
    if asked:
        from ctx_vector import __version__

        out(f"ctx-vector {__version__}")
        raise typer.Exit


@app.callback()
def top(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what is going on, on stderr.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Builds the context an LLM sees: offline, on a CPU, inside an exact token budget.

    For example:
      ctx-vector index docs --kb kb
      ctx-vector search "How do I declare a path parameter?" --kb kb
      ctx-vector build "如何声明路径参数？" --kb kb --max-tokens 2000 --explain

    Results go to stdout, everything else to stderr. Exit codes: 0; 1 with one line "error: ..."; 2 for wrong usage;
    130 when interrupted.
    """
    set_up_logging(verbose=verbose)


keep_lines_of_examples(top)
app.command()(index)
app.command()(search)
app.command()(build)
app.command()(chat)
app.command()(mcp)
app.command()(inspect)
app.add_typer(memory_app, name="memory")
app.add_typer(kb_app, name="kb")
app.add_typer(models_app, name="models")
app.add_typer(config_app, name="config")
app.add_typer(audit_app, name="audit")
app.command()(ab)
app.command()(tune)
app.command()(doctor)
