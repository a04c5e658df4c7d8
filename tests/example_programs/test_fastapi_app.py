"""The FastAPI example: two uvicorn workers on one state directory, HTTP, a stream to a browser, a kill and a stop."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


class Server:
    """The command of the docstring, as a process in an empty folder."""

    def __init__(self, folder: Path) -> None:
        (folder / "notes.md").write_text("# Notes\n\nTODO: water the plants\n")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        options = [f"--app-dir={EXAMPLES}", f"--port={port}", "--workers=2", "--timeout-graceful-shutdown=1"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "fastapi_app:app", *options],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.log = ""

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.put(line)

    def until(self, pattern: str) -> str:
        """Return the first group of the next line of the log that matches."""
        while True:
            line = self._lines.get(timeout=PATIENCE_S)
            self.log += line
            if found := re.search(pattern, line):
                return found[1]

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        self._reader.join(PATIENCE_S)
        return self._process.wait(PATIENCE_S)

    def ask(self, path: str, body: dict[str, str] | None = None, **headers: str) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(f"{self.url}{path}", data, {"content-type": "application/json", **sent})  # noqa: S310
        with urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310 (loopback)
            said: dict[str, Any] = json.load(answer)
            return said

    def stream(self, task_id: str) -> list[tuple[str, Any]]:
        """Return the Server-Sent Events of a task until the server closes the connection."""
        with urlopen(f"{self.url}/tasks/{task_id}/stream", timeout=PATIENCE_S) as answer:  # noqa: S310
            assert answer.headers["content-type"].startswith("text/event-stream")
            text = answer.read().decode()
        return [(name, json.loads(data)) for name, data in re.findall(r"event: (.+)\ndata: (.+)\n\n", text)]


def test_two_workers_serve_one_state_directory(tmp_path: Path, browser: Browser) -> None:
    """One server for all of it, because its start takes seconds."""
    server = Server(tmp_path)
    try:
        roles = dict(server.until(r"worker (\d+: .*)").split(": ") for _ in range(2))
        assert sorted(roles.values()) == ["client of the first worker", "does the work"]
        task_is_started_once_watched_and_read(server)
        page_shows_the_text(server, browser)
        owner = next(int(pid) for pid, role in roles.items() if role == "does the work")
        task_survives_the_worker_that_did_it(server, owner)
        task = server.ask("/tasks", {"prompt": "question: sizes\npace: slow"})
        with urlopen(f"{server.url}/tasks/{task['id']}/stream", timeout=PATIENCE_S):  # noqa: S310
            assert server.stop() == 0, server.log
    finally:
        server.stop()


def task_is_started_once_watched_and_read(server: Server) -> None:
    body = {"prompt": "question: sizes", "label": "sizes"}
    task = server.ask("/tasks", body, Idempotency_Key="one")
    assert server.ask("/tasks", body, Idempotency_Key="one") == task
    *pieces, (last, done) = server.stream(task["id"])
    assert {name for name, _ in pieces} == {"text"}
    assert (last, done["outcome"]) == ("done", "ok")
    read = server.ask(f"/tasks/{task['id']}")
    assert (read["label"], read["status"], read["text"]) == ("sizes", "done", done["text"])
    for status, path, sent in (
        (404, "/tasks/t_1", None),
        (422, "/tasks/first", None),
        (409, "/tasks", {"prompt": "?"}),
    ):
        with pytest.raises(HTTPError, match=str(status)):
            server.ask(path, sent, Idempotency_Key="one")


def page_shows_the_text(server: Server, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(server.url)
    page.click("button")
    page.wait_for_function("document.querySelector('pre').textContent.includes('SUMMARY:')")
    page.close()


def task_survives_the_worker_that_did_it(server: Server, owner: int) -> None:
    task = server.ask("/tasks", {"prompt": "Survey the folder"})
    os.kill(owner, signal.SIGKILL)
    server.until(r"worker (\d+): does the work")
    assert server.stream(task["id"])[-1][1]["outcome"] == "ok"


def test_the_page_shows_lines_of_the_program() -> None:
    program = " ".join((EXAMPLES / "fastapi_app.py").read_text(encoding="utf-8").split())
    page = (EXAMPLES.parent / "docs" / "how-to" / "fastapi.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?m)(?:^    .+\n)+", page)
    assert len(blocks) == 4
    for block in blocks:
        assert " ".join(block.split()) in program
