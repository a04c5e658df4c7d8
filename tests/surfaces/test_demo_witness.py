"""The witnesses of the demo notice what must not happen: otherwise their zeros would mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clutch.core.messages import Answer, Call, Input, Message, Result, Results
from clutch.demo.job import NOTE, Log, WatchedModels, account_of, add_journal, lines
from clutch.ports import ModelRequest, OnDelta, ToolSpec
from clutch.testing.models import ScriptedModel
from clutch.wiring import Clutch

pytestmark = pytest.mark.anyio

LIST = ToolSpec("list", "", {}, replay_safe=True, read_only=True)
JOURNAL = ToolSpec(NOTE, "", {}, replay_safe=False, read_only=False)


class Script:
    """Answers the same every time and remembers what it was shown."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.shown: list[ModelRequest] = []

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        self.shown.append(request)
        return self.answer


def announce(*task_ids: str) -> Input:
    blocks = [
        f'[Subagent] one\ntask: {task_id} session: agent:x\nFindings:\n| "task: t_no session: "'
        for task_id in task_ids
    ]
    return Input("\n".join(blocks), "announce")


def accepted(*task_ids: str) -> list[Message]:
    calls = tuple(Call("sessions_spawn", {}) for _ in task_ids)
    told = [json.dumps({"status": "accepted", "taskId": task_id}) for task_id in task_ids]
    results = Results(tuple(Result(at, "sessions_spawn", text) for at, text in enumerate(told)))
    return [Answer("", calls, stop="tools"), results]


async def ask(models: WatchedModels, key: str, *transcript: Message) -> Answer:
    return await models.ask(ModelRequest("offline", "", transcript, [LIST, JOURNAL], key), lambda text: None)


@pytest.fixture
def models(tmp_path: Path) -> WatchedModels:
    return WatchedModels(Script(Answer("done")), tmp_path)


async def test_a_result_that_stands_twice_before_its_model_is_counted_twice(
    tmp_path: Path, models: WatchedModels
) -> None:
    await ask(models, "main:3", *accepted("t_1", "t_2"), announce("t_1"))
    await ask(models, "main:5", *accepted("t_1", "t_2"), announce("t_1"), announce("t_2", "t_1"))
    heard = account_of(tmp_path)
    assert heard.accepted == {"t_1", "t_2"}
    assert heard.delivered == {"t_1": 2, "t_2": 1}


async def test_a_result_told_to_two_sessions_is_counted_twice(tmp_path: Path, models: WatchedModels) -> None:
    await ask(models, "main:3", announce("t_1"))
    await ask(models, "child:3", announce("t_1"))
    assert account_of(tmp_path).delivered == {"t_1": 2}


async def test_the_same_result_in_later_requests_is_counted_once(
    tmp_path: Path, models: WatchedModels
) -> None:
    for head in (3, 5, 7):
        await ask(models, f"main:{head}", announce("t_1"))
    assert account_of(tmp_path).delivered == {"t_1": 1}


async def test_an_accepted_task_nobody_heard_of_again_is_known(tmp_path: Path, models: WatchedModels) -> None:
    await ask(models, "main:3", *accepted("t_1"))
    heard = account_of(tmp_path)
    assert heard.accepted - set(heard.delivered) == {"t_1"}


async def test_a_model_call_made_again_is_counted(tmp_path: Path, models: WatchedModels) -> None:
    for key in ("main:1", "main:1", "main:3", "main:1"):
        await ask(models, key)
    assert account_of(tmp_path).repeated_calls == 2


async def test_a_note_written_again_is_counted(tmp_path: Path) -> None:
    """The engine repeats no call of this tool, so the model makes the same one twice."""
    notes = [Answer("", (Call(NOTE, {"text": text}),), stop="tools") for text in ("a", "a", "b")]
    model = ScriptedModel([*notes, Answer("done"), Answer("heard")])
    clutch = Clutch(state=tmp_path / "state", models=model, workspace=tmp_path, serve=False)
    (tmp_path / "records").mkdir()
    add_journal(clutch, tmp_path / "records", pause_s=0.0)
    async with clutch:
        assert (await (await clutch.spawn("write"))).text == "done"
    assert account_of(tmp_path / "records").repeated_notes == 1


async def test_the_model_behind_sees_nothing_of_the_notes(tmp_path: Path) -> None:
    script = Script(Answer("looking", (Call("list", {}),), stop="tools"))
    models = WatchedModels(script, tmp_path)
    first = await ask(models, "main:1", Input("survey"))
    assert [call.name for call in first.calls] == ["list", "note"]
    results = Results((Result(0, "list", "a file"), Result(1, "note", "outcome unknown", failed=True)))
    again = await ask(models, "main:3", Input("survey"), first, results)
    assert again.calls[-1].args != first.calls[-1].args
    assert script.shown[-1].transcript == (
        Input("survey"),
        script.answer,
        Results((Result(0, "list", "a file"),)),
    )
    assert [spec.name for spec in script.shown[-1].tools] == ["list"]


async def test_only_work_is_noted_and_only_where_notes_can_be_taken(tmp_path: Path) -> None:
    spawning = WatchedModels(Script(Answer("", (Call("sessions_spawn", {}),), stop="tools")), tmp_path)
    assert len((await ask(spawning, "main:1")).calls) == 1
    looking = WatchedModels(Script(Answer("", (Call("list", {}),), stop="tools")), tmp_path)
    request = ModelRequest("offline", "", (), [LIST], "main:1")
    assert len((await looking.ask(request, lambda text: None)).calls) == 1


def test_a_line_cut_by_a_death_was_never_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.write(number=1)
    with open(tmp_path / "log", "ab") as file:
        file.write(b'{"number": 2')
    assert lines(tmp_path / "log") == [{"number": 1}]
    assert lines(tmp_path / "missing") == []
