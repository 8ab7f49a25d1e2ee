"""An agent that remembers: every question gets a context of its own, and every exchange becomes a memory.

    agent = ContextAwareAgent("helper", llm, system_prompt="You are a data analyst.", user_id="ada")
    print(agent.run("How do I reduce the memory usage of Pandas?"))
    for piece in agent.stream("And how do I read it in pieces?"):
        print(piece, end="", flush=True)
    agent.last_context.explain()  # why the model saw what it saw

`llm` is a function of messages that returns a text (or an iterator of pieces), or an object with `invoke(messages)`
and, to stream, `stream(messages)`; LangChain's chat models are such objects, and so is `adapters.openai.OpenAIChat`.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self

from ctx_vector.builder import ContextBuilder
from ctx_vector.config import ContextConfig
from ctx_vector.errors import AgentError, InputError
from ctx_vector.packets import Message
from ctx_vector.tools import MemoryTool, RAGTool
from ctx_vector.values import clean_text, message_text

if TYPE_CHECKING:
    from ctx_vector.audit import AuditLog
    from ctx_vector.built import BuiltContext
    from ctx_vector.stages import Encoder

IMPORTANCE: Final = 0.6
ANSWER_CHARS: Final = 200
DEFAULT_CONFIG: Final = ContextConfig(max_tokens=4000)

_log = logging.getLogger("ctx_vector.agent")


class ContextAwareAgent:
    """Answers one user's questions from knowledge, memory and the conversation so far.

    `knowledge_base_path` is the folder of a knowledge base, made when absent (None: no knowledge). Memories are kept
    under `user_id` in `memory_path`, by default the platform's data folder; `remember=False` neither recalls nor keeps
    any. `memory_tool` and `rag_tool` take the place of these. `session_id` names the conversation in memory, by default
    a new name. `encoder` defaults to that of the tools, else to the bundled model. `now` is asked for the time. `audit`
    records every context (audit.py).

    `conversation_history` is a list of Messages, the caller's to read and change; `last_context` is what was built for
    the last question. One agent is for one conversation: it is not to be used from several threads at once.
    """

    def __init__(
        self,
        name: str,
        llm: Any,
        system_prompt: str = "",
        user_id: str = "default",
        knowledge_base_path: str | os.PathLike[str] | None = "./kb",
        config: ContextConfig = DEFAULT_CONFIG,
        *,
        memory_path: str | os.PathLike[str] | None = None,
        memory_tool: Any = None,
        rag_tool: Any = None,
        remember: bool = True,
        encoder: Encoder | None = None,
        session_id: str | None = None,
        now: Callable[[], datetime] | None = None,
        audit: AuditLog | str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(llm, type) or not (callable(llm) or callable(getattr(llm, "invoke", None))):
            raise InputError(
                f"llm: expected a function of messages or an object with invoke(messages), got {llm!r:.80}"
            )
        self.name = name
        self.llm = llm
        self.system_prompt = system_prompt
        self.user_id = user_id
        self.session_id = session_id or f"{name}-{secrets.token_hex(6)}"
        self.conversation_history: list[Message] = []
        self.last_context: BuiltContext | None = None
        self._now = now or _clock
        self._own: list[Any] = []  # what this agent has opened and closes
        makes_kb = rag_tool is None and knowledge_base_path is not None
        makes_memory = memory_tool is None and remember
        if encoder is None and (makes_kb or makes_memory):
            encoder = _encoder_of(rag_tool, memory_tool)
        if makes_kb and knowledge_base_path is not None:
            rag_tool = RAGTool(knowledge_base_path, encoder)
            self._own.append(rag_tool.knowledge)
        if makes_memory:
            memory_tool = MemoryTool(user_id, memory_path, encoder)
            self._own.append(memory_tool.memory)
        self.rag_tool = rag_tool
        self.memory_tool = memory_tool if remember else None
        recall = _Recall(self.memory_tool, self._shown) if self.memory_tool is not None else None
        self.builder = ContextBuilder(
            memory_tool=recall, rag_tool=rag_tool, config=config, encoder=encoder, audit=audit, user_id=user_id
        )

    # -- asking ------------------------------------------------------------------------------------------------------

    def run(self, user_input: str) -> str:
        """Return the answer, and keep the exchange in history and memory.

        Raises AgentError when the model gives no answer; history and memory are then as before.
        """
        messages, asked = self._prepare(user_input)
        answer = "".join(self._pieces(messages, whole=True))
        self._keep(user_input, self._checked(answer), asked)
        return answer

    def stream(self, user_input: str) -> Generator[str]:
        """Yield the answer in pieces; the exchange is kept at its end.

        When the caller stops early (closes the iterator, or interrupts it), what was said so far is kept as the answer,
        for the user has seen it. When the model fails midway, AgentError is raised and nothing is kept.
        """
        messages, asked = self._prepare(user_input)
        return self._streamed(user_input, messages, asked)

    def _streamed(self, user_input: str, messages: list[dict[str, Any]], asked: datetime) -> Generator[str]:
        said: list[str] = []
        pieces = self._pieces(messages, whole=False)
        try:
            for piece in pieces:
                said.append(piece)
                yield piece
        except (GeneratorExit, KeyboardInterrupt):
            pieces.close()
            if "".join(said).strip():
                self._keep(user_input, "".join(said), asked, {"interrupted": True})
            raise
        self._keep(user_input, self._checked("".join(said)), asked)

    def _prepare(self, user_input: str) -> tuple[list[dict[str, Any]], datetime]:
        """Build the context; return what is sent, and the time of the question."""
        if not isinstance(user_input, str) or not user_input.strip():
            raise InputError(f"user_input: expected a text that is not blank, got {user_input!r:.80}")
        asked = self._now()
        self.last_context = self.builder.assemble(
            user_input,
            conversation_history=self.conversation_history,
            system_instructions=self.system_prompt or None,
            session_id=self.session_id,
            now=asked,
        )
        return [dict(message) for message in self.last_context.messages], asked

    def _pieces(self, messages: list[dict[str, Any]], *, whole: bool) -> Generator[str]:
        """Yield the texts of the model's answer, one when it comes `whole`. Raises AgentError for whatever fails."""
        invoke, stream = getattr(self.llm, "invoke", None), getattr(self.llm, "stream", None)
        ask: Callable[[list[dict[str, Any]]], Any] = self.llm
        if callable(stream) and (not whole or not callable(invoke)):
            ask = stream
        elif callable(invoke):
            ask = invoke
        answer: Any = None
        try:
            answer = ask(messages)
            for piece in answer if isinstance(answer, Iterator) else [answer]:
                yield _text_of(piece)
        except AgentError:
            raise
        except Exception as error:
            raise AgentError(f"{self.name}: {_reason(error)}") from error
        finally:
            close = getattr(answer, "close", None)  # a stream that is left early must not go on
            if isinstance(answer, Iterator) and callable(close):
                close()

    def _checked(self, answer: str) -> str:
        if not answer.strip():
            raise AgentError(f"{self.name}: the language model gave an empty answer; ask again, or check its settings")
        return answer

    # -- keeping -----------------------------------------------------------------------------------------------------

    def _keep(self, question: str, answer: str, asked: datetime, metadata: Mapping[str, Any] | None = None) -> None:
        self.conversation_history += [
            Message(question, "user", asked),
            Message(answer, "assistant", self._now(), metadata=metadata),
        ]
        if self.memory_tool is None:
            return
        try:
            self.memory_tool.run(
                {
                    "action": "add",
                    "content": exchange_text(question, answer),
                    "memory_type": "episodic",
                    "importance": IMPORTANCE,
                    "timestamp": asked.isoformat(),
                    "session": self.session_id,
                }
            )
        except Exception as error:  # the answer is there; that it is not remembered must not cost it
            _log.warning("this exchange is not remembered: %s: %s", type(error).__name__, error)

    def _shown(self) -> set[str]:
        """Return the memories of this conversation that its newest turns show anyway."""
        limit = self.builder.config.history_limit
        newest = self.conversation_history[-limit:] if limit else []
        return {
            exchange_text(one.text, two.text)
            for one, two in pairwise(newest)
            if (one.role, two.role) == ("user", "assistant")
        }

    def close(self) -> None:
        """Close the knowledge base and the memory that this agent has opened."""
        for opened in self._own:
            opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Recall:
    """A memory tool without what the newest turns show: the same words twice would only take room."""

    def __init__(self, tool: Any, shown: Callable[[], set[str]]) -> None:
        self._tool = tool
        self._shown = shown
        self.memory = getattr(tool, "memory", None)
        if callable(getattr(tool, "candidates", None)):
            self.candidates = self._candidates

    def run(self, parameters: Mapping[str, Any]) -> Any:
        hidden = self._shown()
        found = self._tool.run({**parameters, "limit": parameters["limit"] + len(hidden)})
        if not isinstance(found, Sequence) or isinstance(found, str):
            return found
        left = [item for item in found if not (isinstance(item, Mapping) and item.get("content") in hidden)]
        return left[: parameters["limit"]]

    def _candidates(self, query: str, *, limit: int, **keys: Any) -> Sequence[Any]:
        hidden = self._shown()
        found = self._tool.candidates(query, limit=limit + len(hidden), **keys)
        return [item for item in found if item.packet.content not in hidden][:limit]


def exchange_text(question: str, answer: str) -> str:
    r"""Return an exchange as it is remembered.

    >>> exchange_text("Which format?", "Parquet.")
    'Q: Which format?\nA: Parquet.'
    """
    dots = "..." if len(answer) > ANSWER_CHARS else ""
    return clean_text(f"Q: {question}\nA: {answer[:ANSWER_CHARS]}{dots}")


def _clock() -> datetime:
    return datetime.now(UTC)


def _encoder_of(rag_tool: Any, memory_tool: Any) -> Encoder:
    """Return the encoder of a tool that is there, so that a model is loaded once; else the default one."""
    from ctx_vector.encoders import load_encoder

    behind = getattr(rag_tool, "knowledge", None) or getattr(memory_tool, "memory", None)
    found: Encoder | None = getattr(behind, "encoder", None)
    return found or load_encoder()


def _text_of(answer: Any) -> str:
    """Return the text of an answer or a piece: a str, or the `content` of an object or mapping."""
    content = answer.get("content") if isinstance(answer, Mapping) else getattr(answer, "content", answer)
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return message_text(content)
    if hasattr(answer, "__await__"):
        close = getattr(answer, "close", None)
        if callable(close):
            close()
        raise AgentError("the language model is an async one; give a function that returns a text")
    raise AgentError(f"the language model returned {type(answer).__name__}; expected a text or an object with .content")


def _reason(error: Exception) -> str:
    """Return what went wrong with somebody else's model, in one line."""
    causes: list[BaseException] = []
    at: Any = error
    while isinstance(at, BaseException):
        causes.append(at)
        at = getattr(at, "reason", None) or at.__cause__ or at.__context__  # urllib has the cause as `reason`
    away = any(isinstance(cause, ConnectionError) for cause in causes)
    address = next((url for cause in causes if (url := _address(cause))), None)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    if away:
        at_ = f" at {address}" if address else ""
        return (
            f"the language model's server{at_} is away ({what}); start one, for example: llama-server -m model.gguf "
            "--port 8080, or ollama serve"
        )
    return f"the language model failed ({what})"


def _address(error: BaseException) -> str | None:
    try:
        url = getattr(getattr(error, "request", None), "url", None)
    except Exception:  # httpx raises when there is no request
        return None
    return str(url) if url else None
