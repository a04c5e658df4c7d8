"""`clutch acp` as an editor has it: a process, driven by the client of the protocol's own library."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import acp
import pytest
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    ElicitationCapabilities,
    ElicitationContentValue,
    ElicitationFormCapabilities,
    RequestPermissionResponse,
)

from clutch.cli.acp import editor_decisions
from clutch.core.messages import Answer
from clutch.ports import ModelError, ModelRequest, OnDelta, Trouble
from clutch.surfaces import discovery
from clutch.surfaces.http_client import item_path
from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, Served, Slow, served
from tests.surfaces.test_http_tasks import spawned

pytestmark = pytest.mark.anyio
FORMS = ClientCapabilities(elicitation=ElicitationCapabilities(form=ElicitationFormCapabilities()))


class Editor:
    """Keeps every update; `answers` are the names of options it chooses, in turn. None: the dialog stays open."""

    def __init__(self, *answers: str | None) -> None:
        self.updates: list[Any] = []
        self.asked: list[tuple[Any, list[str]]] = []
        self._answers = list(answers)
        self._changed = asyncio.Event()

    def on_connect(self, conn: Any) -> None:
        del conn

    async def session_update(self, session_id: str, update: Any, **more: Any) -> None:
        del session_id, more
        self.updates.append(update)
        self._changed.set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **more: Any
    ) -> RequestPermissionResponse:
        del session_id, more
        self.asked.append((tool_call, [option.name for option in options]))
        self._changed.set()
        wanted = self._answers.pop(0) if self._answers else None
        if wanted is None:
            await asyncio.Event().wait()
        if wanted == "(close)":
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        (chosen,) = [option.option_id for option in options if option.name == wanted]
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen))

    async def create_elicitation(self, message: str, mode: Any, **more: Any) -> AcceptElicitationResponse:
        del more
        self.asked.append((message, list(mode.requested_schema.properties)))
        content = {"answer": ElicitationContentValue("Rosebud")}
        return AcceptElicitationResponse(action="accept", content=content)

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    @property
    def text(self) -> str:
        return "".join(one.content.text for one in self._of("agent_message_chunk"))

    @property
    def typed(self) -> list[str]:
        return [one.content.text for one in self._of("user_message_chunk")]

    def calls(self) -> dict[str, tuple[str, str]]:
        """Return title and status of every tool call as they are now."""
        found: dict[str, tuple[str, str]] = {}
        for one in self._of("tool_call", "tool_call_update"):
            title, status = found.get(one.tool_call_id, ("", ""))
            found[one.tool_call_id] = (one.title or title, one.status or status)
        return found

    def ended(self, title: str) -> str:
        """Return the status of the call whose title contains this, once it has ended."""
        said = [status for named, status in self.calls().values() if title in named]
        return said[-1] if said and said[-1] in ("completed", "failed") else ""

    def _of(self, *kinds: str) -> Iterator[Any]:
        return (one for one in self.updates if one.session_update in kinds)


@asynccontextmanager
async def opened(
    editor: Editor, home: Path, cwd: Path, *options: str, can: ClientCapabilities | None = None
) -> AsyncIterator[Any]:
    """A connection to a process that has said hello."""
    command = ("-m", "clutch", "acp", "--state", str(home), *options)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = acp.spawn_agent_process(
        cast(Any, editor), sys.executable, *command, cwd=cwd, env=env, use_unstable_protocol=True
    )
    async with process as (connection, _):
        hello = await connection.initialize(acp.PROTOCOL_VERSION, can or ClientCapabilities())
        assert hello.agent_capabilities is not None
        assert hello.agent_capabilities.load_session
        yield connection


async def begun(connection: Any, cwd: Path) -> str:
    return str((await connection.new_session(str(cwd), mcp_servers=[])).session_id)


async def said(connection: Any, session: str, text: str) -> str:
    async with asyncio.timeout(PATIENCE_S):
        return str((await connection.prompt(session, [acp.text_block(text)])).stop_reason)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = ToolSettings(sandbox=Sandbox.OFF, shell_needs_approval=True)
    with served(tmp_path_factory.mktemp("acp") / "state", policy=FAST, settings=settings) as here:
        yield here


@pytest.mark.parametrize("kind", ["approval", "plan"])
def test_what_is_approved_hides_nothing_from_a_reader_of_markdown(kind: str) -> None:
    text = "true `````; <!-- rm -rf / --> \u202e\u200b"
    item = {
        "id": "q_1", "kind": kind, "status": "needs approval", "label": "child", "sessionKey": "agent:main:main",
        "text": text, "directory": "/work", "isSandboxed": False, "consequences": {"approve": "It runs."},
        "detail": {"tool": "shell", "args": {"command": text}} if kind == "approval" else {},
    }  # fmt: skip
    shown = cast(Any, editor_decisions._call(item)).content[0].content.text
    _, block, _ = shown.split("``````")  # longer than any in the text, so only it ends there
    assert "true `````; <!-- rm -rf / --> \\u202e\\u200b" in block
    assert "\n\nIn /work without the sandbox\n\n" in shown


async def test_an_editor_talks_stops_a_turn_and_decides_what_is_asked(
    db: Served, caplog: pytest.LogCaptureFixture
) -> None:
    editor = Editor("Approve once", "Run exactly this command", "b", "(close)")
    work = db.home.parent
    async with opened(editor, db.home, work) as connection:
        session = await begun(connection, work)
        assert await said(connection, session, "hello") == "end_turn"
        assert editor.text == "heard: hello"
        assert await said(connection, session, "/status") == "end_turn"
        assert f"Session: {session}" in editor.text

        slow = asyncio.create_task(said(connection, session, "stream it"))
        await editor.until(lambda: "word word" in editor.text)
        await connection.cancel(session)
        assert await slow == "cancelled"

        assert await said(connection, session, "run it") == "end_turn"
        (first, once), (again, exactly) = editor.asked
        assert (once, exactly[0]) == (["Approve once", "Reject"], "Run exactly this command")
        assert first.raw_input == again.raw_input == {"command": "touch ran"}
        assert str(work) in first.content[0].content.text
        assert editor.ended("shell") == "completed"
        assert (work / "ran").exists()

        session = await begun(connection, work)
        assert await said(connection, session, "ask me") == "end_turn"
        assert editor.asked[2][1] == ["a", "b", "Reject the question"]
        task = spawned(db.client, "run it", requester=session)
        await editor.until(lambda: len(editor.asked) == 4)
        (item,) = db.client.get("/v1/inbox")["items"]
        await editor.until(lambda: editor.calls()[item["id"]][1] == "failed")
        assert item["taskId"] == task, "a dialog that is closed decides nothing"
        assert await said(connection, session, f"/answer {item['id']} reject not now") == "end_turn"
        await editor.until(lambda: editor.calls()[task][1] == "completed")
    assert not [one for one in caplog.records if one.levelname == "ERROR"], (
        "stdout carries the protocol alone"
    )


async def test_a_question_is_a_form_and_a_decision_elsewhere_closes_the_dialog(db: Served) -> None:
    editor, work = Editor(None), db.home.parent
    async with opened(editor, db.home, work, "--session", "agent:main:chat:fixed", can=FORMS) as connection:
        session = await begun(connection, work)
        assert session == "agent:main:chat:fixed"
        assert await said(connection, session, "ask openly") == "end_turn"
        assert editor.asked == [(f"{session} asks: What is it called?", ["answer"])]
        task = spawned(db.client, "run it", requester=session)
        await editor.until(lambda: len(editor.asked) == 2)
        (item,) = db.client.get("/v1/inbox")["items"]
        body = {"decision": "reject", "text": "", "hash": item["hash"]}
        await asyncio.to_thread(lambda: db.client.post(item_path(item["id"]), body))
        await editor.until(lambda: editor.calls()[item["id"]][1] == "completed")
        await editor.until(lambda: editor.calls()[task][1] == "completed")


async def test_another_folder_and_an_unknown_session_are_said(db: Served, tmp_path: Path) -> None:
    editor = Editor()
    async with opened(editor, db.home, tmp_path) as connection:
        await begun(connection, tmp_path)
        await editor.until(lambda: f"works in {db.home.parent}, and not in {tmp_path}" in editor.text)
        with pytest.raises(acp.RequestError, match="no session"):
            await connection.load_session(str(tmp_path), "agent:main:chat:never", mcp_servers=[])


class Broken(Slow):
    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        raise ModelError(Trouble.BAD_REQUEST, "no such model")


async def test_a_turn_that_fails_says_why_before_its_prompt_ends(tmp_path: Path) -> None:
    editor = Editor()
    with served(tmp_path / "state", Broken(), policy=FAST) as here:
        async with opened(editor, here.home, tmp_path) as connection:
            session = await begun(connection, tmp_path)
            for times in (1, 2):
                assert await said(connection, session, "hello") == "end_turn"
                assert editor.text.count("no such model") == times


@pytest.mark.slow
async def test_a_conversation_survives_the_kill_of_its_gateway_and_the_end_of_the_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process starts the gateway; subagents end, and the agent answers, outside of any prompt."""
    monkeypatch.delenv(discovery.NO_START, raising=False)
    home, work = tmp_path / "state", tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("TODO water the plants\n")
    first, second = Editor(), Editor()
    try:
        async with opened(first, home, work) as connection:
            session = await begun(connection, work)
            prompt = asyncio.create_task(said(connection, session, "survey this folder"))
            await first.until(
                lambda: any(title.startswith("subagent") for title, _ in first.calls().values())
            )
            os.kill(discovery.find(home).pid, signal.SIGKILL)  # type: ignore[union-attr]  # it runs
            assert await prompt == "end_turn"
            await first.until(lambda: "SUMMARY: 1 file" in first.text)
        assert first.text.count("Starting 5 subagents.") == 1
        assert first.text.count("SUMMARY: 1 file") == 1
        async with opened(second, home, work) as connection:
            (known,) = (await connection.list_sessions()).sessions
            assert (known.session_id, known.cwd) == (session, str(work))
            await connection.load_session(str(work), session, mcp_servers=[])
            assert second.typed == ["survey this folder"]
            assert second.text.count("SUMMARY: 1 file") == 1
            assert {status for _, status in second.calls().values()} == {"completed"}
            assert set(second.calls()) == set(first.calls())
            assert await said(connection, session, "thanks") == "end_turn"
    finally:
        if (address := discovery.find(home)) is not None:
            os.kill(address.pid, signal.SIGKILL)
