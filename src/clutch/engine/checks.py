"""The checks of a task, run between its final answer and its end.

They run one after the other, so that each sees a quiet workspace, with the rights of the task and never with more. Each
is journaled before it starts and when it has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clutch.contain import contained
from clutch.core import run as run_rules
from clutch.core.checks import (
    COMMAND_S,
    CheckKind,
    CheckReport,
    CheckResult,
    CheckState,
    Conclusion,
    TaskCheck,
    bounded,
    conclusion,
    error_text,
    taken_up,
    words,
)
from clutch.core.messages import Answer, Call, Input
from clutch.core.run import CHECK_NOTE, SHELL
from clutch.core.spawn import Spawner, SpawnRequest, terms
from clutch.core.text import check_notes
from clutch.engine import output_schema
from clutch.engine.model_call import ask_apart
from clutch.engine.open_run import OpenRun
from clutch.engine.tool_calls import tool_context
from clutch.ports import INSPECT, ModelRequest, ToolFailed, ToolSpec
from clutch.transactions import checks as checks_tx
from clutch.transactions.checks import DueChecks

VERDICT = ToolSpec(check_notes.VERDICT_TOOL, "Your verdict on the result.", check_notes.VERDICT_SCHEMA)


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checks gave. `summary`: for the timeline; None where no checks were due."""

    is_passed: bool = True
    summary: str | None = None
    goes_on: bool = False  #: the child corrects its work


#: The run has failed, or waits for a model call of a check; that is committed.
OVER = Checked(is_passed=False)


async def check(run: OpenRun, text: str) -> Checked:
    """Run the checks of this final text that have no result yet. A repair or a failure is committed here."""
    due = await run.services.db.read(checks_tx.due, run.session_id) if run.checks else None
    if due is None:
        return Checked()
    # Notes of the runtime may follow the entry that is checked.
    seq = run.head - run_rules.notes_after(run.transcript)
    report = taken_up(due.report, due.generation, seq, len(run.checks))
    while (place := report.next) is not None:
        ended = await _journaled(run, report, place, due, text)
        if ended is None:
            return OVER
        report = ended
    return await _concluded(run, report)


async def _concluded(run: OpenRun, report: CheckReport) -> Checked:
    match conclusion(report, run_rules.repairs_made(run.transcript)):
        case Conclusion.DONE:
            return Checked(summary=words(report))
        case Conclusion.REPAIR:
            note = Input(check_notes.repair_note(report, run.services.ids.nonce()), CHECK_NOTE)
            line = f"{words(report)}; {error_text(report)}"
            run.head = await run.tx_with_budgets(checks_tx.repair, note, line)
            run.transcript.append(note)
            return Checked(is_passed=False, goes_on=True)
        case Conclusion.FAIL:
            await run.fail(error_text(report))
            return OVER


async def _journaled(
    run: OpenRun, report: CheckReport, place: int, due: DueChecks, text: str
) -> CheckReport | None:
    one = run.checks[place]
    model = _reviewer_model(run, one) if one.agent is not None else None
    started = report.having(place, CheckResult(one.title, CheckState.RUNNING))
    shown = Call("check", {"command": one.title})
    await run.tx_with_budgets(checks_tx.record_check, started, shown, model)
    run.tell("check:start", one.title)
    # Every check may run again, so a worker that stops need not wait for one.
    with run.interrupt.repeatable():
        result = await _result(run, one, place, due.task, text)
    if result is None:
        return None
    run.tell("check:end", one.title, {"state": result.state.value})
    ended = report.having(place, result)
    await run.tx_with_budgets(checks_tx.record_check, ended, None, None)
    return ended


async def _result(run: OpenRun, one: TaskCheck, place: int, task: str, text: str) -> CheckResult | None:
    found: tuple[CheckState, str] | None
    match one.kind:
        case CheckKind.FILE:
            found = await _file(run, one, place)
        case CheckKind.COMMAND:
            found = await _command(run, one, place)
        case CheckKind.CALLS:
            found = await _calls(run, one)
        case CheckKind.SCHEMA:
            found = await _schema(run, one, place, text)
        case CheckKind.AGENT:
            found = await _verdict(run, one, place, task, text)
    if found is None:
        return None
    state, detail = found
    return CheckResult(one.title, state, "" if state is CheckState.PASSED else bounded(detail))


def _said(wrong: str) -> tuple[CheckState, str]:
    return (CheckState.FAILED if wrong else CheckState.PASSED), wrong


# ---- files and commands ------------------------------------------------------------------------------------


async def _file(run: OpenRun, one: TaskCheck, place: int) -> tuple[CheckState, str]:
    try:
        facts = await _inspected(run, place, {"path": one.file, "pattern": one.matches})
    except ToolFailed as error:
        return _said(str(error))  # a link, or a path that no agent may see: not the file that was asked for
    size = facts["bytes"]
    if size is None:
        return _said("there is no such file")
    if size < (one.min_bytes or 0):
        return _said(f"has {size} bytes, at least {one.min_bytes} are required")
    if one.max_bytes is not None and size > one.max_bytes:
        return _said(f"has {size} bytes, at most {one.max_bytes} are allowed")
    return _said("" if one.matches is None or facts["matches"] else f"no line matches {one.matches!r}")


async def _inspected(run: OpenRun, place: int, args: Mapping[str, Any]) -> Mapping[str, Any]:
    context = tool_context(run, place)
    with contained():
        facts: Mapping[str, Any] = json.loads(await run.services.toolbox.run(INSPECT, args, context))
    return facts


async def _command(run: OpenRun, one: TaskCheck, place: int) -> tuple[CheckState, str]:
    """With the rights of the task: what its agent may not run, its check may not run either."""
    spec = run.by_name.get(SHELL)
    if spec is None or spec.needs_approval:
        why = "has no shell" if spec is None else "needs approval for each command"
        return CheckState.UNKNOWN, f"not run: the task {why}"
    exits: list[int | None] = []
    context = replace(tool_context(run, place), on_exit=exits.append, on_output=None)
    args = {"command": one.command, "timeout_seconds": one.timeout_seconds or COMMAND_S}
    try:
        with contained():
            output = await run.services.toolbox.run(SHELL, args, context)
    except ToolFailed as error:
        return CheckState.UNKNOWN, str(error)
    if not exits:
        return CheckState.UNKNOWN, "the shell of this process reports no exit code"
    return _said("" if exits[0] == 0 else output)


# ---- the work and the result -------------------------------------------------------------------------------


async def _calls(run: OpenRun, one: TaskCheck) -> tuple[CheckState, str]:
    tool, least = one.calls or "", one.min_calls or 1
    made = await run.services.db.read(checks_tx.calls_made, run.session_id, tool)
    return _said("" if made >= least else f"{made} successful calls of {tool}, at least {least} are required")


async def _schema(run: OpenRun, one: TaskCheck, place: int, text: str) -> tuple[CheckState, str]:
    if one.file is not None:
        try:
            facts = await _inspected(run, place, {"path": one.file, "text": True})
        except ToolFailed as error:
            return _said(str(error))
        if facts["bytes"] is None or facts["text"] is None:
            rule = (
                "there is no such file" if facts["bytes"] is None else f"is too large: {facts['bytes']} bytes"
            )
            return _said(rule)
        text = facts["text"]
    return _said(await output_schema.problems_of_text(json.dumps(one.schema), text))


# ---- the verdict of another agent --------------------------------------------------------------------------


def _reviewer_model(run: OpenRun, one: TaskCheck) -> str:
    """The model of the agent that reviews, as it would have it as a child of this one."""
    about = run.about
    player = Spawner(about.agent_id, about.model)
    return terms(SpawnRequest(""), one.agent or "", player, run.policy).model


async def _verdict(
    run: OpenRun, one: TaskCheck, place: int, task: str, text: str
) -> tuple[CheckState, str] | None:
    """One model call, booked for this task. None: it could not be made now, and what follows is committed."""
    model, nonce = _reviewer_model(run, one), run.services.ids.nonce()
    if not run.about.rights.permits_model(model):
        return CheckState.UNKNOWN, f"model {model!r} is not among those allowed here"
    await run.services.prepared(model)
    persona = run.policy.agent(one.agent or "").instructions
    request = ModelRequest(
        model=model,
        system="\n\n".join(filter(None, (check_notes.VERDICT_SYSTEM, persona))),
        transcript=(Input(check_notes.verdict_request(task, text, one.prompt, nonce), "check"),),
        tools=(VERDICT,),
        key=f"{run.about.session_key}:{run.head}:check:{place}",
        output_tokens_max=run.policy.budgets.output_tokens if run.is_budgeted else None,
    )
    answer = await ask_apart(run, request, _problem)
    if answer is None:
        return None
    if isinstance(answer, str):
        return CheckState.UNKNOWN, answer
    return check_notes.verdict_of(answer) or CheckState.UNKNOWN, str(answer.calls[0].args["reason"])


def _problem(answer: Answer) -> str:
    return "the agent gave no verdict" if check_notes.verdict_of(answer) is None else ""
