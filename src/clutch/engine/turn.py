"""One run: the agent loop.

    begin → ask the model → respond → tools → results → ask … → finish

A plain function over the transcript. Every model response and every tool result is committed before the
next step, so going on after a crash is the same code as going on: look at the last message.
"""

from __future__ import annotations

import json

from clutch.core import bounds, wording
from clutch.core.bounds import FORM_NOTE, SUBMIT, Loop
from clutch.core.messages import Answer, Input
from clutch.engine import typed
from clutch.engine.asking import ask
from clutch.engine.calling import carry_out
from clutch.engine.foreign import work_elsewhere
from clutch.engine.interrupt import Interrupt
from clutch.engine.kit import Kit
from clutch.engine.open_run import OpenRun
from clutch.engine.threads import ask_targets
from clutch.protocol import queries, turns, usage
from clutch.protocol.sessions import Stale
from clutch.protocol.turns import Begun
from clutch.protocol.usage import Fate
from clutch.protocol.workers import Claimed

COMPLETE = frozenset({"end", "tools"})


async def take_turn(kit: Kit, claimed: Claimed, interrupt: Interrupt | None = None) -> None:
    """From the claim to the end of the run, or to where it parks."""
    await kit.prepared(claimed.model or kit.policy.model_of(claimed.agent_id))  # before its clock starts
    begun = await _begin(kit, claimed)
    if begun is None:
        return
    if kit.refresh is not None:
        await kit.refresh()
    about = await kit.door.read(queries.briefing, claimed.session_id)
    if about.fence != claimed.fence:
        # Somebody took over since: what is read here may be theirs, and their calls are not ours to run.
        raise Stale(f"session {claimed.session_id} is owned by somebody else now")
    run = OpenRun(kit, claimed, begun, about, interrupt or Interrupt())
    await run.look_around()
    run.tell("lifecycle:start")
    if run.is_ours:
        await _steps(run, interrupted=begun.is_resumed)
    else:
        await _elsewhere(run)
    run.tell("lifecycle:end")


async def _begin(kit: Kit, claimed: Claimed) -> Begun | None:
    await ask_targets(kit, claimed.session_id)
    known = (kit.policy, claimed.session_id, claimed.fence, kit.ids.next(), kit.ids.nonce())
    if kit.policy.limits.on_parent_end:
        return await kit.door.alone(turns.begin, *known)  # a crash loop may kill the children
    keys = (claimed.session_id, *usage.keys(kit.policy, claimed.purses))
    return await kit.door.tx(keys, turns.begin, *known)


async def _steps(run: OpenRun, *, interrupted: bool) -> None:
    """`interrupted`: the calls of the last answer may have been started by somebody who is dead now."""
    while True:
        answer = run.open_answer()
        if answer is None:
            interrupted = False
            if run.kit.stopping.is_set():
                return await run.give_back(Fate.UNSENT)
            answer = await _next_answer(run)
            if answer is None:
                return
        if not answer.calls:
            continue
        boundary = await carry_out(run, answer, interrupted=interrupted)
        if not boundary.goes_on or (boundary.interrupts and await _interrupt(run)):
            return


async def _interrupt(run: OpenRun) -> bool:
    """Letters want this turn's place. Between two steps nothing is under way that could be lost."""
    ids = run.kit.ids
    return await run.tx_with_purses(turns.interrupt, ids.next(), ids.nonce())


async def _next_answer(run: OpenRun) -> Answer | None:
    """Committed. None: the run is over, parked or failed."""
    submitted = bounds.submitted(run.transcript)
    if submitted is not None:
        value = json.dumps(submitted.args["value"], ensure_ascii=False)
        await run.hand_over()
        boundary = await run.tx_with_senders(turns.submit, value, run.kit.ids.nonce())
        if boundary is None or not boundary.goes_on:
            return None
        run.heard(boundary)
    if bounds.form_errors(run.transcript) > 1:
        await run.fail("schema: the result did not have the form that was asked for")
        return None
    answer = await ask(run)
    return None if answer is None else await _heard(run, answer)


async def _heard(run: OpenRun, answer: Answer) -> Answer | None:
    if answer.stop not in COMPLETE:
        await _cut(run, answer, f"the provider cut the answer ({answer.stop})", is_final=False)
    elif bounds.loop([*run.transcript, answer], answer, run.policy.life) is Loop.ENDED:
        await _cut(run, answer, "loop", is_final=True)
    elif run.is_last_call and any(call.name != SUBMIT for call in answer.calls):
        await _cut(
            run, answer, "budget: it is used up, and the last answer still wanted tools", is_final=True
        )
    elif answer.calls:
        flags = [_is_replay_safe(run, call.name) for call in answer.calls]
        known = (answer, flags, run.is_unanswered, run.price_of(answer), run.system.events_upto)
        run.answered(answer, await run.tx_with_senders(turns.respond, *known))
        return answer
    elif SUBMIT in run.by_name:
        return await _without_form(run, answer)
    elif await _finish(run, answer):
        return answer
    return None


def _is_replay_safe(run: OpenRun, name: str) -> bool:
    spec = run.by_name.get(name)
    return spec is not None and spec.replay_safe


async def _cut(run: OpenRun, answer: Answer, error: str, *, is_final: bool) -> None:
    run.tell("lifecycle:error", error)
    known = (error, is_final, answer, run.is_unanswered, run.price_of(answer))
    await run.hand_over()
    await run.tx_with_senders(turns.fail, *known)


async def _without_form(run: OpenRun, answer: Answer) -> Answer | None:
    """It spoke instead of submitting: told once, then ended."""
    if bounds.form_errors(run.transcript):
        await _cut(
            run, answer, "schema: the result was not submitted in the form that was asked for", is_final=True
        )
        return None
    note = Input(wording.SUBMIT_NOTE, FORM_NOTE)
    known = (answer, note, run.is_unanswered, run.price_of(answer))
    run.answered(answer, await run.tx_with_senders(turns.remind, *known))
    run.transcript.append(note)
    return answer


async def _elsewhere(run: OpenRun) -> None:
    while (answer := await work_elsewhere(run)) is not None:
        if not await _end_elsewhere(run, answer):
            return


async def _end_elsewhere(run: OpenRun, answer: Answer) -> bool:
    """The last word of foreign code, which nobody can ask to repair its form. True: it was told more."""
    if answer.stop not in COMPLETE:
        await _cut(run, answer, f"it was cut short ({answer.stop})", is_final=False)
        return False
    schema = run.about.output_schema if SUBMIT in run.by_name else None
    wrong = "" if schema is None else await typed.problems_of_text(schema, answer.text)
    if wrong:
        await _cut(run, answer, f"schema: {wrong}", is_final=True)
        return False
    return await _finish(run, answer, None if schema is None else answer.text)


async def _finish(run: OpenRun, answer: Answer, value: str | None = None) -> bool:
    """True: not the last word; somebody has added something, and the run goes on."""
    known = (answer, run.is_unanswered, run.price_of(answer), run.system.events_upto, value)
    await run.hand_over()
    try:
        boundary = await run.tx_with_senders(turns.finish, *known, run.kit.ids.nonce())
    except Stale:
        await run.kit.door.tx(
            run.session_id, turns.late, run.policy, run.session_id, answer.text, run.kit.ids.nonce()
        )
        raise
    if boundary is None or not boundary.goes_on:
        return False
    run.answered(answer, run.head + 1)
    run.heard(boundary)
    return True
