"""A chat model behind an OpenAI-compatible address, such as a llama.cpp or Ollama server on this machine.

    llm = OpenAIChat("http://127.0.0.1:11434/v1", model="qwen3:4b")
    agent = ContextAwareAgent("helper", llm)

Nothing is sent anywhere but to `base_url`: redirects are refused, the environment's proxies are not used for an address
of this machine, and account names in the environment stay there. A request is made once, never repeated.
"""

from __future__ import annotations

import ipaddress
import re
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from ctx_vector.errors import AgentError, CtxVectorError, InputError, OptionalDependencyError

DEFAULT_URL: Final = "http://127.0.0.1:8080/v1"
_OLLAMA_PORT: Final = 11434
_CONNECT_SECONDS: Final = 10.0
_MOST_NAMES: Final = 8


class OpenAIChat:
    """A language model as agents use it: `invoke(messages)` gives a text, `stream(messages)` its pieces.

    `timeout` in seconds is how long the server may be silent, so the longest wait for the first word. `temperature`
    and `max_tokens` (of the answer) are sent only when given. `api_key` is what the server wants to see; local ones
    take any.

    Raises OptionalDependencyError without the extra `openai`, InputError for an address that is none. Both methods
    raise AgentError with one sentence: no server, an unknown model, a timeout, an empty answer.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        model: str = "local",
        api_key: str = "none",
        timeout: float = 120.0,
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> None:
        parts = urlsplit(base_url) if isinstance(base_url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"base_url: expected an address such as {DEFAULT_URL}, got {base_url!r}")
        if not timeout > 0:
            raise InputError(f"timeout: expected seconds > 0, got {timeout!r}")
        try:
            import openai
        except ImportError:
            raise OptionalDependencyError("OpenAIChat", "openai") from None
        self.base_url = base_url
        self.model = model
        self.timeout = timeout
        self.temperature = temperature
        self.max_tokens = max_tokens
        self._port = parts.port
        self._client = openai.OpenAI(
            base_url=base_url,
            api_key=api_key,
            max_retries=0,
            timeout=openai.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
            http_client=openai.DefaultHttpxClient(trust_env=not _is_here(parts.hostname), follow_redirects=False),
        )
        self._client.organization = self._client.project = None  # else read from the environment
        self._closing = weakref.finalize(self, self._client.close)

    def invoke(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the model's answer. Raises AgentError when there is none."""
        with self._one_sentence():
            reply = self._create(messages, stream=False)
        choice = _first_choice(reply)
        if choice is None:
            raise AgentError(f"{self.base_url} did not give a chat completion; is it the API's address, ending in /v1?")
        text = getattr(choice.message, "content", None) or ""
        self._check(text, choice.finish_reason)
        return str(text)

    def stream(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the answer in pieces as they come; closing the iterator closes the connection, which stops the model.

        Raises AgentError when there is no answer, or when it breaks off.
        """
        said, finish = "", None
        with self._one_sentence():
            chunks = self._create(messages, stream=True)
            try:
                for chunk in chunks:
                    choice = _first_choice(chunk)
                    if choice is None:  # the usage at the end
                        continue
                    finish = choice.finish_reason or finish
                    piece = getattr(choice.delta, "content", None)
                    if piece:
                        said = said if said.strip() else said + piece
                        yield str(piece)
            finally:
                chunks.close()
        self._check(said, finish)

    def close(self) -> None:
        """Close the connections; garbage collection does it too."""
        self._closing()

    def _create(self, messages: Sequence[Mapping[str, Any]], *, stream: bool) -> Any:
        options = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        given: Any = {name: value for name, value in options.items() if value is not None}
        sent: Any = [dict(message) for message in messages]
        return self._client.chat.completions.create(model=self.model, messages=sent, stream=stream, **given)

    def _check(self, text: str, finish: str | None) -> None:
        if text.strip():
            return
        why = "it gives up before the first word; raise max_tokens" if finish == "length" else "see the server's log"
        raise AgentError(
            f"the model {self.model!r} at {self.base_url} gave an empty answer ({finish or 'no end'}); {why}"
        )

    # -- what went wrong ---------------------------------------------------------------------------------------------

    @contextmanager
    def _one_sentence(self) -> Generator[None]:
        try:
            yield
        except CtxVectorError:
            raise
        except Exception as error:
            raise AgentError(self._sentence(error)) from error

    def _sentence(self, error: Exception) -> str:
        import openai

        if isinstance(error, openai.APIStatusError):
            return self._refusal(error.status_code, _short(_said_by_server(error)))
        causes = list(_causes(error))
        names = {type(cause).__name__ for cause in causes}
        why = _short(re.sub(r"^\[Errno -?\d+\] ", "", str(causes[-1])) or type(causes[-1]).__name__)
        if "ConnectError" in names or "ConnectTimeout" in names:
            return f"no server answers at {self.base_url} ({why}); {self._how_to_start()}"
        if isinstance(error, openai.APITimeoutError):
            return (
                f"{self.base_url} was silent for {self.timeout:g} s; give it longer (timeout), or use a smaller model "
                "or context"
            )
        return f"the answer of {self.base_url} broke off ({why}); see the server's log"

    def _how_to_start(self) -> str:
        ollama = "ollama serve" if self._port == _OLLAMA_PORT else "ollama serve (at http://127.0.0.1:11434/v1)"
        return f"start one, for example: llama-server -m model.gguf --port {self._port or 8080}, or {ollama}"

    def _refusal(self, status: int, said: str) -> str:
        where = f"{self.base_url} answers {status}"
        if status == 404:
            names = self._models()
            known = f"it has {', '.join(names)}" if names else "is it the API's address, ending in /v1?"
            return f"{where} for the model {self.model!r} ({said}); {known}"
        if status in (401, 403):
            return f"{where}: it does not take this api_key ({said})"
        if status < 400:
            return f"{where}: it points elsewhere, which is not followed; give the address itself"
        hint = {400: "is the context larger than the model's?", 413: "use a smaller context"}
        return f"{where} ({said}); {hint.get(status, 'try again later' if status in (429, 503) else 'see its log')}"

    def _models(self) -> list[str]:
        try:
            names = [str(model.id) for model in self._client.models.list(timeout=_CONNECT_SECONDS).data]
        except Exception:  # it was only to help
            return []
        return names[:_MOST_NAMES]


def _first_choice(reply: Any) -> Any:
    choices = getattr(reply, "choices", None)
    return choices[0] if choices else None


def _is_here(host: str) -> bool:
    """Whether an address is one of this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def _causes(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ or at.__context__


def _said_by_server(error: Any) -> str:
    body = error.body
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        body = inner.get("message", inner) if isinstance(inner, Mapping) else inner
    return str(body or error.message)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:200] + "..."
