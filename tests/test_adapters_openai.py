"""`OpenAIChat` over real HTTP: what is sent, what comes back, and one sentence for everything that can go wrong."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from stand_in_server import Server, serving

from ctx_vector.adapters.openai import OpenAIChat
from ctx_vector.errors import AgentError, InputError, OptionalDependencyError

MESSAGES = [
    {"role": "system", "content": "[Evidence]\nParquet keeps the types.\n"},
    {"role": "user", "content": "Which format?"},
]
ANSWER = "The sources say: Parquet keeps the types."


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def chat(server: Server, model: str = "local", **options) -> OpenAIChat:
    return OpenAIChat(server.url, model=model, **options)


def test_invoke_and_stream_say_the_same(server: Server):
    llm = chat(server)
    assert llm.invoke(MESSAGES) == ANSWER
    pieces = list(llm.stream(MESSAGES))
    assert len(pieces) > 3
    assert "".join(pieces) == ANSWER
    llm.close()


def test_what_is_sent_is_what_was_asked_for(server: Server):
    llm = chat(server, temperature=0.0, max_tokens=64)
    llm.invoke(MESSAGES)
    list(chat(server, "tiny").stream(MESSAGES))
    assert server.requests[0] == {"messages": MESSAGES, "model": "local", "temperature": 0.0, "max_tokens": 64,
                                  "stream": False}  # fmt: skip
    assert server.requests[1] == {"messages": MESSAGES, "model": "tiny", "stream": True}
    assert server.paths == ["/v1/chat/completions"] * 2


def test_the_environment_sends_nothing_elsewhere_and_adds_nothing(server: Server, nobody, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, nobody)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-another-service")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", nobody)
    assert chat(server).invoke(MESSAGES) == ANSWER
    assert "secret" not in str(server.headers)
    assert server.headers[0]["authorization"] == "Bearer none"


def test_importing_it_opens_no_connection_and_the_default_address_is_this_machine():
    code = (
        "import socket, sys\n"
        "def no(*a, **k): raise AssertionError('a connection')\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = no\n"
        "from ctx_vector.adapters.openai import OpenAIChat\n"
        "assert 'openai' not in sys.modules\n"
        "print(OpenAIChat().base_url)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("http://127.0.0.1:8080/v1\n", "")


def both(llm: OpenAIChat) -> Iterator[str]:
    """The messages of what `invoke` and `stream` raise."""
    for ask in (llm.invoke, lambda messages: list(llm.stream(messages))):
        with pytest.raises(AgentError) as caught:
            ask(MESSAGES)
        text = str(caught.value)
        assert "\n" not in text
        assert llm.base_url in text
        yield text


def test_no_server(nobody: str):
    for text in both(OpenAIChat(nobody)):
        assert text.startswith(f"no server answers at {nobody} (")
        assert "refused" in text
        port = nobody.rsplit(":", 1)[1].removesuffix("/v1")
        assert f"start one, for example: llama-server -m model.gguf --port {port}, or ollama serve" in text


def test_an_unknown_host():
    for text in both(OpenAIChat("http://nowhere.invalid/v1")):
        assert text.startswith("no server answers at http://nowhere.invalid/v1 (")


def test_an_unknown_model_is_answered_with_those_there_are(server: Server):
    for text in both(chat(server, "huge")):
        assert "answers 404 for the model 'huge' (model 'huge' not found); it has local, tiny" in text


def test_an_address_without_the_api(server: Server):
    for text in both(OpenAIChat(server.url.removesuffix("/v1"))):
        assert "404" in text
        assert "ending in /v1" in text


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("error", ["500", "the graph exploded"]),
        ("full", ["400", "available context size", "is the context larger"]),
        ("key", ["401", "api_key"]),
        ("loading", ["503", "Loading model", "try again later"]),
        ("moved", ["307", "not followed"]),
        ("empty", ["empty answer", "'empty'"]),
        ("cut-short", ["empty answer", "raise max_tokens"]),
        ("breaks", ["broke off"]),
        ("html", []),
        ("garbage", []),
    ],
)
def test_what_a_server_can_do_wrong(server: Server, model: str, parts: list[str]):
    for text in both(chat(server, model)):
        for part in parts:
            assert part in text
    assert len(server.requests) == 2  # nothing is tried again
    assert "/elsewhere" not in server.paths


def test_a_silent_server(server: Server):
    started = time.monotonic()
    for text in both(chat(server, "slow", timeout=0.3)):
        assert "silent for 0.3 s" in text
    assert time.monotonic() - started < 3


def test_leaving_a_stream_closes_the_connection(server: Server):
    pieces = chat(server, "long").stream(MESSAGES)
    assert next(pieces) == "word0 "
    pieces.close()
    assert server.left_early.wait(5)


def test_wrong_arguments():
    for address in ("127.0.0.1:8080", "ftp://x/v1", "http://", "", None):
        with pytest.raises(InputError, match="base_url: expected an address such as"):
            OpenAIChat(address)
    with pytest.raises(InputError, match="timeout"):
        OpenAIChat(timeout=0)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(OptionalDependencyError, match=r"pip install 'ctx_vector\[openai\]'"):
        OpenAIChat()
