"""A run that foreign code works on: its turn begins it, accompanies it and ends it.

The calls that the code reports are journaled, but the code cannot be resumed from them: a crash or a steer starts it
again from the beginning, under the same key. A question to the user parks the run, as everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import islice

from clutch.contain import cause
from clutch.core.authority import under_plan
from clutch.core.messages import Answer, Call, Input, Results
from clutch.core.model import Plan
from clutch.core.questions import Decision, QuestionKind
from clutch.engine.external_run import ExternalRun
from clutch.engine.model_call import may_start
from clutch.engine.open_run import OpenRun
from clutch.errors import StoreError
from clutch.ports import HumanQuestion, RuntimeFailed, RuntimeJob, Verdict
from clutch.transactions import questions, sessions, turn, turn_end, usage
from clutch.transactions.questions import ROUND, NewQuestion, QuestionAnswer, call_body, question_body
from clutch.transactions.usage import Fate

ERROR_CHARS_MAX = 500
CHANGING = ("shell", "write")  # with both of these an agent may do what any program does
NO_HUMAN_VERDICT = Verdict(False, "no user is present to ask")


async def work_elsewhere(run: OpenRun) -> Answer | None:
    """The final answer, not committed yet. None: the code failed, may not start or waits, and that is committed."""
    runtime = run.services.runtimes.get(run.about.runtime)
    if runtime is None:
        known = ", ".join(sorted(run.services.runtimes)) or "none is registered here"
        await run.fail(
            f"there is no runtime {run.about.runtime!r} in this process; known: {known}", is_final=False
        )
        return None
    external = await _waiting(run)
    if run.is_budgeted and not await _may_go_on(run, external):
        return None
    if external is None:
        external = ExternalRun(runtime, _job(run), run.run_id, run.tell)
    run.services.external_runs[run.session_id] = external
    return await _accompany(run, external)


async def _waiting(run: OpenRun) -> ExternalRun | None:
    """The code that this run left at work here when it parked."""
    external = run.services.external_runs.pop(run.session_id, None)
    if external is not None and external.run_id != run.run_id:
        await external.stop()
        return None
    if external is not None:
        external.take_up()
    return external


async def _may_go_on(run: OpenRun, external: ExternalRun | None) -> bool:
    """Whether the budget lets the code run. Code that waited here and may not continue is stopped."""
    may = False
    try:
        may = await may_start(run)
    finally:
        if external is not None and not may:
            await external.stop()
    return may


async def _accompany(run: OpenRun, external: ExternalRun) -> Answer | None:
    is_kept = is_answered = False
    try:
        said = await _heard(run)
        while True:
            await _news(run, external)
            await _journal(run, external)
            if external.is_over:
                answer = await _last_word(run, external)
                is_answered = True
                return answer
            if external.is_paused:
                await external.stop()
                await run.give_back(Fate.UNKNOWN)  # the next claim leaves it paused
                return None
            if external.asked and not await _decided(run, external, said):
                is_kept = True
                return None
    finally:
        if not is_kept:
            if run.services.external_runs.get(run.session_id) is external:
                del run.services.external_runs[run.session_id]
            text = await external.stop()
            if text and not is_answered:
                await run.report_late(text)


async def _news(run: OpenRun, external: ExternalRun) -> None:
    """Wait until the code reports something that is committed at once.

    A hint reports a pause; a lost hint costs a tick. Text is no step of the journal: once a tick it is written that the
    code moves, and which call it makes."""
    while not external.news.is_set():
        try:
            async with asyncio.timeout(run.policy.work.tick_s):
                await external.news.wait()
        except TimeoutError:
            with contextlib.suppress(StoreError):  # the next tick looks again
                if (changed := external.changed()) is not None:
                    await run.tx(turn.doing, *changed)
                elif external.spoke():
                    await run.tx(turn.spoke)
                if await run.services.db.read(sessions.is_paused, run.session_id):
                    external.pause()
    external.news.clear()


async def _journal(run: OpenRun, external: ExternalRun) -> None:
    done = external.journal()
    if done is not None:
        run.head = await run.tx(turn.journal, *done)
        run.transcript += done
        if (changed := external.changed()) is not None:
            await run.tx(turn.doing, *changed)


async def _last_word(run: OpenRun, external: ExternalRun) -> Answer | None:
    try:
        return external.result()
    except asyncio.CancelledError:
        error = "it ended itself without a word"  # this turn has not cancelled it
    except RuntimeFailed as failure:
        error = str(failure)[:ERROR_CHARS_MAX]
    except Exception as failure:  # noqa: BLE001 - foreign code: what it raises is the run's error
        error = cause(failure)[:ERROR_CHARS_MAX]
    await run.fail(error, is_final=False)
    return None


# ---- questions to the user ---------------------------------------------------------------------------------


async def _heard(run: OpenRun) -> dict[str, QuestionAnswer]:
    """The answers given while the run was parked. A worker that crashed after it read them must ask again: the call may
    have been made."""
    if not run.is_answered:
        return {}
    said, _ = await run.services.db.read(questions.latest, run.session_id, run.fence, run.head)
    return said


async def _decided(run: OpenRun, external: ExternalRun, said: dict[str, QuestionAnswer]) -> bool:
    """False: the user is asked, and the run is parked."""
    new: dict[str, QuestionKind] = {}
    for wanted, _ in list(external.asked):
        kind, body = _as_shown(wanted)
        found = said.pop(body, None)
        if run.policy.is_headless:
            external.hear(wanted, NO_HUMAN_VERDICT)
        elif found is not None:
            is_given = found.decision in (Decision.APPROVE, Decision.ANSWER)
            external.hear(wanted, Verdict(is_given, found.text))
        else:
            new[body] = kind
    if not new:
        return True
    _, first = await run.services.db.read(questions.latest, run.session_id, run.fence, run.head)
    asked = [
        NewQuestion(run.services.ids.next(), first + place, kind, body)
        for place, (body, kind) in enumerate(islice(new.items(), ROUND))
    ]
    await run.tx_with_budgets(usage.drop, Fate.UNSENT)  # its row is inserted again when the run resumes
    external.keep(_keep(run, external))
    await run.save_files()
    await run.tx(turn_end.ask, run.head, asked, run.services.ids.nonce())
    for one in asked:
        run.tell("question", one.id)
    return False


def _as_shown(asked: Call | HumanQuestion) -> tuple[QuestionKind, str]:
    match asked:
        case HumanQuestion():
            return QuestionKind.QUESTION, question_body(asked.question, asked.choices)
        case _:
            return QuestionKind.APPROVAL, call_body(asked.name, asked.args)


async def _keep(run: OpenRun, external: ExternalRun) -> None:
    """Stop the code when its run is over or resumed in another process, and when the user takes too long."""
    services, session_id, is_over = run.services, run.session_id, False
    ends_at = asyncio.get_running_loop().time() + services.policy.work.held_s
    while asyncio.get_running_loop().time() < ends_at:
        await asyncio.sleep(min(services.policy.work.tick_s, services.policy.work.held_s))
        try:
            if session_id not in services.turns and not await services.db.read(
                questions.is_parked, external.run_id
            ):
                is_over = True
                break
        except StoreError:
            continue  # the next tick looks again
    if services.external_runs.get(session_id) is external:
        del services.external_runs[session_id]
        text = await external.stop()
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
        traceparent=run.traceparent(),
        model=about.model_asked,
        files=run.files,
        cwd=about.cwd or ".",
        is_sandboxed=run.is_sandboxed,
        network=about.rights.network,
        may_change=all(rights.permits_tool(name, is_read_only=False) for name in CHANGING),
    )


def _told(run: OpenRun) -> list[Input]:
    """The inputs since its last answer."""
    new: list[Input] = []
    for entry in reversed(run.transcript):
        if isinstance(entry, Answer) and not entry.calls:
            break
        if isinstance(entry, Input):
            new.append(entry)
    return new[::-1]


def _made_since(run: OpenRun) -> int:
    """How many entries the code has added since its last input: they do not change the key of the run."""
    made = 0
    for entry in reversed(run.transcript):
        if isinstance(entry, Input) or (isinstance(entry, Answer) and not entry.calls):
            break
        made += 1
    return made
