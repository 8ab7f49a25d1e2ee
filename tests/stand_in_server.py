"""A stand-in for a local model server: real HTTP on loopback, `/v1/chat/completions` with and without streaming.

It answers from the context it gets: the first line of the first piece of evidence, else the first memory, else that it
does not know. So what an answer says shows what the model was shown. Some model names make it fail on purpose.

    python tests/stand_in_server.py 8080         # to try `ctx-vector chat` without a model
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODELS = ("local", "tiny")
FAILING = (
    "slow",
    "empty",
    "breaks",
    "error",
    "html",
    "full",
    "key",
    "moved",
    "loading",
    "cut-short",
    "garbage",
    "long",
)


def answer_to(messages: list[dict[str, Any]]) -> str:
    """Return what the stand-in says to these messages."""
    system = "\n".join(message["content"] for message in messages if message["role"] == "system")
    chinese = bool(re.search("[\u4e00-\u9fff]", messages[-1]["content"]))
    evidence = re.search(r"^\[Evidence\]\n(?:\[.*\]\n)?(.+)", system, re.M)
    memory = re.search(r"^(?:Memory|记忆): ((?:Q: .*\nA: )?.*)", system, re.M)
    if evidence:
        return ("资料说：" if chinese else "The sources say: ") + evidence[1]
    if memory:
        said = " / ".join(memory[1].split("\n"))
        return ("我记得：" if chinese else "I remember: ") + said
    return "我不知道。" if chinese else "I do not know."


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _send(self, status: int, body: Any, kind: str = "application/json", **headers: str) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        if self.path == "/v1/models":
            self._send(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]})
        else:
            self._send(404, {"error": {"message": "no such path"}})

    def do_POST(self) -> None:
        self.server.paths.append(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/chat/completions":
            self._send(404, {"error": {"message": "no such path"}})
            return
        asked = json.loads(body)
        self.server.requests.append(asked)
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        model = asked["model"]
        if model in FAILING:
            self._fail(model, asked)
        elif model not in MODELS:
            self._send(404, {"error": {"message": f"model '{model}' not found", "type": "not_found"}})
        else:
            self._answer(asked, answer_to(asked["messages"]))

    def _answer(self, asked: dict[str, Any], text: str, finish: str = "stop") -> None:
        if not asked.get("stream"):
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": finish}
            self._send(200, {"id": "1", "object": "chat.completion", "model": asked["model"], "choices": [choice]})
            return
        self._begin_stream()
        for piece in re.findall(r"\S+\s*|\s+", text):
            self._piece({"content": piece})
        self._piece({}, finish)
        self._chunk("data: [DONE]\n\n")
        self._chunk("")

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _piece(self, delta: dict[str, Any], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self._chunk(f"data: {json.dumps({'id': '1', 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _fail(self, model: str, asked: dict[str, Any]) -> None:
        refusals = {
            "error": (500, "the graph exploded"),
            "full": (400, "the request exceeds the available context size"),
            "key": (401, "invalid key"),
            "loading": (503, "Loading model"),
        }
        if model in refusals:
            status, message = refusals[model]
            self._send(status, {"error": {"message": message, "type": "x"}})
        elif model == "slow":
            self.server.released.wait(20)
        elif model == "empty":
            self._answer(asked, "")
        elif model == "cut-short":
            self._answer(asked, " \n", "length")
        elif model == "html":
            self._send(200, "<html>a web page</html>", "text/html")
        elif model == "garbage":
            self._send(200, "{not json", "text/event-stream" if asked.get("stream") else "application/json")
        elif model == "moved":
            self._send(307, "", Location=f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        elif model == "long":  # a word every 20 ms until the reader goes away
            self._begin_stream()
            try:
                for number in range(500):
                    self._piece({"content": f"word{number} "})
                    time.sleep(0.02)
            except OSError:
                self.server.left_early.set()
                self.close_connection = True
        else:  # breaks: some words, then the connection is gone
            if asked.get("stream"):
                self._begin_stream()
                self._piece({"content": "Half an "})
            self.close_connection = True
            self.connection.close()


class Server(ThreadingHTTPServer):
    """The server, and what it was asked: `requests` (bodies), `headers`, `paths`."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.released = threading.Event()
        self.left_early = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # readers that go away are part of the tests


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server in a thread on a free port."""
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    with Server(int(sys.argv[1]) if len(sys.argv) > 1 else 8080) as here:
        sys.stdout.write(f"listening at {here.url}\n")
        here.serve_forever()
