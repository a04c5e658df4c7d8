"""What the conformance suite of MCP needs in front of a gateway: it sends no token, and calls tools of its own.

A small loopback proxy adds the token. It writes a call of one of the suite's tools as the call of ours that does the
same, and the answers to the suite's forms as answers to ours; nothing in the answers of the gateway is changed.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from clutch.core.messages import Answer, Call, Input, Results
from clutch.ports import ModelError, ModelRequest, OnDelta, Trouble
from tests.patience import PATIENCE_S

QUESTION = Call("ask_human", {"question": "Delete it?"})


class FixtureModel:
    """Does what the suite's tools do; each is a task with the tool's name."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        del on_delta
        said = [message.text for message in request.transcript if isinstance(message, Input)]
        tool, _, argument = said[-1].rpartition("\n")[2].partition(" ")
        has_asked = any(isinstance(one, Results) for one in request.transcript)
        match tool:
            case "slow_compute":
                await asyncio.sleep(float(argument))
            case "failing_job":
                raise ModelError(Trouble.AUTH, "this job fails")
            case "confirm_delete" if not has_asked:
                return Answer("", (QUESTION,), model="fixture")
            case "multi_input" if not has_asked:
                return Answer("", (QUESTION, Call("ask_human", {"question": "And this?"})), model="fixture")
            case _:
                pass
        return Answer(f"{tool} is done", model="fixture")


def _spawned(task: str) -> dict[str, Any]:
    return {"name": "spawn", "arguments": {"task": task, "label": task.partition(" ")[0]}}


def translated(message: Any) -> Any:
    """Return the request with our tools and forms in place of the suite's."""
    params = message.get("params") if isinstance(message, dict) else None
    if not isinstance(params, dict):
        return message
    said = params.get("arguments") or {}
    match message.get("method"), params.get("name"):
        case "tools/call", "greet":
            return {**message, "params": {**params, "name": "list", "arguments": {}}}
        case "tools/call", "slow_compute":
            return {**message, "params": {**params, **_spawned(f"slow_compute {said.get('seconds', 0)}")}}
        case "tools/call", "failing_job" | "protocol_error_job" | "confirm_delete" | "multi_input" as tool:
            return {**message, "params": {**params, **_spawned(str(tool))}}
        case "tasks/update", _ if isinstance(params.get("inputResponses"), dict):
            responses = {key: _answering(one) for key, one in params["inputResponses"].items()}
            return {**message, "params": {**params, "inputResponses": responses}}
        case _:
            return message


def _answering(response: Any) -> Any:
    is_accepted = isinstance(response, dict) and response.get("action") == "accept"
    return {**response, "content": {"answer": "yes"}} if is_accepted else response


@dataclass(frozen=True, slots=True)
class Forwarded:
    port: int
    token: str
    own_port: int

    def request(
        self, handler: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        sent, name = self._body(body), handler.headers.get("Mcp-Name")
        headers = {
            key: value
            for key, value in handler.headers.items()
            if key.lower() not in {"content-length", "connection", "host", "accept-encoding"}
        }
        if name is not None and name == _name(body):
            headers["Mcp-Name"] = _name(sent) or name
        host = handler.headers["Host"].replace(f":{self.own_port}", f":{self.port}")
        origin = headers.get("Origin", headers.get("origin"))
        if origin is not None:
            headers = {key: value for key, value in headers.items() if key.lower() != "origin"}
            headers["Origin"] = origin.replace(f":{self.own_port}", f":{self.port}")
        line.request(
            handler.command, handler.path, sent or None,
            {**headers, "Host": host, "Authorization": f"Bearer {self.token}"},
        )  # fmt: skip
        return line, line.getresponse()

    def _body(self, body: bytes) -> bytes:
        try:
            return json.dumps(translated(json.loads(body))).encode()
        except ValueError:
            return body


def _name(body: bytes) -> str | None:
    try:
        params: Mapping[str, Any] = json.loads(body).get("params") or {}
    except ValueError:
        return None
    return params.get("name") or params.get("taskId")


@contextmanager
def front_of(port: int, token: str) -> Iterator[str]:
    """Return the address of a proxy of the gateway at `port`."""

    class Handler(BaseHTTPRequestHandler):
        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            line, answer = Forwarded(port, token, server.server_port).request(self, body)
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            while piece := answer.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()
            line.close()

        def do_POST(self) -> None:
            self._forward()

        do_GET = do_DELETE = do_POST  # noqa: N815 (names of the base class)

        def log_message(self, format: str, *args: Any) -> None:
            """The suite says what was wrong."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp"
        finally:
            server.shutdown()
            serving.join(PATIENCE_S)
