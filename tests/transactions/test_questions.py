"""Questions to a person: the run waits for nothing else, each is decided once, and whoever ends the run voids them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from clutch.core.messages import Result, Results
from clutch.core.model import Outcome, Phase, Reason
from clutch.core.questions import Decision, QuestionChanged, QuestionKind
from clutch.errors import InvalidInput
from clutch.transactions import control, messages, questions, turn, turn_end
from clutch.transactions.questions import (
    BUDGET_INDEX,
    NewQuestion,
    UnknownQuestion,
    call_body,
)
from tests import open_questions
from tests.open_questions import PendingQuestion
from tests.transactions.trees import on, reserve, rooted, step
from tests.transactions.world import Run, World, calls

pytestmark = pytest.mark.anyio

PAY = call_body("pay", {"amount": 3})
WHICH = json.dumps({"question": "which?", "choices": ["left", "right"]})
WHY = json.dumps({"question": "why?", "choices": []})


async def asks(world: World, main: int, *bodies: str, label: str = "child") -> Run:
    """A child whose last answer has one call for each question, parked."""
    run = await world.started(main, label, run_timeout_s=100.0)
    await run.respond(calls(*("pay" for _ in bodies)))
    await on(run, turn_end.ask, run.head, numbered(world, bodies), world.nonce())
    return run


def numbered(world: World, bodies: Sequence[str]) -> list[NewQuestion]:
    kinds = {PAY: QuestionKind.APPROVAL}
    return [
        NewQuestion(world.number(), index, kinds.get(body, QuestionKind.QUESTION), body)
        for index, body in enumerate(bodies)
    ]


async def waiting(world: World, root: int | None = None) -> list[PendingQuestion]:
    return await world.db.read(open_questions.waiting, root)


async def decide(
    world: World, question: PendingQuestion, decision: Decision = Decision.APPROVE, text: str = ""
) -> int:
    known = (world.policy, question.id, decision, text)
    return await world.db.alone(messages.answer, *known, seen_hash=question.hash, actor="person")


async def test_who_asks_waits_without_a_slot_and_without_a_clock(world: World, main: int) -> None:
    run = await asks(world, main, PAY)
    session, task = await world.session(run.session_id), await world.task(run.session_id)
    assert (session.owner, session.due) == (None, None)
    assert (task.phase, task.reason) == (Phase.PAUSED, Reason.NEEDS_YOU)
    assert (task.deadline_at, task.wake_at, task.clock_left_s) == (None, None, 100.0)
    world.clock.advance(10_000)
    await world.ring()
    assert await world.claim() == []
    assert (await world.task(run.session_id)).outcome is None


async def test_question_survives_whoever_asked_it(world: World, main: int) -> None:
    run = await asks(world, main, PAY)
    (before,) = await waiting(world)
    await world.die()
    assert await waiting(world) == [before]
    assert await world.claim() == []
    await decide(world, before)
    again = await world.start(run.session_id)
    assert (again.run_id, again.begun.is_resumed) == (run.run_id, False)


async def test_answered_run_is_due_and_none_of_its_calls_was_started(world: World, main: int) -> None:
    run = await asks(world, main, PAY)
    (question,) = await waiting(world)
    assert (question.session_id, question.kind, question.body) == (
        run.session_id,
        QuestionKind.APPROVAL,
        PAY,
    )
    assert await decide(world, question) == run.session_id
    assert await waiting(world) == []
    again = await world.start(run.session_id)
    assert not again.begun.is_resumed
    said = await world.db.read(questions.answers, run.session_id, run.head)
    assert said[0].decision is Decision.APPROVE
    task = await world.task(run.session_id)
    assert (task.phase, task.deadline_at) == (Phase.RUNNING, world.clock.now() + 100)
    await world.die()
    assert (await world.start(run.session_id)).begun.is_resumed, "now they may have been"


async def test_foreign_code_knows_its_question_by_its_words_until_it_has_heard_the_answer(
    world: World, main: int
) -> None:
    run = await world.started(main, "child")
    gave = Results((Result(0, "look", "seen"),))
    run.head = await on(run, turn.journal, calls("look"), gave)
    first = 0
    for body, decision in [(PAY, Decision.APPROVE), (WHICH, Decision.REJECT)]:
        await on(
            run,
            turn_end.ask,
            run.head,
            [NewQuestion(world.number(), first, QuestionKind.APPROVAL, body)],
            "n",
        )
        assert await world.db.read(questions.is_parked, run.run_id)
        (question,) = await waiting(world)
        await decide(world, question, decision)
        run = await world.start(run.session_id)
        assert run.begun.is_answered
        assert not await world.db.read(questions.is_parked, run.run_id)
        said, first = await world.db.read(questions.latest, run.session_id, run.fence, run.head)
        assert {words: one.decision for words, one in said.items()} == {body: decision}
    await world.die()
    assert not (await world.start(run.session_id)).begun.is_answered, "somebody may have acted on it"


async def test_run_waits_for_the_last_of_its_questions(world: World, main: int) -> None:
    run = await asks(world, main, PAY, WHY)
    first, second = await waiting(world)
    await decide(world, first)
    assert await world.due(run.session_id) is None
    await decide(world, second, Decision.ANSWER, "because")
    assert await world.due(run.session_id) == 0.0
    await world.start(run.session_id)


async def test_decision_is_bound_to_the_words_that_were_shown(world: World, main: int) -> None:
    await asks(world, main, PAY)
    (question,) = await waiting(world)
    wrong = ("", "0" * 64, question.hash[:-1])
    for seen in wrong:
        with pytest.raises(QuestionChanged):
            await world.db.alone(
                messages.answer,
                world.policy,
                question.id,
                Decision.APPROVE,
                "",
                seen_hash=seen,
                actor="person",
            )
    assert await waiting(world) == [question]


async def test_question_is_decided_once_however_many_decide(world: World, main: int) -> None:
    await asks(world, main, PAY)
    (question,) = await waiting(world)
    decisions = (Decision.APPROVE, Decision.REJECT, Decision.APPROVE, Decision.REJECT)
    ended = await asyncio.gather(
        *(decide(world, question, decision) for decision in decisions), return_exceptions=True
    )
    assert sum(isinstance(one, UnknownQuestion) for one in ended) == 3
    with pytest.raises(UnknownQuestion):
        await decide(world, question)


@pytest.mark.parametrize(
    ("body", "decision", "text", "field"),
    [
        (PAY, Decision.ANSWER, "yes", "decision"),
        (PAY, Decision.VOID, "", "decision"),
        (WHY, Decision.APPROVE, "", "decision"),
        (WHICH, Decision.ANSWER, "up", "text"),
    ],
)
async def test_decision_that_does_not_fit_the_question_is_refused(
    world: World, main: int, body: str, decision: Decision, text: str, field: str
) -> None:
    await asks(world, main, body)
    (question,) = await waiting(world)
    with pytest.raises(InvalidInput) as refused:
        await decide(world, question, decision, text)
    assert refused.value.field == field
    assert await waiting(world) == [question]


async def test_one_of_the_choices_is_an_answer(world: World, main: int) -> None:
    run = await asks(world, main, WHICH)
    (question,) = await waiting(world)
    await decide(world, question, Decision.ANSWER, "left")
    said = await world.db.read(questions.answers, run.session_id, run.head)
    assert (said[0].decision, said[0].text) == (Decision.ANSWER, "left")


async def test_steer_voids_what_was_asked(world: World, main: int) -> None:
    run = await asks(world, main, PAY)
    (question,) = await waiting(world)
    await world.db.alone(
        messages.steer, world.policy, run.session_id, "steer:1", "something else", actor="person"
    )
    assert await waiting(world) == []
    with pytest.raises(UnknownQuestion):
        await decide(world, question)
    again = await world.start(run.session_id)
    assert again.run_id != run.run_id
    await again.finish("done otherwise")
    assert (await world.task(run.session_id)).outcome is Outcome.OK


async def test_kill_voids_what_was_asked(world: World, main: int) -> None:
    run = await asks(world, main, PAY)
    (question,) = await waiting(world)
    await world.db.alone(control.kill, world.policy, run.session_id, "enough", "person")
    assert await waiting(world) == []
    with pytest.raises(UnknownQuestion):
        await decide(world, question)
    assert await world.one("SELECT decision FROM questions") == Decision.VOID


async def test_pause_keeps_the_question_and_its_answer(world: World, main: int) -> None:
    run = await asks(world, main, PAY)
    (question,) = await waiting(world)
    await world.db.alone(control.pause, world.policy, run.session_id, "person")
    await decide(world, question)
    assert await world.due(run.session_id) is None
    await world.db.alone(control.resume, world.policy, run.session_id, "person")
    again = await world.start(run.session_id)
    assert (again.run_id, again.begun.is_resumed) == (run.run_id, False)


async def test_pause_and_resume_before_the_answer_change_nothing(world: World, main: int) -> None:
    run = await asks(world, main, PAY)
    await world.db.alone(control.pause, world.policy, run.session_id, "person")
    await world.db.alone(control.resume, world.policy, run.session_id, "person")
    assert await world.due(run.session_id) is None
    assert await world.claim() == []


async def test_run_that_was_answered_and_claimed_but_not_begun_has_still_started_nothing(
    world: World, main: int
) -> None:
    """A pause or an orderly stop comes between the claim and its first step."""
    run = await asks(world, main, PAY)
    (question,) = await waiting(world)
    await decide(world, question)
    assert await world.claim() == [run.session_id]
    await world.db.alone(control.pause, world.policy, run.session_id, "person")
    assert await world.begin(run.session_id) is None
    await world.db.alone(control.resume, world.policy, run.session_id, "person")
    await world.claim()
    claimed = world.held.pop(run.session_id)
    await world.db.alone(turn_end.hand_over, world.policy, run.session_id, claimed.fence)
    assert not (await world.start(run.session_id)).begun.is_resumed


async def test_inbox_shows_one_root_or_all(world: World, main: int) -> None:
    await asks(world, main, PAY)
    other = await world.main("other")
    await asks(world, other, WHY, label="theirs")
    assert [one.kind for one in await waiting(world)] == [QuestionKind.APPROVAL, QuestionKind.QUESTION]
    assert [one.body for one in await waiting(world, other)] == [WHY]


async def test_one_yes_raises_a_purse_once_for_all_who_wait_for_it(world: World, main: int) -> None:
    await rooted(world, main, 100)
    runs = [await world.started(main, label) for label in ("a", "b")]
    assert await reserve(runs[0], 100) is None
    await step(runs[0], 100)
    for run in runs:
        assert await reserve(run, 100) is not None
        body = json.dumps({"purse": f"root:{main}", "text": f"{run.session_id} wants more"})
        head = int(await world.one("SELECT head FROM sessions WHERE id = ?", run.session_id))
        asked = NewQuestion(world.number(), BUDGET_INDEX, QuestionKind.BUDGET, body)
        await on(run, turn_end.ask, head, [asked], world.nonce())
    first, _ = await waiting(world)
    await decide(world, first)
    assert await waiting(world) == []
    assert await world.one("SELECT tokens_max FROM purses") == 200
    assert sorted(await world.claim()) == sorted(run.session_id for run in runs)
