"""A run that somebody else's code works on. We begin and end it; in between it is theirs.

The calls it tells of are journaled, but it cannot be taken up from them: a crash or a steer starts it again from
the beginning, under the same key. What a person has to decide parks the run, as everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib

from clutch.contain import cause
from clutch.core.authority import under_plan
from clutch.core.messages import Answer, Input, Results
from clutch.core.model import Plan
from clutch.core.questions import Decision, QuestionKind
from clutch.engine.external_run import ExternalRun
from clutch.engine.model_call import may_start
from clutch.engine.open_run import OpenRun
from clutch.errors import StoreError
from clutch.ports import RuntimeFailed, RuntimeJob, Verdict
from clutch.transactions import questions, sessions, turn, turn_end, usage
from clutch.transactions.questions import ROUND, NewQuestion, QuestionAnswer, call_body
from clutch.transactions.usage import Fate

ERROR_CHARS_MAX = 500
CHANGING = ("shell", "write")  # whoever may use both of these may do what any program does
NO_HUMAN_VERDICT = Verdict(False, "nobody is there to ask")


async def work_elsewhere(run: OpenRun) -> Answer | None:
    """Its last word, not committed yet. None: it failed, may not be made or waits; and that is committed."""
    runtime = run.services.runtimes.get(run.about.runtime)
    if runtime is None:
        known = ", ".join(sorted(run.services.runtimes)) or "none is registered here"
        await run.fail(
            f"there is no runtime {run.about.runtime!r} in this process; known: {known}", is_final=False
        )
        return None
    errand = await _waiting(run)
    if run.is_budgeted and not await _may_go_on(run, errand):
        return None
    if errand is None:
        errand = ExternalRun(runtime, _job(run), run.run_id, run.tell)
    run.services.errands[run.session_id] = errand
    return await _accompany(run, errand)


async def _waiting(run: OpenRun) -> ExternalRun | None:
    """What this run left here when it parked, if anything."""
    errand = run.services.errands.pop(run.session_id, None)
    if errand is not None and errand.run_id != run.run_id:
        await errand.stop()
        return None
    if errand is not None:
        errand.take_up()
    return errand


async def _may_go_on(run: OpenRun, errand: ExternalRun | None) -> bool:
    """Nobody else holds what waited here: it is sent away unless it may go on."""
    may = False
    try:
        may = await may_start(run)
    finally:
        if errand is not None and not may:
            await errand.stop()
    return may


async def _accompany(run: OpenRun, errand: ExternalRun) -> Answer | None:
    is_kept = is_answered = False
    try:
        said = await _heard(run)
        while True:
            await _news(run, errand)
            await _journal(run, errand)
            if errand.is_over:
                answer = await _last_word(run, errand)
                is_answered = True
                return answer
            if errand.is_paused:
                await errand.stop()
                await run.give_back(Fate.UNKNOWN)  # the next claim leaves it paused
                return None
            if errand.asked and not await _decided(run, errand, said):
                is_kept = True
                return None
    finally:
        if not is_kept:
            if run.services.errands.get(run.session_id) is errand:
                del run.services.errands[run.session_id]
            text = await errand.stop()
            if text and not is_answered:
                await run.report_late(text)


async def _news(run: OpenRun, errand: ExternalRun) -> None:
    """Of a pause a hint tells; one that was lost, or came before there was an errand, costs a tick. Words are no step
    of its journal; that they move it, and what it does, is written once a tick."""
    while not errand.news.is_set():
        try:
            async with asyncio.timeout(run.policy.work.tick_s):
                await errand.news.wait()
        except TimeoutError:
            with contextlib.suppress(StoreError):  # the next tick looks again
                if (changed := errand.changed()) is not None:
                    await run.tx(turn.doing, *changed)
                elif errand.spoke():
                    await run.tx(turn.spoke)
                if await run.services.db.read(sessions.is_paused, run.session_id):
                    errand.pause()
    errand.news.clear()


async def _journal(run: OpenRun, errand: ExternalRun) -> None:
    done = errand.journal()
    if done is not None:
        run.head = await run.tx(turn.journal, *done)
        run.transcript += done
        if (changed := errand.changed()) is not None:
            await run.tx(turn.doing, *changed)


async def _last_word(run: OpenRun, errand: ExternalRun) -> Answer | None:
    try:
        return errand.result()
    except asyncio.CancelledError:
        error = "it ended itself without a word"  # nobody here has cancelled it
    except RuntimeFailed as failure:
        error = str(failure)[:ERROR_CHARS_MAX]
    except Exception as failure:  # noqa: BLE001 - foreign code: what it raises is the run's error
        error = cause(failure)[:ERROR_CHARS_MAX]
    await run.fail(error, is_final=False)
    return None


# ---- people ------------------------------------------------------------------------------------------------


async def _heard(run: OpenRun) -> dict[str, QuestionAnswer]:
    """What people said while the run was parked. Whoever crashed after hearing it has to ask again: the call may
    have been made."""
    if not run.is_answered:
        return {}
    said, _ = await run.services.db.read(questions.latest, run.session_id, run.fence, run.head)
    return said


async def _decided(run: OpenRun, errand: ExternalRun, said: dict[str, QuestionAnswer]) -> bool:
    """False: people are being asked, and the run is parked."""
    new: list[str] = []
    for call, _ in list(errand.asked):
        body = call_body(call.name, call.args)
        found = said.pop(body, None)
        if run.policy.is_headless:
            errand.hear(call, NO_HUMAN_VERDICT)
        elif found is not None:
            errand.hear(call, Verdict(found.decision is Decision.APPROVE, found.text))
        else:
            new.append(body)
    if not new:
        return True
    _, first = await run.services.db.read(questions.latest, run.session_id, run.fence, run.head)
    asked = [
        NewQuestion(run.services.ids.next(), first + place, QuestionKind.APPROVAL, body)
        for place, body in enumerate(list(dict.fromkeys(new))[:ROUND])
    ]
    await run.tx_with_budgets(usage.drop, Fate.UNSENT)  # its row is foreseen again when the run goes on
    errand.keep(_keep(run, errand))
    await run.tx(turn_end.ask, run.head, asked, run.services.ids.nonce())
    for one in asked:
        run.tell("question", one.id)
    return False


async def _keep(run: OpenRun, errand: ExternalRun) -> None:
    """Ends it when its run is over or went on elsewhere, and when a person takes too long."""
    services, session_id, is_over = run.services, run.session_id, False
    ends_at = asyncio.get_running_loop().time() + services.policy.work.held_s
    while asyncio.get_running_loop().time() < ends_at:
        await asyncio.sleep(min(services.policy.work.tick_s, services.policy.work.held_s))
        try:
            if session_id not in services.turns and not await services.db.read(
                questions.is_parked, errand.run_id
            ):
                is_over = True
                break
        except StoreError:
            continue  # the next tick looks again
    if services.errands.get(session_id) is errand:
        del services.errands[session_id]
        text = await errand.stop()
        if text and is_over:
            await run.report_late(text)


# ---- the job -----------------------------------------------------------------------------------------------


def _job(run: OpenRun) -> RuntimeJob:
    about = run.about
    rights = under_plan(about.rights) if about.plan == Plan.DRAFTING else about.rights
    return RuntimeJob(
        text="\n\n".join(entry.text for entry in _told(run)),
        transcript=tuple(entry for entry in run.transcript if isinstance(entry, Input | Answer | Results)),
        session_key=about.session_key,
        workspace=about.workspace or ".",
        key=f"{about.session_key}:{run.head - _made_since(run)}",
        model=about.model_asked,
        files=run.files,
        cwd=about.cwd or ".",
        is_boxed=run.is_boxed,
        network=about.rights.network,
        may_change=all(rights.permits_tool(name, is_read_only=False) for name in CHANGING),
    )


def _told(run: OpenRun) -> list[Input]:
    """What came since its last word."""
    new: list[Input] = []
    for entry in reversed(run.transcript):
        if isinstance(entry, Answer) and not entry.calls:
            break
        if isinstance(entry, Input):
            new.append(entry)
    return new[::-1]


def _made_since(run: OpenRun) -> int:
    """Entries that it has added itself since it was told anything: the name of a run does not change by them."""
    made = 0
    for entry in reversed(run.transcript):
        if isinstance(entry, Input) or (isinstance(entry, Answer) and not entry.calls):
            break
        made += 1
    return made
