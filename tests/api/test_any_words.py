"""Whatever is typed: a slash command is answered, and does at most the one thing its first word says; a target means
one task, or is refused with proposals, exactly as the rule in the core has it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from clutch import ClutchError
from clutch.api.slash import ACTIONS, COMMANDS, is_command
from clutch.core import ids
from clutch.core.authority import EVERY_SCOPE, OperatorCaller
from clutch.core.ids import Ambiguous, Candidate, Unknown, Viewpoint, parse_target, resolve
from clutch.core.messages import Answer
from clutch.errors import AmbiguousTarget, NotFound
from clutch.ports import ModelRequest, OnDelta
from clutch.store.transaction import Tx
from clutch.transactions.read import targets
from clutch.transactions.read.targets import ResolvedTarget, Standpoint
from tests.examples import examples
from tests.surfaces.served import FAST, Served, served

#: What a label could catch that was not meant for it, and what could end a word of SQL or of a shell.
LABELS = (
    "a", "ab", "ab c", "AB", "last", "last resort", "main", "current", "1", "12", "#1", "t_", "t_1", "r_1",
    "agent:main:main", "all", "%", "_", "a'b", 'a"b', "é", "e\u0301", "🙂", "x;/kill all",
)  # fmt: skip
ANY_TEXT = st.text(st.characters(), max_size=30)
PIECES = st.sampled_from(
    [f"/{name}" for name in COMMANDS] + list(ACTIONS) + list(LABELS)
    + [" ", "\n", "\r\n", "\u2028", "\t", ";", "&&", "|", '"', "\\", "--model", "--", "`", "$(", "\x00", "\ud800", "/"]
)  # fmt: skip
TAILS = st.lists(PIECES | ANY_TEXT, max_size=8).map(" ".join) | ANY_TEXT
#: They look, or say how they are written; whatever follows them is words.
LOOKS = (
    "/status",
    "/agents",
    "/subagents",
    "/subagents list",
    "/subagents tree",
    "/subagents help",
    "/queue",
    "/steer",
)
WHO = Standpoint(OperatorCaller(EVERY_SCOPE, "somebody"), "somebody", None)


class Waiting:
    """Never answers: all that was started stays as it is, unless a command does something about it."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        del request, on_delta
        await asyncio.Event().wait()
        raise AssertionError


@pytest.fixture(scope="module")
def db() -> Iterator[Served]:
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder) / "s", Waiting(), FAST, serve=False) as one,
    ):
        for label in LABELS:
            _ = one.run(one.clutch.spawn("wait", label=label))
        one.run(one.clutch.command("/subagents list"))
        yield one


def everything(now: float) -> Tx[list[Any]]:
    """Each task as it stands, and how much there is of what a verb would leave behind."""
    del now
    tasks = yield "SELECT id, phase, label, generation FROM tasks ORDER BY id", ()
    letters = yield "SELECT COUNT(*) FROM inbox", ()
    sessions = yield "SELECT COUNT(*) FROM sessions", ()
    return [*tasks, *letters, *sessions]


def look(db: Served) -> list[Any]:
    return db.run(db.clutch.services.db.read(everything))


def answered(db: Served, line: str) -> str:
    """What it says, be it an error with a name."""
    try:
        return db.run(db.clutch.command(line, idempotency_key=f"k{hash(line)}"))
    except ClutchError as error:
        return str(error)


@examples(150)
@given(st.sampled_from(LOOKS), TAILS)
@example("/status", "\n/kill all")
@example("/subagents list", "; /stop")
@example("/steer", "last")
def test_whatever_follows_a_look_is_never_done(db: Served, command: str, tail: str) -> None:
    if command in ("/queue", "/steer"):
        tail = ""
    before = look(db)
    assert answered(db, f"{command} {tail}")
    assert look(db) == before


@examples(60)
@given(st.sampled_from(["ab", '"ab"']), TAILS)
@example("ab", "\n/kill a")
@example("ab", '" /steer a')
def test_one_line_acts_on_the_one_task_it_names(db: Served, target: str, tail: str) -> None:
    """The rest of the line is words for that task, whatever they say."""
    before = {task: moves for task, _, moves in db.run(db.clutch.services.db.read(moved))}
    assert answered(db, f"/steer {target} {tail}")
    after = db.run(db.clutch.services.db.read(moved))
    assert {label for task, label, moves in after if moves != before.get(task)} <= {"ab"}


def moved(now: float) -> Tx[list[Any]]:
    del now
    counted = (
        "SELECT t.id, t.label, COUNT(*) FROM tasks t JOIN events e ON e.task_id = t.id GROUP BY t.id, t.label"
    )
    return [*(yield counted, ())]


@examples(300)
@given(TAILS)
@example("/")
@example("/\n")
@example("/stop\x00")
def test_a_line_that_is_no_command_is_for_the_agent_and_one_that_is_has_one_name(text: str) -> None:
    if is_command(text):
        name = text.strip()[1:].split(maxsplit=1)[0]
        assert name.isascii()
        assert name.isalpha()
        assert name.islower()
    else:
        assert not any(text.strip() == f"/{name}" for name in COMMANDS)


# ---- targets -----------------------------------------------------------------------------------------


def candidates(now: float) -> Tx[list[Candidate]]:
    """Newest first, as they are proposed; main sessions are no task but can be named."""
    del now
    rows = yield (
        "SELECT s.key, t.id, s.run_id, t.label FROM sessions s LEFT JOIN tasks t ON t.id = s.id ORDER BY s.id DESC",
        (),
    )
    return [Candidate(*row) for row in rows]


@st.composite
def typed(draw: st.DrawFn, known: list[Candidate]) -> str:
    """A name of something that is there, its beginning, something near it, or anything at all."""
    one = draw(st.sampled_from(known))
    names = [one.session_key, one.label or "last"]
    names += [] if one.task_id is None else [ids.task_id(one.task_id)]
    name = draw(st.sampled_from(names))
    name = name[: draw(st.integers(0, len(name)))] + draw(
        st.sampled_from(["", "", "", " ", "x", "%", "_", "\n"])
    )
    return draw(st.sampled_from([name, name, name.upper(), f" {name}", draw(ANY_TEXT)]))


@pytest.mark.parametrize("text", ["\x00", "a\x00", "\ud800", "t_\x00", "agent:\udc80"])
def test_what_no_store_can_hold_means_nothing(db: Served, text: str) -> None:
    with pytest.raises(NotFound):
        db.run(db.clutch.services.db.read(targets.resolve, text, WHO))


@examples(300)
@given(st.data())
def test_the_store_finds_what_the_rule_says_and_nothing_else(db: Served, data: st.DataObject) -> None:
    known = db.run(db.clutch.services.db.read(candidates))
    text = data.draw(typed(known))
    assume(not text.strip().startswith("r_"))  # runs of before find their tasks too
    viewpoint = Viewpoint(last_task_id=max(one.task_id or 0 for one in known), main_key="agent:main:main")
    meant = resolve(parse_target(text), known, viewpoint)
    match found(db, text):
        case AmbiguousTarget(candidates=proposed):
            assert isinstance(meant, Ambiguous)
            assert len(proposed) == len(meant.candidates)
        case NotFound(candidates=proposed):
            assert isinstance(meant, Unknown)
            assert proposed
        case ResolvedTarget(_, key, task):
            assert isinstance(meant, Candidate)
            assert (key, task) == (meant.session_key, meant.task_id)


def found(db: Served, text: str) -> ResolvedTarget | AmbiguousTarget | NotFound:
    try:
        return db.run(db.clutch.services.db.read(targets.resolve, text, WHO))
    except (AmbiguousTarget, NotFound) as error:
        return error
