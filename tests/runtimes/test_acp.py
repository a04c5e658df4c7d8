"""External agents as children: a real process that speaks ACP, under the real engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clutch import AcpAgent, Clutch, InvalidInput, Outcome, Question
from clutch.core.messages import Call
from clutch.core.policy import Life, Policy
from clutch.ports import Launch, RuntimeFailed, RuntimeJob, SandboxAccess
from clutch.runtimes import acp_supervisor
from clutch.runtimes.acp import AcpRuntime
from clutch.runtimes.acp_process import chosen, found_program
from clutch.testing.runtimes import CHECKS, Check
from clutch.tools.sandbox.process import SandboxedPrograms
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

AGENT = Path(__file__).with_name("acp_agent.py")


def agent(*args: str, **settings: Any) -> AcpAgent:
    known = {"command": sys.executable, "args": (str(AGENT), *args), **settings}
    return AcpAgent(name="tested", **known)


def runtime(home: Path, *args: str, **settings: Any) -> AcpRuntime:
    return AcpRuntime(agent(*args, **settings), home, SandboxedPrograms())


def job(text: str, workspace: Path, **more: Any) -> RuntimeJob:
    return RuntimeJob(f"clutch-test: {text}", (), "agent:main:subagent:x", str(workspace), "x:1", **more)


async def until(is_so: Callable[[], bool]) -> None:
    """Looks now and then: a process writes a file or ends without telling us."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def is_alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_external_agent_conforms(check: Check, tmp_path: Path) -> None:
    await check(lambda: runtime(tmp_path))


# ---- people ------------------------------------------------------------------------------------------------


async def test_permission_is_asked_of_a_person_and_the_edit_is_evidence(tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    async with Clutch(
        state=tmp_path / "state", workspace=place, acp=[agent(sandbox=False)], serve=False
    ) as c:
        task = await c.spawn("clutch-test: edit note.txt", runtime="acp")
        async with asyncio.timeout(PATIENCE_S):
            await anext(event async for event in c.events() if event.name == "question")
        (question,) = await c.inbox()
        assert question.task_id == task.id
        assert question.detail["tool"] == "edit"
        assert question.detail["args"] == {
            "agent": "tested",
            "allows": "Once",
            "input": {"text": "new\n"},
            "path": "note.txt",
            "title": "Edit note.txt",
        }
        assert not (place / "note.txt").exists()
        await c.answer(question, "approve")
        result = await task
        shown = await task.info()
    assert (result.outcome, result.text) == (Outcome.OK, "changed")
    assert (place / "note.txt").read_text() == "new\n"
    assert shown.evidence is not None
    assert (shown.evidence.tool_calls, shown.evidence.files_touched) == (1, ("note.txt",))
    used = shown.usage.own
    assert (used.input, used.output, used.usd) == (20, 10, None)


async def test_an_agent_that_gives_up_after_a_refusal_fails_with_what_was_refused(tmp_path: Path) -> None:
    """Codex ends its turn as cancelled; Clutch has not cancelled it."""
    hasty = Policy(life=Life(error_grace_s=0.05))
    async with Clutch(
        state=tmp_path / "state", workspace=tmp_path, acp=[agent(sandbox=False)], serve=False, policy=hasty
    ) as c:
        task = await c.spawn("clutch-test: sulk note.txt", runtime="acp")
        async with asyncio.timeout(PATIENCE_S):
            await anext(event async for event in c.events() if event.name == "question")
        (question,) = await c.inbox()
        await c.answer(question, "reject", "not this file")
        result = await task
    assert (result.outcome, result.text) == (Outcome.ERROR, "not changed: no")
    assert "permission was refused" in (result.error or "")
    assert "Edit note.txt" in (result.error or "")
    assert "not this file" in (result.error or "")


async def asked_by(c: Clutch) -> Question:
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await c.inbox()):  # noqa: ASYNC110 - the event of a question may come before we listen
            await asyncio.sleep(0.02)
    return found[0]


async def test_a_form_is_asked_field_by_field_and_its_answers_go_back(tmp_path: Path) -> None:
    async with Clutch(state=tmp_path / "s", workspace=tmp_path, acp=[agent(sandbox=False)], serve=False) as c:
        task = await c.spawn("clutch-test: form", runtime="acp")
        for wanted, answer in (
            ("What shall I paint?\nHow many: at least one", "many"),
            (
                "What shall I paint?\nHow many: at least one\nNot accepted: 'many' must be a whole number.",
                "3",
            ),
            ("What shall I paint?\ncolour", "blue"),
        ):
            question = await asked_by(c)
            assert question.detail["question"] == wanted
            await c.answer(question, "answer", answer)
        assert json.loads((await task).text or "") == {
            "action": "accept",
            "content": {"count": 3, "colour": "blue"},
        }


@pytest.mark.parametrize(
    ("command", "decision", "action"), [("form", "reject", "decline"), ("page", "answer", "accept")]
)
async def test_a_rejected_form_is_declined_and_a_page_is_shown_whole(
    tmp_path: Path, command: str, decision: Any, action: str
) -> None:
    async with Clutch(state=tmp_path / "s", workspace=tmp_path, acp=[agent(sandbox=False)], serve=False) as c:
        task = await c.spawn(f"clutch-test: {command}", runtime="acp")
        question = await asked_by(c)
        assert command == "form" or "https://example.org/connect?x=1" in question.detail["question"]
        await c.answer(question, decision, "opened")
        assert json.loads((await task).text or "") == {"action": action}


async def test_without_a_person_a_form_is_declined(tmp_path: Path) -> None:
    answer = await runtime(tmp_path).run(job("form", tmp_path))
    assert json.loads(answer.text) == {"action": "decline"}


async def test_a_subagent_of_the_agent_is_a_call_and_its_calls_name_it(tmp_path: Path) -> None:
    async with Clutch(state=tmp_path / "s", workspace=tmp_path, acp=[agent(sandbox=False)], serve=False) as c:
        task = await c.spawn("clutch-test: delegate", runtime="acp")
        question = await asked_by(c)
        assert question.detail["args"]["subagent"] == "Find the bug"
        await c.answer(question, "approve")
        result = await task
        shown = await task.info()
    assert result.text == "delegated: once", "the words of the subagent are not the result"
    assert shown.evidence is not None
    assert shown.evidence.tool_calls == 2


def test_calls_of_a_subagent_are_shown_below_it(tmp_path: Path) -> None:
    begun: list[Call] = []
    ended: list[Call] = []
    told = job("delegate", tmp_path, begin=begun.append, end=lambda call, *_: ended.append(call))
    asyncio.run(runtime(tmp_path).run(told))
    assert [(call.name, dict(call.args)) for call in begun] == [
        ("subagent", {"title": "Find the bug"}),
        ("search", {"title": "grep TODO", "subagent": "Find the bug"}),
    ]
    assert [call.name for call in ended] == ["search", "subagent"]


# ---- what it gets ------------------------------------------------------------------------------------------


async def test_agent_gets_no_secret_and_is_served_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_API_KEY", "sk-canary")
    monkeypatch.setenv("MINE", "given")
    (tmp_path / "file").write_text("hello")
    works = runtime(tmp_path, inherit=frozenset({"MINE"}), env={"EXTRA": "1"})
    said = json.loads((await works.run(job(f"probe {tmp_path}/file", tmp_path))).text)
    assert "sk-canary" not in json.dumps(said)
    assert (said["env"]["MINE"], said["env"]["EXTRA"], said["served"]) == ("given", "1", "refused: -32601")


async def test_agent_gets_the_trace_of_its_run(tmp_path: Path) -> None:
    traced = f"00-{1:032x}-{2:016x}-01"
    answer = await runtime(tmp_path).run(job("trace", tmp_path, traceparent=traced))
    assert answer.text == traced


class ThreadedWalls:
    """A sandbox that blocks while it is made and removed, and notes in which threads that was."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    @contextmanager
    def launching(self, argv: Sequence[str], env: Mapping[str, str], room: SandboxAccess) -> Iterator[Launch]:
        self.threads.append(threading.get_ident())
        yield Launch(argv, room.cwd, env)
        self.threads.append(threading.get_ident())

    async def broken_limit(self, pid: int, room: SandboxAccess) -> str:
        await asyncio.Event().wait()
        return ""


async def test_the_sandbox_of_an_agent_is_made_and_removed_beside_the_event_loop(tmp_path: Path) -> None:
    """Both walk through the whole workspace."""
    walls = ThreadedWalls()
    works = AcpRuntime(agent(), tmp_path, walls)
    await works.run(job(f"probe {tmp_path}/file", tmp_path, is_sandboxed=True))
    assert len(walls.threads) == 2
    assert threading.get_ident() not in walls.threads


async def test_agent_of_a_boxed_session_sees_its_workspace_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "given")
    place = tmp_path / "work"
    place.mkdir()
    (tmp_path / "secret").write_text("not for you")
    needs = (sys.prefix, sys.base_prefix, str(AGENT.parent))
    works = runtime(tmp_path, inherit=frozenset({"MINE"}), visible=needs)
    answer = await works.run(job(f"probe {tmp_path}/secret", place, is_sandboxed=True, network=False))
    said = json.loads(answer.text)
    assert said["read"] == "cannot: No such file or directory"
    assert said["env"]["MINE"] == "given"


async def test_memory_of_a_boxed_agent_counts_what_it_uses_and_not_what_it_reserves(tmp_path: Path) -> None:
    """Its program is outside of `/usr`, and is found and shown: only the script beside it is named."""
    (tmp_path / "work").mkdir()
    works = runtime(tmp_path, visible=(str(AGENT.parent),), memory_bytes=256 << 20)
    answer = await works.run(job("reserve 69", tmp_path / "work", is_sandboxed=True))
    assert answer.text == "reserved 69 GiB"
    with pytest.raises(RuntimeFailed) as caught:
        await works.run(job("hog 400", tmp_path / "work", is_sandboxed=True))
    said = str(caught.value)
    assert "the agent 'tested' was ended: it used more than 256 MiB of memory" in said
    assert "raise acp.agents.tested.memory" in said


async def test_program_that_a_boxed_agent_cannot_see_is_told_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    script = tmp_path / "agent"
    script.write_text("#!/bin/sh\nexec no-such-engine\n")
    script.chmod(0o755)
    works = AcpRuntime(AcpAgent(name="mine", command=str(script)), tmp_path, SandboxedPrograms())
    with pytest.raises(RuntimeFailed) as caught:
        await works.run(job("echo x", tmp_path / "work", is_sandboxed=True))
    assert "no-such-engine: not found" in str(caught.value)
    assert "add the folder of what it did not find to acp.agents.mine.visible" in str(caught.value)


async def test_agent_of_a_session_that_may_not_change_anything_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailed, match="writes files and runs commands"):
        await runtime(tmp_path).run(job("echo no", tmp_path, may_change=False))


# ---- its end -----------------------------------------------------------------------------------------------


async def test_nothing_that_the_agent_started_outlives_a_kill(tmp_path: Path) -> None:
    noted = tmp_path / "numbers"
    running = asyncio.create_task(runtime(tmp_path).run(job(f"orphan {noted}", tmp_path)))
    await until(noted.exists)
    numbers = [int(number) for number in noted.read_text().split()]
    assert all(map(is_alive, numbers))
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert not any(map(is_alive, numbers))


VICTIM = """
import asyncio, sys
from pathlib import Path
from tests.runtimes.test_acp import job, runtime
place = Path(sys.argv[1])
asyncio.run(runtime(place).run(job(f"orphan {place}/numbers", place)))
"""


async def test_nothing_that_the_agent_started_outlives_a_gateway_that_was_killed(tmp_path: Path) -> None:
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, str(tmp_path), cwd=Path(__file__).parents[2]
    )
    await until((tmp_path / "numbers").exists)
    numbers = [int(number) for number in (tmp_path / "numbers").read_text().split()]
    assert all(map(is_alive, numbers))
    gateway.send_signal(signal.SIGKILL)
    await gateway.wait()
    await until(lambda: not any(map(is_alive, numbers)))


async def test_leash_passes_the_exit_code_on_and_ends_what_is_left(tmp_path: Path) -> None:
    line, held = os.pipe()
    script = f"setsid sleep 600 & echo $! >{tmp_path}/number; exit 7"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", acp_supervisor.__file__, str(line), "sh", "-c", script, pass_fds=(line,)
    )
    assert await process.wait() == 7
    assert not is_alive(int((tmp_path / "number").read_text()))
    os.close(line)
    os.close(held)


# ---- going on ----------------------------------------------------------------------------------------------


async def test_session_that_the_agent_has_kept_is_loaded_again(tmp_path: Path) -> None:
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    works = runtime(tmp_path, str(sessions))
    first = job("wait", tmp_path)
    running = asyncio.create_task(works.run(first))
    await until(lambda: any(sessions.iterdir()))
    running.cancel()
    await asyncio.wait([running])
    heard: list[str] = []
    answer = await works.run(replace(first, text="clutch-test: recall", say=heard.append))
    before, now = json.loads(answer.text)
    assert before == "clutch-test: wait"
    assert now.startswith("Your work on this was interrupted")
    assert "".join(heard) == answer.text, "what it tells of its past is no news"


# ---- what goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"command": "no-such-agent", "install": "npm install -g it"},
            "needs `no-such-agent`; install it with `npm install -g it`, or set acp.agents.tested.command",
        ),
        (
            {"command": "sh", "args": ("-c", "echo Welcome!; exec sleep 600"), "start_timeout_s": 0.3},
            'was not ready within 0.3 s; it printed: "Welcome!"; run `sh -c',
        ),
        ({"command": "sh", "args": ("-c", "yes")}, "closed the connection before it had answered"),
        ({"command": "false"}, "ended with exit code 1 before it had answered; run `false"),
    ],
    ids=["missing", "hangs", "prints garbage", "dies"],
)
async def test_agent_that_is_none_is_a_clear_error(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(RuntimeFailed) as failed:
        await runtime(tmp_path, **settings).run(job("echo no", tmp_path))
    assert words in str(failed.value)


async def test_agent_that_dies_in_the_middle_leaves_its_last_words_without_its_secrets(
    tmp_path: Path,
) -> None:
    with pytest.raises(RuntimeFailed) as failed:
        await runtime(tmp_path).run(job("die", tmp_path))
    assert "ended with exit code 3 before it had answered; it printed: " in str(failed.value)
    assert "out of paper" in str(failed.value)
    (log,) = [tmp_path / name for name in os.listdir(tmp_path) if name.endswith(".log")]
    assert (log.stat().st_mode & 0o777, "out of paper" in log.read_text()) == (0o600, True)
    assert "sk-live" not in str(failed.value) + log.read_text()


async def test_agent_that_falls_silent_is_ended(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailed, match="gave no sign of life"):
        await runtime(tmp_path, silence_timeout_s=0.2).run(job("wait", tmp_path))


# ---- settings ----------------------------------------------------------------------------------------------


def test_an_adapter_is_found_under_its_former_name(tmp_path: Path) -> None:
    (claude,) = chosen(["claude"])
    assert found_program(claude, str(tmp_path)) is None
    for name in ("claude-code-acp", "claude-agent-acp"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
        assert found_program(claude, str(tmp_path)) == str(tmp_path / name)


def test_known_agents_are_chosen_by_name() -> None:
    claude, own = chosen(["claude", agent()])
    assert (claude.command, own.name) == ("claude-agent-acp", "tested")
    with pytest.raises(InvalidInput, match="known: claude, codex, gemini, opencode"):
        chosen(["cladue"])
    with pytest.raises(InvalidInput, match="is there twice"):
        chosen(["codex", "codex"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "No Name"}, "rename the agent"),
        ({"inherit": frozenset({"CLUTCH_TOKEN"})}, "never given to an agent"),
        ({"command": " "}, "must name a program"),
        ({"start_timeout_s": 0}, "must be more than 0"),
    ],
)
def test_wrong_setting_is_refused_with_its_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        AcpAgent(**{"name": "mine", "command": "x", **settings})
