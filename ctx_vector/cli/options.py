"""What the Typer commands share: options with one meaning everywhere, and the guard around each command."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import cleandoc
from typing import Annotated, Any

import typer

from ctx_vector.cli.common import run
from ctx_vector.cli.opening import DEFAULT_KB

Kb = Annotated[str, typer.Option("--kb", metavar="DIR", help="Folder of the knowledge base.")]
MaybeKb = Annotated[
    str | None,
    typer.Option("--kb", metavar="DIR", help=f"Folder of the knowledge base. Default: {DEFAULT_KB}, if there is one."),
]
NoKb = Annotated[bool, typer.Option("--no-kb", help="Use no knowledge base.")]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT|@FILE", help="System instructions; never cut.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Encoder: a known model, a folder, or owner/name. Default: the one that the knowledge base was made with.",
    ),
]
Audit = Annotated[
    str | None,
    typer.Option(
        "--audit",
        metavar="FILE",
        help="File of the audit. Default: audit.sqlite3 in the knowledge base, else in the platform's data folder.",
    ),
]
NoAudit = Annotated[bool, typer.Option("--no-audit", help="Do not record what is built.")]


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Return what completes a value that is one of a few names."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def _scorers(incomplete: str) -> list[str]:
    from ctx_vector.plugins import plugin_names
    from ctx_vector.scoring import SCORERS

    return one_of(*SCORERS, *plugin_names("strategy"))(incomplete)


def _searches(incomplete: str) -> list[str]:
    from ctx_vector.scoring import RETRIEVAL

    return one_of(*RETRIEVAL)(incomplete)


def _second_passes(incomplete: str) -> list[str]:
    from ctx_vector.plugins import plugin_names
    from ctx_vector.rerank import RERANKERS

    return one_of(*RERANKERS, *plugin_names("rerank"))(incomplete)


Rerank = Annotated[
    str | None,
    typer.Option(
        "--rerank",
        metavar="late|DIR",
        help="Look again at the best: late, or the folder of a cross-encoder.",
        autocompletion=_second_passes,
    ),
]
Scoring = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="How relevance is scored: cosine, hybrid, bm25, ...  [default: cosine]",
        autocompletion=_scorers,
    ),
]
Retrieval = Annotated[
    str,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="By cosine, hybrid (with keywords) or bm25.",
        autocompletion=_searches,
    ),
]

HELP_ALSO = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def guarded(command: Callable[..., int | None]) -> Callable[..., None]:
    """Turn what a command raises into one line and an exit code; see `common.run`."""
    keep_lines_of_examples(command)

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        code = run(lambda: command(*args, **kwargs))
        if code:
            raise typer.Exit(code)

    return wrapper


def new_app(help: str = "", *, completion: bool = False) -> typer.Typer:
    """Return a Typer application without Rich and tracebacks, with the options for shell completion if wanted."""
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=completion,
        no_args_is_help=True,
        context_settings=HELP_ALSO,
    )
    if help:
        app.info.help = help
    return app


def keep_lines_of_examples(command: Callable[..., object]) -> None:
    """Mark the paragraph that begins with ``For example:`` so that the help does not fill its lines."""
    text = cleandoc(command.__doc__ or "")  # from Python 3.13 on it comes without its indentation
    command.__doc__ = text.replace("\nFor example:\n", "\n\b\nFor example:\n")
