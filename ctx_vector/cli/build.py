"""`ctx-vector build`: a context on stdout, and why it is what it is."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctx_vector.cli.common import UsageError, check_query, held_warnings, print_json
from ctx_vector.cli.config import AllowPython, Scope
from ctx_vector.cli.memory import Folder, memory_encoder, open_memory
from ctx_vector.cli.opening import open_audit, open_encoder, open_kb, used_kb
from ctx_vector.cli.options import Audit, MaybeKb, Model, NoAudit, NoKb, Rerank, Scoring, System, guarded, one_of

if TYPE_CHECKING:
    from ctx_vector.built import BuiltContext

_FORMATS = ("text", "messages", "json")


@guarded
def build(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What the model is to answer.")],
    kb: MaybeKb = None,
    no_kb: NoKb = False,
    memory: Folder = None,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="ID", help="Whose memories; none are used without --user or --memory."),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option("--history", metavar="FILE", help="Messages so far: JSON lines or a JSON list (-: stdin)."),
    ] = None,
    system: System = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="JSON|@FILE", help="Task state: a text or a JSON object.")
    ] = None,
    document: Annotated[
        list[str] | None,
        typer.Option("--document", metavar="FILE", help="One more source of evidence; may be repeated."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings in YAML, or YAML, TOML or JSON with fields of ContextConfig."
        ),
    ] = None,
    scope: Scope = None,
    allow_python: AllowPython = False,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", help="Size of the whole context.  [default: 3000]")
    ] = None,
    strategy: Scoring = None,
    rerank: Rerank = None,
    fill: Annotated[
        str | None,
        typer.Option(
            "--fill",
            metavar="skip|stop",
            help="After what does not fit: go on, or end.  [default: skip]",
            autocompletion=one_of("skip", "stop"),
        ),
    ] = None,
    locale: Annotated[
        str | None,
        typer.Option(
            "--locale",
            metavar="auto|en|zh",
            help="Language of headings.  [default: auto]",
            autocompletion=one_of("auto", "en", "zh"),
        ),
    ] = None,
    citations: Annotated[
        bool | None, typer.Option("--citations/--no-citations", help="Show source:lines before each item.")
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="text|messages|json",
            help="What to print; json has everything.",
            autocompletion=one_of(*_FORMATS),
        ),
    ] = "text",
    explain: Annotated[bool, typer.Option("--explain", help="Add what was kept and dropped, and why.")] = False,
    now: Annotated[
        str | None, typer.Option("--now", metavar="TIME", help="Build as if it were this time (ISO 8601).")
    ] = None,
    model: Model = None,
    audit: Audit = None,
    no_audit: NoAudit = False,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Build the context for a question, inside an exact token budget.

    Builds are recorded; see ctx-vector audit.

    For example:
      ctx-vector build "How do I reduce the memory usage of Pandas?" --kb kb --explain
      ctx-vector build "如何优化Pandas的内存占用？" --kb kb --history chat.jsonl --max-tokens 1500
      ctx-vector build "Which format should she use?" --memory memory --user ada
      ctx-vector build "还能退货吗？" --config context.yaml --scope agent_a
    """
    from ctx_vector.cli import inputs

    check_query(query)
    form = "json" if json else format
    if form not in _FORMATS:
        raise UsageError(f"--format: expected one of {', '.join(_FORMATS)}, got {format!r}")
    sized: dict[str, Any] = {}
    changes = {"strategy": strategy, "rerank": rerank, "fill": fill, "locale": locale, "citations": citations}
    chosen: Any = None
    if config is not None and inputs.is_settings(config):
        chosen = inputs.read_settings(config, changes, scope, allow_python)
        folder = used_kb(kb, no_kb or kb is None)  # the file says what is searched
        sized = {"max_tokens": max_tokens}
    elif scope is not None or allow_python:
        raise UsageError("--scope and --allow-python: only with --config and a file that has sources")
    else:
        chosen = inputs.read_config(config, {**changes, "max_tokens": max_tokens})
        folder = used_kb(kb, no_kb)
    given: dict[str, Any] = {
        "conversation_history": inputs.read_history(history),
        "system_instructions": inputs.text_argument(system, "--system"),
        "state": inputs.read_state(state),
        "now": now,
        **sized,
    }
    with ExitStack() as stack:
        recalls = (memory, user or "default") if memory is not None or user is not None else None
        builder = make_builder(
            stack,
            chosen,
            folder,
            model,
            recalls,
            allow_python=allow_python,
            user_id=user or "default",
            **_recording(chosen, audit, no_audit, folder),
        )
        if builder.audit is not None:
            stack.callback(builder.audit.close)
        given["documents"] = inputs.read_documents(document or (), builder.counter)
        held = stack.enter_context(held_warnings())
        built = builder.assemble(query, **given)
        if explain and form != "json":
            held.told += [" ".join(text.split()) for text in built.warnings]  # the table shows them
            held.told += [f"source {name}: " for name, use in built.budget.sources.items() if use.fault]
    _print(built, form)
    if explain and form != "json":
        from ctx_vector.cli.explain import show_explanation

        show_explanation(built)


def _recording(chosen: Any, audit: str | None, no_audit: bool, folder: str | None) -> dict[str, Any]:
    """Return the argument that says where the build is recorded; none when settings say it."""
    if audit is None and not no_audit and hasattr(chosen, "audit"):
        return {}
    return {"audit": open_audit(audit, no_audit, folder)}


def make_builder(
    stack: ExitStack,
    chosen: Any,
    folder: str | None,
    model: str | None,
    recalls: tuple[str | None, str] | None,
    *,
    allow_python: bool,
    **more: Any,
) -> Any:
    """Return the builder of a ContextConfig, or of Settings, with the tools that the options ask for."""
    from ctx_vector.builder import ContextBuilder
    from ctx_vector.config import ContextConfig

    plain = isinstance(chosen, ContextConfig)
    config = chosen if plain else chosen.config
    ContextBuilder(config=config)  # an unknown strategy is told before a model is loaded
    tools: dict[str, Any] = {**more}
    if folder is not None:
        from ctx_vector.tools import RAGTool

        kb = stack.enter_context(open_kb(folder, model))
        tools |= {"rag_tool": RAGTool(knowledge=kb), "encoder": kb.encoder}
    elif recalls is not None or not plain or config.strategy not in ("jaccard", "bm25"):
        tools["encoder"] = open_encoder(model)
    if recalls is not None:
        from ctx_vector.tools import MemoryTool

        kept = stack.enter_context(open_memory(*recalls, encoder=memory_encoder(tools["encoder"], model)))
        tools["memory_tool"] = MemoryTool(memory=kept)
    if plain:
        return ContextBuilder(config=config, **tools)
    return ContextBuilder.from_config(chosen, allow_python=allow_python, **tools)


def _print(built: BuiltContext, form: str) -> None:
    if form == "json":
        print_json(built.to_dict())
    elif form == "messages":
        print_json(built.messages)
    else:
        sys.stdout.write(built.text if built.text.endswith("\n") else built.text + "\n")
