"""One turn of a worker: the agent loop over one run.

    prepare → begin → open → [ask the model → respond → run tools → results]… → finish

The loop is a plain function over the transcript. Every model answer and every tool result is committed before the next
step, so a resume after a crash is the same code as the next step: it looks at the last message.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from clutch.core import run as run_rules
from clutch.core.messages import Answer, Call, Input
from clutch.core.run import EMPTY_NOTE, FORM_NOTE, SUBMIT, Loop
from clutch.core.text import announce
from clutch.engine import output_schema
from clutch.engine.checks import check
from clutch.engine.external import work_elsewhere
from clutch.engine.model_call import ask
from clutch.engine.open_run import Interrupt, OpenRun
from clutch.engine.services import Services
from clutch.engine.spawn import ask_targets
from clutch.engine.tool_calls import EarlierTry, carry_out
from clutch.errors import StoreError
from clutch.transactions import turn, turn_begin, turn_end, usage
from clutch.transactions.claims import Claimed
from clutch.transactions.read import transcripts
from clutch.transactions.sessions import OwnedRun, Stale
from clutch.transactions.turn import Boundary
from clutch.transactions.turn_begin import Begun
from clutch.transactions.usage import Fate

COMPLETE = frozenset({"end", "tools"})


async def take_turn(services: Services, claimed: Claimed, interrupt: Interrupt | None = None) -> None:
    """Work on a claimed session until its run ends or parks."""
    # Loading a model may take seconds, so it comes before the clock of the run starts.
    await services.prepared(claimed.model or services.policy.model_of(claimed.agent_id))
    begun = await _begin(services, claimed)
    if begun is None:
        return
    run = await _open(services, claimed, begun, interrupt or Interrupt())
    run.tell("lifecycle:start")
    try:
        if run.is_ours:
            await _steps(run, EarlierTry(begun.remote_tasks) if begun.is_resumed else None)
        else:
            await _elsewhere(run)
    except asyncio.CancelledError:
        if run.interrupt.is_stopping:
            with suppress(StoreError, Stale):  # the worker hands the session over next, or has lost it
                await run.save_files()
        raise
    run.tell("lifecycle:end")


async def _begin(services: Services, claimed: Claimed) -> Begun | None:
    await ask_targets(services, claimed.session_id)
    policy, ids = services.policy, services.ids
    owned = OwnedRun(policy, claimed.session_id, claimed.fence, ids.next())
    if policy.limits.on_parent_end:
        # A crash loop may kill the children, so it writes sessions that no key names.
        return await services.db.alone(turn_begin.begin, owned, ids.nonce())
    keys = (claimed.session_id, *usage.keys(policy, claimed.purses))
    return await services.db.tx(keys, turn_begin.begin, owned, ids.nonce())


async def _open(services: Services, claimed: Claimed, begun: Begun, interrupt: Interrupt) -> OpenRun:
    if services.refresh is not None:
        await services.refresh()
    about = await services.db.read(transcripts.briefing, claimed.session_id)
    if about.fence != claimed.fence:
        # Another worker took over since: the transcript read here may hold calls that are its own to run.
        raise Stale(f"session {claimed.session_id} is owned by another worker now")
    run = OpenRun(services, claimed, begun, about, interrupt)
    await run.arrive()
    await run.load_system_prompt()
    return run


async def _steps(run: OpenRun, earlier: EarlierTry | None) -> None:
    """`earlier`: a worker that is dead now may have started the calls of the last answer."""
    while True:
        answer = run.open_answer()
        if answer is None:
            earlier = None
            if run.services.stopping.is_set():
                return await run.give_back(Fate.UNSENT)
            answer = await _next_answer(run)
            if answer is None:
                return
        if not answer.calls:
            continue
        boundary = await carry_out(run, answer, earlier=earlier)
        if not boundary.goes_on or (boundary.interrupts and await _interrupt(run)):
            return


async def _interrupt(run: OpenRun) -> bool:
    """Give the session to a new run that reads the waiting letters. Between two steps nothing can be lost."""
    ids = run.services.ids
    return await run.tx_with_budgets(turn_begin.interrupt, ids.next(), ids.nonce())


async def _next_answer(run: OpenRun) -> Answer | None:
    """The next answer, committed. None: the run is over, parked or failed."""
    if not await _conclude(run):
        return None
    if run.since_input.form_errors() > 1:
        await run.fail("schema: the result did not have the form that was asked for")
        return None
    answer = await ask(run)
    if answer is None:
        return None
    async with _late_if_lost(run, run_rules.last_text(answer)):
        return await _heard(run, answer)


async def _conclude(run: OpenRun) -> bool:
    """Check the result that the transcript ends with, if it does, and finish with it.

    True: there is none, or the run continues: a message was added to the task, or a check failed for the first time."""
    while True:
        final = run_rules.awaiting(run.transcript) if run.checks else None
        submitted = run_rules.submitted(run.transcript)
        if final is not None:
            goes_on = await _finish_kept(run, final.text)
        elif submitted is not None:
            goes_on = await _submit(run, submitted)
        else:
            return True
        if not goes_on:
            return False


async def _submit(run: OpenRun, accepted: Call) -> bool:
    """Finish with the value that was accepted. True: the run continues."""
    value = json.dumps(accepted.args["value"], ensure_ascii=False)
    checked = await check(run, value)
    if not checked.is_passed:
        return checked.goes_on
    async with _late_if_lost(run, value):
        await run.hand_over()
        nonce = run.services.ids.nonce()
        boundary = await run.tx_with_senders(turn_end.submit, value, nonce, checked.summary)
    return _goes_on(run, boundary)


async def _finish_kept(run: OpenRun, text: str) -> bool:
    """Finish with the answer that is committed. True: the run continues."""
    checked = await check(run, text)
    if not checked.is_passed:
        return checked.goes_on
    # Foreign code hands in its value as text.
    value = None if run.is_ours or SUBMIT not in run.by_name else text
    await run.hand_over()
    nonce = run.services.ids.nonce()
    boundary = await run.tx_with_senders(
        turn_end.conclude, turn_end.CheckedResult(text, value, checked.summary), nonce
    )
    return _goes_on(run, boundary)


def _goes_on(run: OpenRun, boundary: Boundary | None) -> bool:
    if boundary is None or not boundary.goes_on:
        return False
    run.received(boundary)
    return True


@asynccontextmanager
async def _late_if_lost(run: OpenRun, text: str) -> AsyncIterator[None]:
    """Report the last text of a run as late if the session is lost before the text is committed, in whatever way: as
    the result, as a cut answer, or to be asked for again.

    Also when the store failed: the run may have lost its session before. A run that has not is handed over and reports
    nothing (`turn.late_in_turn` checks that).
    """
    try:
        yield
    except (Stale, StoreError, asyncio.CancelledError):
        if text:
            await run.report_late(text)
        raise


async def _heard(run: OpenRun, answer: Answer) -> Answer | None:
    """Commit an answer as what it is: an error, tool calls, an answer to ask for again, or the result."""
    if answer.stop not in COMPLETE:
        await _cut(run, answer, f"the provider cut the answer ({answer.stop})", is_final=False)
    elif run.since_input.loop(answer, run.policy.life) is Loop.ENDED:
        await _cut(run, answer, "loop", is_final=True)
    elif run.is_last_call and any(call.name != SUBMIT for call in answer.calls):
        error = "budget: it is used up, and the last answer still wanted tools"
        await _cut(run, answer, error, is_final=True)
    elif answer.calls:
        return await _respond(run, answer)
    elif SUBMIT in run.by_name:
        return await _without_form(run, answer)
    elif run.about.depth and run_rules.is_empty(answer) and not run_rules.was_empty(run.transcript):
        return await _reminded(run, answer, Input(announce.EMPTY_NOTE, EMPTY_NOTE))
    elif run.about.depth and run_rules.is_failure(run.transcript, answer, run.steps):
        await _cut(run, answer, run_rules.EMPTY, is_final=True)
    elif await _finish(run, answer):
        return answer
    return None


async def _keep(run: OpenRun, answer: Answer) -> bool:
    """Commit the final answer; its checks come next. False: it came too late."""
    arrived_at, said = run.services.now(), run.priced(answer, run.system.events_upto)
    head = await run.tx_with_senders(
        turn_end.keep_final, said, nonce=run.services.ids.nonce(), arrived_at=arrived_at
    )
    if head is None:
        return False
    run.answered(answer, head)
    return True


async def _respond(run: OpenRun, answer: Answer) -> Answer:
    flags = [_is_replay_safe(run, call.name) for call in answer.calls]
    said = run.priced(answer, run.system.events_upto)
    run.answered(answer, await run.tx_with_senders(turn.respond, said, flags))
    return answer


def _is_replay_safe(run: OpenRun, name: str) -> bool:
    spec = run.by_name.get(name)
    return spec is not None and spec.replay_safe


async def _cut(run: OpenRun, answer: Answer, error: str, *, is_final: bool) -> None:
    run.tell("lifecycle:error", error)
    cut = run.priced(answer)
    await run.hand_over()
    await run.tx_with_senders(turn_end.fail, error, is_final, cut)


async def _without_form(run: OpenRun, answer: Answer) -> Answer | None:
    """It spoke instead of submitting: it gets one note, then the run ends."""
    if run.since_input.form_errors():
        error = "schema: the result was not submitted in the form that was asked for"
        await _cut(run, answer, error, is_final=True)
        return None
    return await _reminded(run, answer, Input(announce.SUBMIT_NOTE, FORM_NOTE))


async def _reminded(run: OpenRun, answer: Answer, note: Input) -> Answer:
    """The answer is kept, and the model is asked again with a note that says what is missing."""
    run.answered(answer, await run.tx_with_senders(turn.remind, run.priced(answer), note))
    run.transcript.append(note)
    return answer


async def _elsewhere(run: OpenRun) -> None:
    while True:
        if not await _conclude(run) or (answer := await work_elsewhere(run)) is None:
            return
        async with _late_if_lost(run, run_rules.last_text(answer)):
            goes_on = await _end_elsewhere(run, answer)
        if not goes_on:
            return


async def _end_elsewhere(run: OpenRun, answer: Answer) -> bool:
    """Commit the final answer of foreign code, which cannot be asked to repair its form. True: the run continues."""
    if answer.stop not in COMPLETE:
        await _cut(run, answer, f"it was cut short ({answer.stop})", is_final=False)
        return False
    schema = run.about.output_schema if SUBMIT in run.by_name else None
    wrong = "" if schema is None else await output_schema.problems_of_text(schema, answer.text)
    if wrong:
        await _cut(run, answer, f"schema: {wrong}", is_final=True)
        return False
    return await _finish(run, answer, None if schema is None else answer.text)


async def _finish(run: OpenRun, answer: Answer, value: str | None = None) -> bool:
    """Commit the final answer. True: a message was added to the task, or its checks come next."""
    if run.checks:
        return await _keep(run, answer)
    arrived_at, said = run.services.now(), run.priced(answer, run.system.events_upto)
    await run.hand_over()
    boundary = await run.tx_with_senders(
        turn_end.finish, said, value=value, nonce=run.services.ids.nonce(), arrived_at=arrived_at
    )
    if boundary is None or not boundary.goes_on:
        return False
    run.answered(answer, run.head + 1)
    return _goes_on(run, boundary)
