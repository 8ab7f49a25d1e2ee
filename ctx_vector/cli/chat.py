"""`ctx-vector chat`: a conversation with a model server, each question with a context of its own."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ctx_vector.adapters.openai import DEFAULT_URL
from ctx_vector.cli.common import UsageError, note, out, print_json
from ctx_vector.cli.memory import Folder, memory_encoder, open_memory
from ctx_vector.cli.opening import open_audit, open_encoder, open_kb, used_kb
from ctx_vector.cli.options import Audit, MaybeKb, NoAudit, NoKb, System, guarded
from ctx_vector.cli.text import BOLD, plain, style
from ctx_vector.errors import CtxVectorError

if TYPE_CHECKING:
    from ctx_vector.agent import ContextAwareAgent
    from ctx_vector.audit import AuditLog
    from ctx_vector.built import BuiltContext

_COMMANDS: Final = {
    "/why": "show what was kept and dropped for the last question, and why",
    "/context": "show the context of the last question",
    "/help": "show this",
    "/quit": "end; so does Ctrl-D",
}


@guarded
def chat(
    base_url: Annotated[
        str, typer.Option("--base-url", metavar="URL", help="Address of an OpenAI-compatible API.")
    ] = DEFAULT_URL,
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Name of the language model there.")] = "local",
    kb: MaybeKb = None,
    no_kb: NoKb = False,
    memory: Folder = None,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="ID", help="Whose memories; nothing is remembered without --user or --memory."),
    ] = None,
    system: System = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", metavar="N", help="Size of each context.")] = 4000,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long the server may be silent.")
    ] = 120.0,
    api_key: Annotated[
        str,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="CTX_VECTOR_API_KEY",
            show_envvar=False,
            help="Key for the server, or in the variable CTX_VECTOR_API_KEY; local servers take any.",
        ),
    ] = "none",
    once: Annotated[
        str | None, typer.Option("--once", metavar="TEXT|@FILE", help="Ask this one question, and end.")
    ] = None,
    audit: Audit = None,
    no_audit: NoAudit = False,
    json: Annotated[bool, typer.Option("--json", help="With --once: print answer and sources as JSON.")] = False,
) -> None:
    """Talk to a language model that sees your documents and remembers.

    The model runs in a server of its own: llama-server -m model.gguf --port 8080, or ollama serve. In the conversation,
    /why shows why the model saw what it saw. Ctrl-C stops an answer. From a pipe, each line is a question.

    For example:
      ctx-vector chat --kb kb --user ada
      ctx-vector chat --base-url http://127.0.0.1:11434/v1 --model qwen3:4b --once "怎样声明路径参数？" --json
    """
    if json and once is None:
        raise UsageError("--json: only with --once")
    from ctx_vector.adapters.openai import OpenAIChat
    from ctx_vector.cli.inputs import text_argument

    question = text_argument(once, "--once")
    folder = used_kb(kb, no_kb)
    with ExitStack() as stack:
        llm = OpenAIChat(base_url, model, api_key, timeout)
        stack.callback(llm.close)
        log = open_audit(audit, no_audit, folder)
        if log is not None:
            stack.callback(log.close)
        agent = _agent(stack, llm, folder, memory, user, text_argument(system, "--system"), max_tokens, log)
        if question is None:
            _talk(agent, f"{model} at {base_url}")
        elif json:
            print_json(_as_json(question, agent.run(question), agent.last_context))
        else:
            _say(agent, question)


def _agent(
    stack: ExitStack,
    llm: Any,
    folder: str | None,
    memory: str | None,
    user: str | None,
    system: str | None,
    max_tokens: int,
    audit: AuditLog | None,
) -> ContextAwareAgent:
    from ctx_vector.agent import ContextAwareAgent
    from ctx_vector.config import ContextConfig
    from ctx_vector.tools import MemoryTool, RAGTool

    config = ContextConfig(max_tokens=max_tokens)
    knowledge = stack.enter_context(open_kb(folder)) if folder is not None else None
    encoder = knowledge.encoder if knowledge is not None else open_encoder()
    kept = None
    if memory is not None or user is not None:
        kept = stack.enter_context(
            open_memory(memory, user or "default", create=True, encoder=memory_encoder(encoder, None))
        )
    return ContextAwareAgent(
        "chat",
        llm,
        system_prompt=system or "",
        user_id=user or "default",
        knowledge_base_path=None,
        config=config,
        memory_tool=MemoryTool(memory=kept) if kept is not None else None,
        rag_tool=RAGTool(knowledge=knowledge) if knowledge is not None else None,
        remember=kept is not None,
        encoder=encoder,
        audit=audit,
    )


# -- talking --------------------------------------------------------------------------------------------------------


def _talk(agent: ContextAwareAgent, whom: str) -> None:
    terminal = sys.stdin.isatty()
    if terminal:
        _edit_lines()
        note(f"Talking to {whom}. {', '.join(_COMMANDS)}; Ctrl-C stops an answer, Ctrl-D ends.")
    going = True
    while going:
        try:
            going = _turn(agent, terminal)
        except KeyboardInterrupt:
            if not terminal:
                raise
            note("(stopped; /quit or Ctrl-D ends)")
        except CtxVectorError as error:
            if not terminal:  # a script wants to know
                raise
            note("error: " + " ".join(str(error).split()))


def _turn(agent: ContextAwareAgent, terminal: bool) -> bool:
    """Read one line and do what it says; return whether the conversation goes on."""
    line = _next_line(terminal)
    text = "/quit" if line is None else line.strip()
    if text == "/quit":
        return False
    if text.startswith("/") and text[1:].isalpha():
        _obey(agent, text)
    elif text:
        _say(agent, text)
    return True


def _edit_lines() -> None:
    if os.environ.get("TERM") == "dumb":  # it cannot move a cursor; readline loses keys there after an interrupt
        return
    try:
        import readline  # noqa: F401  # arrow keys and history at the prompt
    except ImportError:
        pass


def _next_line(terminal: bool) -> str | None:
    if not terminal:
        return sys.stdin.readline() or None
    try:
        return input("> ")
    except EOFError:
        out()
        return None


def _say(agent: ContextAwareAgent, text: str) -> None:
    """Show the answer as it comes. What was shown is what is kept, also after an interrupt."""
    shown = plain if sys.stdout.isatty() else str
    pieces = agent.stream(text)
    began = False
    try:
        for piece in pieces:
            sys.stdout.write(shown(piece))
            sys.stdout.flush()
            began = True
    finally:
        pieces.close()
        if began:
            out()
            sys.stdout.flush()


def _obey(agent: ContextAwareAgent, command: str) -> None:
    if command not in _COMMANDS or command == "/help":
        if command != "/help":
            note(f"unknown command {command}")
        for name, text in _COMMANDS.items():
            note(f"  {style(name, BOLD)}{' ' * (10 - len(name))}{text}")
    elif agent.last_context is None:
        note("nothing was asked yet")
    elif command == "/context":
        out(plain(agent.last_context.text).rstrip("\n"))
    else:
        from ctx_vector.cli.explain import show_explanation

        show_explanation(agent.last_context)


def _as_json(question: str, answer: str, built: BuiltContext | None) -> dict[str, Any]:
    kept = built.kept if built is not None else []
    return {
        "question": question,
        "answer": answer,
        "sources": [str(row.packet.meta["cite"]) for row in kept if row.packet.meta.get("cite")],
        "memories": [row.packet.content for row in kept if row.packet.type == "memory"],
        "tokens": built.budget.total_used if built is not None else 0,
        "max_tokens": built.budget.total_limit if built is not None else 0,
        "warnings": list(built.warnings) if built is not None else [],
    }
