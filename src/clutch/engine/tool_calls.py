"""The tool calls of one answer: the user is asked first, then all calls run at once, then one commit.

No call starts before every question about these calls has its answer. The model reads the error of a call that fails.
A call that a crash interrupted runs again only if its tool is marked replay-safe.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

from clutch.contain import cause, contained
from clutch.core import run as run_rules
from clutch.core import session_tools as session_tools_rules
from clutch.core.attachments import SPAWN, redacted, task_path
from clutch.core.authority import Verb
from clutch.core.messages import Answer, Call, Result, Results
from clutch.core.policy import Taint
from clutch.core.questions import Decision, QuestionKind
from clutch.core.run import SUBMIT, Loop, is_dangerous, is_tainted
from clutch.core.spawn import SpawnRefusal, SpawnRequest
from clutch.core.text import announce, prompts
from clutch.engine import output_schema, spawn
from clutch.engine import session_tools as session_tools_engine
from clutch.engine.live import result_detail, tool_detail
from clutch.engine.open_run import OpenRun
from clutch.engine.prompt import spilled
from clutch.engine.services import patiently
from clutch.engine.spawn import Spawned, spawn_all
from clutch.errors import Forbidden, InvalidInput, NotFound, StoreError
from clutch.ports import FilesFailed, RemoteTask, ToolContext, ToolFailed
from clutch.transactions import authority, questions, task_files, turn, turn_end
from clutch.transactions.questions import NewQuestion, QuestionAnswer, call_body, question_body
from clutch.transactions.sessions import Stale
from clutch.transactions.spawn import Accepted, ChildRequest
from clutch.transactions.turn import Boundary, SpawnBatch

YIELD, ASK = "sessions_yield", "ask_human"
PARKED = Boundary(goes_on=False)
NO_HUMAN_ANSWER = QuestionAnswer(Decision.REJECT, "no user is present to ask")


@dataclass(frozen=True, slots=True)
class EarlierTry:
    """A worker that is dead now may have started the calls. `tasks`: those that other servers carry out, by place."""

    tasks: Mapping[int, str]


async def carry_out(run: OpenRun, answer: Answer, *, earlier: EarlierTry | None) -> Boundary:
    """Run the calls of a committed answer and commit their results."""
    said = await _decisions(run, answer)
    if said is None:
        return PARKED
    places, permitted = range(len(answer.calls)), _permitted(run)
    known = {place: answer.calls[place].name for place in places if answer.calls[place].name in permitted}
    sleeps = [place for place, name in known.items() if name == YIELD]
    spawns = [place for place, name in known.items() if name == SPAWN]
    rest = [place for place in places if known.get(place) not in (YIELD, SPAWN)]
    gave, orders = _orders(run, answer, spawns)
    kept = redacted(answer)
    instead = None if kept is answer else kept
    if orders and not rest and not instead and not any(order.request.has_side_work for order in orders):
        outcome, boundary = await _delegate(run, answer, orders, gave, sleeps)
        run.went_on(outcome, boundary)
        return boundary
    # Spawns come first: the children need not wait for the other tools.
    gave += await _spawn(run, orders)
    gave += await _at_once(run, answer, rest, said, earlier)
    outcome = turn.in_order(_noted(gave, _warning(run, answer)))
    if run.interrupt.is_pulled:
        await _leave(run, turn.with_yields(outcome, sleeps, prompts.OUTCOME_UNKNOWN), instead)
    await run.place_files(answer)  # before a commit that may release the session
    if sleeps:
        await run.save_files()
        boundary = await run.tx(turn.yields, outcome, sleeps, run.services.ids.nonce(), instead=instead)
        outcome = turn.with_yields(outcome, sleeps, turn.NO_CHILD)
    else:
        boundary = await run.tx(turn.results, outcome, run.services.ids.nonce(), instead)
    if instead is not None:
        run.transcript[-1] = instead
    run.went_on(outcome, boundary)
    return boundary


async def _at_once(
    run: OpenRun,
    answer: Answer,
    places: Sequence[int],
    said: Mapping[int, QuestionAnswer],
    earlier: EarlierTry | None,
) -> list[Result]:
    """Run the calls at the same time. A store that fails in one call fails the step: the other calls are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(_one(run, answer.calls[place], place, said.get(place), earlier))
                for place in places
            ]
            if running:
                # The results of all calls are committed together: one that may not run twice keeps the others.
                is_safe = all(_is_replay_safe(run, answer.calls[place]) for place in places)
                with run.interrupt.sparing(running), run.interrupt.repeatable(is_so=is_safe):
                    await asyncio.wait(running)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [
        _unknown(answer.calls[place], place) if task.cancelled() else task.result()
        for place, task in zip(places, running, strict=True)
    ]


def _permitted(run: OpenRun) -> frozenset[str]:
    """The names of the tools that the run may use now."""
    narrowed = run.narrowed
    return frozenset(name for name in run.by_name if narrowed.permits(name))


def _is_replay_safe(run: OpenRun, call: Call) -> bool:
    spec = run.by_name.get(call.name)
    return spec is None or spec.replay_safe


def _unknown(call: Call, place: int) -> Result:
    return Result(place, call.name, prompts.OUTCOME_UNKNOWN, failed=True)


async def _leave(run: OpenRun, outcome: Results, instead: Answer | None) -> NoReturn:
    """The run was superseded while tools ran: keep the results they gave in time for the next run, and end the turn."""
    await run.tx_if_lost(turn.leave, outcome, instead)
    raise Stale(f"session {run.session_id} was given a new instruction")


def _warning(run: OpenRun, answer: Answer) -> str:
    """A note for a model that repeats the same call, before the run is ended for it. Computed once for an answer, which
    may have a thousand calls."""
    is_warned = run.since_input.loop(answer, run.policy.life) is Loop.WARNED
    return f"\n{announce.LOOP_NOTE}" if is_warned else ""


def _noted(gave: Sequence[Result], note: str) -> list[Result]:
    return [replace(result, text=result.text + note) for result in gave] if note else list(gave)


# ---- questions to the user ---------------------------------------------------------------------------------


async def _decisions(run: OpenRun, answer: Answer) -> dict[int, QuestionAnswer] | None:
    """The user's decisions about these calls, by place. None: the user is asked, and the run is parked."""
    is_wary = _is_wary(run)
    asked = [one for place, call in enumerate(answer.calls) if (one := _question(run, place, call, is_wary))]
    if not asked and not run.is_taken_up:
        return {}
    said = await run.services.db.read(questions.decided, run.session_id, run.fence, run.head)
    if run.policy.is_headless:
        return said | {one.index: NO_HUMAN_ANSWER for one in asked}
    if all(one.index in said for one in asked):
        return said
    await run.save_files()
    await run.tx(turn_end.ask, run.head, asked, run.services.ids.nonce())
    for one in asked:
        run.tell("question", one.id)
    return None


def _is_wary(run: OpenRun) -> bool:
    return run.policy.taint is Taint.ASK and is_tainted(run.transcript, _own_tools(run))


def _own_tools(run: OpenRun) -> frozenset[str]:
    """The tools whose results contain no text from outside and none of other agents."""
    return (
        frozenset(name for name, spec in run.by_name.items() if not spec.is_outward)
        - session_tools_rules.TOOLS
    )


def _question(run: OpenRun, place: int, call: Call, is_wary: bool) -> NewQuestion | None:
    spec = run.by_name.get(call.name)
    if spec is None or not run.narrowed.permits(call.name):
        return None
    if call.name == ASK:
        try:
            question = run.services.toolbox.human_question(call.args)
        except InvalidInput:
            return None  # the result of the call says what is wrong
        body = question_body(question.question, question.choices)
        return NewQuestion(run.services.ids.next(), place, QuestionKind.QUESTION, body)
    if call.name in session_tools_rules.TOOLS and not _is_well_formed(run, call):
        return None  # as above
    if spec.needs_approval or (is_wary and is_dangerous(call.name, is_outward=spec.is_outward)):
        return NewQuestion(
            run.services.ids.next(), place, QuestionKind.APPROVAL, call_body(call.name, call.args)
        )
    return None


def _is_well_formed(run: OpenRun, call: Call) -> bool:
    try:
        run.services.toolbox.session_call(call.name, call.args)
    except InvalidInput:
        return False
    return True


# ---- one call ----------------------------------------------------------------------------------------------


async def _one(
    run: OpenRun, call: Call, place: int, said: QuestionAnswer | None, earlier: EarlierTry | None
) -> Result:
    spec = run.by_name.get(call.name)
    if spec is None:
        return Result(place, call.name, f"there is no tool {call.name[:64]!r} for you", failed=True)
    if not run.narrowed.permits(call.name):
        rule = f"{call.name} is not among the allowed-tools of a skill that you have loaded; it is refused in this run"
        return Result(place, call.name, rule, failed=True)
    if call.name == ASK:
        return _told(run, call, place, said)
    if call.name == SUBMIT:
        return await _submitted(run, call, place)
    if said is not None and said.decision is not Decision.APPROVE:
        return Result(place, call.name, f"not approved: {said.text}", failed=True)
    known = None if earlier is None else earlier.tasks.get(place)
    if earlier is not None and known is None and not spec.replay_safe:
        return _unknown(call, place)
    detail, began = tool_detail(call.args, place), time.monotonic()
    run.tell("tool:start", call.name, detail)
    if call.name in session_tools_rules.TOOLS:
        text, failed = await session_tools_engine.use(run, call, place)
    else:
        text, failed = await _run_tool(run, call, place, known)
    took = result_detail(text, failed=failed, seconds=time.monotonic() - began)
    run.tell("tool:end", call.name, {**detail, **took})
    return Result(place, call.name, text, failed)


async def _run_tool(run: OpenRun, call: Call, place: int, known: str | None) -> tuple[str, bool]:
    """`known`: the task of another server that carries it out since an earlier try."""
    try:
        reached = await _reached(run, call)
    except (Forbidden, NotFound, FilesFailed) as error:
        return str(error), True
    context = tool_context(run, place, reached, known)
    try:
        with contained():
            text, failed = await run.services.toolbox.run(call.name, call.args, context), False
    except ToolFailed as error:
        text, failed = str(error), True
    except Exception as error:  # noqa: BLE001 - a tool is foreign code; what it breaks, the model should read
        text, failed = f"{call.name} failed: {cause(error)}"[:2000], True
    return await spilled(text, run.policy.context.result_chars_max, partial(_keep, run)), failed


async def _keep(run: OpenRun, name: str, text: str) -> None:
    """Store a large result outside of the workspace: siblings that share it could read and replace the file there."""
    if run.services.results is None or "read" not in run.by_name:
        raise ToolFailed("this session could not read it")
    await run.services.results.keep(run.session_id, name, text)


def tool_context(
    run: OpenRun, place: int, reached: str | None = None, known: str | None = None
) -> ToolContext:
    async def journal(task: str) -> None:
        # The call is made already, and only this id finds what becomes of it: it waits for a store that is away.
        await patiently(run.services, lambda: run.tx(turn.went_remote, place, task))

    async def is_kept(task: str) -> bool:
        # Another worker owns the run, or the store failed in this step: the next try of the call waits for the task.
        if run.interrupt.is_stopping:
            return True
        try:
            return await run.services.db.read(turn.awaits_remote, run.session_id, run.run_id, task)
        except StoreError:
            return True  # not known: a task that runs in vain does less harm than one that is lost

    about, key = run.about, f"{run.session_id}:{run.head}:{place}"
    return ToolContext(
        workspace=about.workspace or ".",
        session_key=about.session_key,
        agent_id=about.agent_id,
        skills=None if run.services.skills is None else str(run.services.skills.copies),
        key=key,
        cwd=about.cwd or ".",
        network=about.rights.network,
        is_sandboxed=run.is_sandboxed,
        on_output=lambda text: run.tell("tool:output", text),
        files=run.files,
        reached=reached,
        traceparent=run.traceparent(key),
        results=None if run.services.results is None else run.services.results.path(run.session_id),
        remote=RemoteTask(journal, is_kept, known),
    )


async def _reached(run: OpenRun, call: Call) -> str | None:
    """The files of another task that the call names, if this agent may read that task."""
    files = run.services.files
    try:
        named = task_path(call.args.get("path"))
    except InvalidInput:
        return None  # the tool says what is wrong with it
    if files is None or named is None or named.task_id is None:
        return None
    await run.services.db.read(authority.check, run.caller, Verb.READ, named.task_id)
    version = await run.services.db.read(task_files.file_version_of, named.task_id)
    await files.fetch(version)
    return files.path(version)


def _told(run: OpenRun, call: Call, place: int, said: QuestionAnswer | None) -> Result:
    if said is None:
        try:
            run.services.toolbox.human_question(call.args)
        except InvalidInput as error:
            return Result(place, ASK, str(error), failed=True)
    if said is None or said.decision is not Decision.ANSWER:
        return Result(place, ASK, f"not answered: {said.text if said else ''}", failed=True)
    return Result(place, ASK, said.text)


async def _submitted(run: OpenRun, call: Call, place: int) -> Result:
    schema = run.about.output_schema or "{}"
    if "value" not in call.args:
        return Result(place, SUBMIT, "value: is required", failed=True)
    wrong = await output_schema.problems(schema, call.args["value"])
    return Result(place, SUBMIT, wrong or run_rules.ACCEPTED, failed=bool(wrong))


# ---- children ----------------------------------------------------------------------------------------------


def _orders(run: OpenRun, answer: Answer, places: Sequence[int]) -> tuple[list[Result], list[ChildRequest]]:
    """The results of invalid spawn calls, and the requests of the others."""
    wrong: list[Result] = []
    orders: list[ChildRequest] = []
    for place in places:
        try:
            request = run.services.wanted(answer.calls[place].args)
            _check_commands(run, request)
        except InvalidInput as error:
            wrong.append(_said(place, spawn.wrong(error), failed=True))
            continue
        key = f"{run.session_id}:{run.head}:{place}"
        orders.append(spawn.order(run.services, request, key, place))
    return wrong, orders


def _check_commands(run: OpenRun, request: SpawnRequest) -> None:
    """A command that the child's checks run is a shell command of this turn, which the child's model does not see.

    Raises InvalidInput where the turn would have to ask for a shell: no user is asked about a spawn."""
    number = next((place for place, one in enumerate(request.checks) if one.command is not None), None)
    if number is not None and _is_wary(run):
        rule = "cannot be used by a turn that has read untrusted text (tools.taint): leave the check out"
        raise InvalidInput(f"checks[{number}].command", rule)


async def _spawn(run: OpenRun, orders: Sequence[ChildRequest]) -> list[Result]:
    if not orders:
        return []
    answers = await spawn_all(run.services, run.session_id, run.about.root_id, run.fence, orders)
    return [in_words(order, got) for order, got in zip(orders, answers, strict=True)]


async def _delegate(
    run: OpenRun,
    answer: Answer,
    orders: Sequence[ChildRequest],
    wrong: Sequence[Result],
    sleeps: Sequence[int],
) -> tuple[Results, Boundary]:
    """Commit an answer that only spawns: children, results and hold in one transaction."""
    note = _warning(run, answer)

    def words(order: ChildRequest, got: Accepted | SpawnRefusal) -> Result:
        return _noted([in_words(order, got)], note)[0]

    if sleeps:
        await run.save_files()
    what = SpawnBatch(run.about.root_id, orders, _noted(wrong, note), sleeps, words)
    return await run.tx_with_root(turn.delegate, what, run.services.ids.nonce())


def _said(place: int, body: dict[str, object], *, failed: bool) -> Result:
    return Result(place, SPAWN, json.dumps(body, ensure_ascii=False), failed)


def in_words(order: ChildRequest, got: Spawned) -> Result:
    said = spawn.answer(order, got)
    return _said(order.place, said, failed=said["status"] != "accepted")
