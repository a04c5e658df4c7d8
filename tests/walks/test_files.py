"""Files all the way: given at spawn, read and made by real tools in their box, told, and read by whoever asked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clutch import Clutch, NotFound
from clutch.core.messages import Answer, Call, Input, Results
from clutch.ports import ModelRequest, OnDelta
from clutch.wiring import can_sandbox_files

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not can_sandbox_files(), reason="nothing here can wall off the file tools"),
]


def calls(*wanted: tuple[str, dict[str, Any]]) -> Answer:
    return Answer("", tuple(Call(name, args) for name, args in wanted), stop="tools")


def last(request: ModelRequest) -> list[str]:
    """What the last calls gave."""
    said = request.transcript[-1]
    return [result.text for result in said.results] if isinstance(said, Results) else []


class Scripted:
    """Each session is known by the first words put to it; each answer by how many came before."""

    def __init__(self, **scripts: Callable[[int, ModelRequest], Answer | str]) -> None:
        self.scripts = scripts
        self.seen: dict[str, list[str]] = {}

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        first = next(entry.text for entry in request.transcript if isinstance(entry, Input))
        name = next(name for name in self.scripts if name in first)
        self.seen.setdefault(name, []).extend(last(request))
        step = sum(isinstance(entry, Answer) for entry in request.transcript)
        said = self.scripts[name](step, request)
        return Answer(said) if isinstance(said, str) else said


def clutch(tmp_path: Path, model: Scripted) -> Clutch:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    return Clutch(state=tmp_path / "state", workspace=work, models=model)


def announced(request: ModelRequest) -> str:
    return next(
        entry.text
        for entry in request.transcript
        if isinstance(entry, Input) and entry.text.startswith("[Subagent]")
    )


@pytest.mark.scenario(203)
async def test_files_a_child_makes_are_told_and_can_be_read_by_whoever_asked(tmp_path: Path) -> None:
    def worker(step: int, request: ModelRequest) -> Answer | str:
        if step == 0:
            return calls(("read", {"path": "/task/in/names.txt"}), ("list", {"path": "/task/in"}))
        if step == 1:
            command = "tr a-z A-Z < $TASK_DIR/in/names.txt > $TASK_DIR/out/loud.txt; echo x > $TASK_DIR/in/y; ls /task"
            return calls(("shell", {"command": command}))
        if step == 2:
            return calls(
                ("write", {"path": "/task/out/report.md", "text": "# all of it"}),
                ("write", {"path": "/task/in/names.txt", "text": "mine now"}),
                ("read", {"path": "/task/out/../in/names.txt"}),
                ("read", {"path": "/task/out/loud.txt"}),
            )
        return "done"

    def asks(step: int, request: ModelRequest) -> Answer | str:
        task_id = (
            announced(request).split("task: ")[1].split()[0]
            if "[Subagent]" in str(request.transcript)
            else ""
        )
        if task_id and "loud" not in " ".join(model.seen.get("asks", [])):
            return calls(
                ("read", {"path": f"/tasks/{task_id}/out/loud.txt"}),
                ("write", {"path": f"/tasks/{task_id}/out/loud.txt", "text": "forged"}),
                ("list", {"path": f"/tasks/{task_id}/out"}),
            )
        if step == 0:
            given = [{"name": "names.txt", "content": "ada, grace"}]
            return calls(("sessions_spawn", {"task": "worker", "attachments": given}))
        return "I saw it" if task_id else "sent"

    model = Scripted(worker=worker, asks=asks)
    async with clutch(tmp_path, model) as c:
        await c.say("asks")
        assert [await c.reply(), await c.reply()] == ["sent", "I saw it"]
        await c.wait_idle()
    read, listed, ran, wrote, forged, up, loud = model.seen["worker"]
    assert "ada, grace" in read
    assert "names.txt" in listed
    assert "in\nout" in ran.replace("\n\n", "\n")
    assert "Read-only file system" in ran
    assert "wrote report.md" in wrote
    assert "only /task/out can be written" in forged
    assert "must not contain '..'" in up
    assert "ADA, GRACE" in loud
    told = next(text for text in model.seen["asks"] if "ADA, GRACE" in text)
    assert told
    assert any("only /task/out can be written" in text for text in model.seen["asks"])


async def test_a_program_gives_files_and_reads_what_comes_back(tmp_path: Path) -> None:
    def worker(step: int, request: ModelRequest) -> Answer | str:
        if step == 0:
            return calls(("shell", {"command": "cp /task/in/photo /task/out/copy; mkdir /task/out/deep"}))
        return "done"

    photo = bytes(range(256))
    async with clutch(tmp_path, Scripted(worker=worker, asks=lambda *_: "ok")) as c:
        task = await c.spawn("worker", attachments={"photo": photo, "words": "text"})
        result = await task
        (file,) = result.files
        assert (file.name, file.bytes) == ("copy", 256)
        assert file.sha256 == hashlib.sha256(photo).hexdigest()
        assert await task.read_file("copy") == photo
        with pytest.raises(NotFound):
            await task.read_file("../in/photo")


async def test_nobody_reads_the_files_of_a_stranger(tmp_path: Path) -> None:
    """Two siblings: each has its own files, and not the other's."""
    ids: list[str] = []

    def first(step: int, request: ModelRequest) -> Answer | str:
        return calls(("write", {"path": "/task/out/secret", "text": "tulip"})) if step == 0 else "done"

    def second(step: int, request: ModelRequest) -> Answer | str:
        if step == 0:
            paths = (f"/tasks/{ids[0]}/out/secret", "/tasks/t_zzzzzz/out/secret", "/task/out/secret")
            return calls(*(("read", {"path": path}) for path in paths))
        return "done"

    model = Scripted(first=first, second=second, asks=lambda *_: "ok")
    async with clutch(tmp_path, model) as c:
        one = await c.spawn("first")
        assert [file.name for file in (await one).files] == ["secret"]
        ids.append(one.id)
        _ = await (await c.spawn("second"))
    assert "tulip" not in str(model.seen["second"])
    refused, unknown, own = model.seen["second"]
    assert "not a descendant" in refused
    assert "there is no" in unknown
    assert "no files" in own
