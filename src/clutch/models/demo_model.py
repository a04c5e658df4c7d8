"""The demo model: a script, not an LLM, that calls real tools and starts real subagents without a network.

It answers a few questions about a folder and surveys a folder with subagents. It decides from the transcript and its
tools alone: the same request gets the same answer, also in another process after a crash."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clutch.core import compaction
from clutch.core.messages import Answer, Call, Input, Message, Results, Transcript, Usage
from clutch.core.text.format import counted, size
from clutch.core.text.prompts import CANCELLED, PLAN_MODE
from clutch.models.demo_evidence import (
    LIST_ALL,
    PLACES,
    PLACES_MAX,
    QUESTIONS,
    SURVEY,
    TRIES_MAX,
    ChildReport,
    DemoEvidence,
    DemoRequest,
    Finding,
    Listing,
    calls_of,
    files_in,
    findings_in,
    folder,
    largest,
    mentioned,
    places_of,
    request_in,
    since,
    tidy,
    written,
)
from clutch.ports import Delta, DeltaKind, ModelRequest, OnDelta, ToolSpec

MODEL = "offline (scripted, not an LLM)"  #: part of the machine-readable summary of `clutch demo`
NOTICE = "[demo model: no API key, not an LLM]"

RESULT_CHARS_MAX = 3800  #: of a longer result, the parent receives only a summary
CHILD_LINES_MAX = 5  #: of one subagent in the answer to a user
# --------------------------------------------------------------------------------------------------
# The answers.
#
#     survey      list the folder → spawn five subagents and yield → one answer
#     places      (one of the five) list the folder → spawn two readers and yield → one answer
#     a question  one or two rounds of tools → findings as `- file:line: text`, and a `SUMMARY:`
#
# The answer names subagents that were refused, failed, were killed or did not report.

WAITING = "Waiting for"
SUMMARY = "\nSUMMARY: "  #: in every answer that ends a job
_APPROVED = "APPROVED:"  #: an approval without a comment, which needs no remark
#: The question that the agent answers itself where it may not spawn, or every spawn was refused.
_WITHOUT_CHILDREN = {SURVEY: "overview", PLACES: "reading"}


def act(evidence: DemoEvidence, tools: frozenset[str], *, is_planning: bool = False) -> Answer:
    """Return the next step of the job of this evidence."""
    request = request_in(evidence.job.text)
    assert request is not None, "`decide` calls this for a job only"
    if request.question in QUESTIONS and not is_planning:
        return _research(request, evidence)
    if calls := evidence.missing([LIST_ALL]):
        return _do(calls, "Listing the folder.")
    seen = folder(evidence)
    if not seen.files:
        return say(_nothing_to_survey(evidence, seen))
    children = _children(request, places_of(seen)) if "sessions_spawn" in tools else []
    own = replace(request, question=_WITHOUT_CHILDREN.get(request.question, request.question))
    if is_planning:
        return say(_plan(own, children, evidence))
    if step := _wait_for(children, evidence, tools):
        return step
    if not family_of(children, evidence).accepted:
        return _research(own, evidence, _failures(children, evidence))
    return say(_combined(children, evidence, is_main=request.question == SURVEY))


def say(text: str) -> Answer:
    return Answer(f"{NOTICE}\n{text}", model=MODEL)


def _do(calls: Sequence[Call], text: str) -> Answer:
    return Answer(text, tuple(calls), model=MODEL, stop="tools")


def _research(request: DemoRequest, evidence: DemoEvidence, remarks: Sequence[str] = ()) -> Answer:
    calls = calls_of(request, evidence)
    # The runtime announces the end of the time: then the answer is given with what is there.
    is_late = any(one.source == "note" and one.text.startswith("[Time]") for one in evidence.inputs)
    if not is_late and (missing := evidence.missing(calls)):
        return _do(missing, f"Looking for {QUESTIONS[request.question].hits}.")
    question, found = QUESTIONS[request.question], findings_in(calls, evidence)
    summary = f"{counted(len(found), question.hit, question.hits)}, in {mentioned(files_in(found))}"
    if question.reads_largest:
        summary += f"; largest: {largest(folder(evidence)) or 'none'}"
    if (unread := len(request.places) - PLACES_MAX) > 0 and not question.calls:
        summary += f"; {unread} more places were not read"
    return say(_result(found, [*_remarks(evidence), *remarks], summary))


def _result(findings: Sequence[Finding], remarks: Iterable[str], summary: str) -> str:
    tail = [*remarks, f"{SUMMARY.strip()} {tidy(summary)}"]
    room = RESULT_CHARS_MAX - sum(len(line) + 1 for line in tail)
    lines: list[str] = []
    for found in findings:
        line = f"- {found}"
        room -= len(line) + 1
        if room < 0:
            tail.insert(0, f"{len(findings) - len(lines)} more findings did not fit.")
            break
        lines.append(line)
    return "\n".join([*lines, *tail])


def _remarks(evidence: DemoEvidence) -> list[str]:
    """Return what limits the answer: instructions that the demo model cannot follow, and failed calls."""
    remarks = [
        f"Not followed, because the demo model cannot: {tidy(one.text)}"
        for one in evidence.inputs
        if one.source in ("instruction", "decision") and one.text.strip() != _APPROVED
    ]
    failed = [
        f"Failed: {call.name} {tidy(json.dumps(dict(call.args)))}: {tidy(result.text)}"
        for call, result in evidence.pairs
        if result.failed and call.name != "sessions_spawn" and evidence.text(call) is None
    ]
    return [*remarks[-3:], *dict.fromkeys(failed[:3])]


def _nothing_to_survey(evidence: DemoEvidence, seen: Listing) -> str:
    if evidence.text(LIST_ALL) is None:
        return _result([], _remarks(evidence), "the folder could not be listed")
    names = ", ".join(written(path) for path in (*seen.folders, *seen.others)[:20])
    what = f"there are no files in it, only: {names}" if names else "it is empty"
    return _result([], _remarks(evidence), f"nothing to survey in this folder: {what}")


def _plan(request: DemoRequest, children: Sequence[DemoChild], evidence: DemoEvidence) -> str:
    """Return the plan that a user approves: the steps, what they change, and what they may miss."""
    seen, question = folder(evidence), QUESTIONS[request.question]
    starts = [f'Start subagent "{child.label}": {child.task.partition(chr(10))[0]}' for child in children]
    combines = "Wait for all of them and combine their findings into one answer."
    reports = f"Report the {question.hits}, each with file and line."
    steps = [*starts, combines] if children else [*question.steps, reports]
    numbered = [f"{number}. {step}" for number, step in enumerate(steps, start=1)]
    files = f"{counted(len(seen.files), 'file')}, {size(sum(count for _, count in seen.files))}"
    return "\n".join(
        [
            f"Plan: {'survey the folder' if children else f'find {question.hits}'} ({files})",
            *numbered,
            "Changes: none. Every step only reads.",
            "Risks: a search stops at its limit, so a large folder has more than the answer shows.",
            *_remarks(evidence),
        ]
    )


# --- subagents --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DemoChild:
    label: str
    task: str

    @property
    def call(self) -> Call:
        return Call("sessions_spawn", {"task": self.task, "label": self.label})


def _children(request: DemoRequest, places: tuple[str, ...]) -> list[DemoChild]:
    """Return the subagents that a request needs; none for a question."""
    match request.question:
        case "survey":
            return _researchers(places)
        case "places":
            return _readers(request.places or places)
        case _:
            return []


def _researchers(places: tuple[str, ...]) -> list[DemoChild]:
    tasks = (
        ("unfinished work", "Find the lines that are marked as unfinished.", DemoRequest("markers")),
        ("references", "Find the lines that point to other places.", DemoRequest("references")),
        ("outline", "Find the headings and definitions.", DemoRequest("outline")),
        ("size and shape", "Find the largest files and the longest lines.", DemoRequest("sizes")),
        ("reading by place", "Read into every subfolder, with two subagents.", DemoRequest(PLACES, places)),
    )
    pace = {"size and shape": "\npace: slow"}
    return [DemoChild(label, f"{task}\n{request}{pace.get(label, '')}") for label, task, request in tasks]


def _readers(places: tuple[str, ...]) -> list[DemoChild]:
    halves = [half for half in (places[0::2], places[1::2]) if half]
    return [
        DemoChild(
            f"reading {number} of {len(halves)}",
            f"Read how files begin in {mentioned(half)}.\n{DemoRequest('reading', half)}",
        )
        for number, half in enumerate(halves, start=1)
    ]


@dataclass(frozen=True, slots=True)
class Family:
    """The subagents of a job by what became of their spawns."""

    accepted: dict[str, str]  #: task id → label
    refused: dict[str, str]  #: label → why
    missing: tuple[DemoChild, ...]  #: not spawned, or the spawn was cancelled


def family_of(children: Iterable[DemoChild], evidence: DemoEvidence) -> Family:
    family = Family({}, {}, ())
    for child in children:
        texts = [
            result.text
            for call, result in evidence.pairs
            if call.name == "sessions_spawn" and call.args.get("label") == child.label
        ]
        answers = [_spawn_answer(text) for text in texts]
        task_ids = [answer["taskId"] for answer in answers if "taskId" in answer]
        if task_ids:
            family.accepted[task_ids[-1]] = child.label
        elif not texts or (texts[-1] == CANCELLED and len(texts) < TRIES_MAX):
            family = replace(family, missing=(*family.missing, child))
        else:
            family.refused[child.label] = tidy(str(answers[-1].get("error", texts[-1])))
    return family


def _spawn_answer(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _wait_for(children: Sequence[DemoChild], evidence: DemoEvidence, tools: frozenset[str]) -> Answer | None:
    """Spawn the missing subagents, then wait; None when it is time to answer."""
    family = family_of(children, evidence)
    waits = [Call("sessions_yield", {})] if "sessions_yield" in tools else []
    if family.missing:
        starts = [child.call for child in family.missing]
        return _do([*starts, *waits], f"Starting {counted(len(starts), 'subagent')}.")
    reported = evidence.reports
    waiting = [label for task_id, label in family.accepted.items() if task_id not in reported]
    if not waiting or not _may_wait(evidence):
        return None
    text = f"{WAITING} {', '.join(waiting)}."
    return _do(waits, text) if waits else say(text)


def _may_wait(evidence: DemoEvidence) -> bool:
    """Whether to wait again: only after a new report, so that waiting ends even if some never arrive."""
    match evidence.after[-1]:
        case Results(results=results):
            return not any(result.name == "sessions_yield" for result in results)
        case Input(source="announce"):
            before = DemoEvidence(evidence.job, evidence.after[:-1])
            return len(evidence.reports) > len(before.reports)
        case _:
            return True


def _combined(children: Sequence[DemoChild], evidence: DemoEvidence, *, is_main: bool) -> str:
    """Return the one answer from the reports of all subagents."""
    reports = list(_own_reports(children, evidence).values())
    findings = [found for report in reports for found in report.findings]
    remarks = [*_failures(children, evidence), *_remarks(evidence)]
    gathered = f"{counted(len(findings), 'finding')} by {counted(len(reports), 'subagent')}"
    if not is_main:
        return _result(findings, remarks, f"{gathered}, in {mentioned(files_in(findings))}")
    seen = folder(evidence)
    counts = f"{counted(len(seen.files), 'file')} and {counted(len(seen.folders), 'folder')}"
    shape = f"{counts}, {size(sum(count for _, count in seen.files))} {seen.notice}"
    lines = [f"Survey of the folder: {shape}.", f"Largest: {largest(seen, 5)}.", *report_lines(reports)]
    return "\n".join([*lines, *remarks, f"{SUMMARY.strip()} {counts}; {gathered}"])


def _own_reports(children: Sequence[DemoChild], evidence: DemoEvidence) -> dict[str, ChildReport]:
    """Return the reports of this job's subagents. The session may have others: tasks that the user started there."""
    known = family_of(children, evidence).accepted
    return {task_id: report for task_id, report in evidence.reports.items() if task_id in known}


def report_lines(reports: Sequence[ChildReport]) -> list[str]:
    """Return the reports of subagents as lines for a user."""
    lines: list[str] = []
    for report in reports:
        text, findings = report.text or "", report.findings
        marked = text.rpartition(SUMMARY)[2] if SUMMARY in text else text.removeprefix(f"{SUMMARY.strip()} ")
        lines += ["", f"{report.label}: {tidy(marked) or report.status}"]
        lines += [f"- {found}" for found in findings[:CHILD_LINES_MAX]]
        if len(findings) > CHILD_LINES_MAX:
            lines.append(f"- and {len(findings) - CHILD_LINES_MAX} more in its own result")
    return [*lines, ""]


def _failures(children: Sequence[DemoChild], evidence: DemoEvidence) -> list[str]:
    """Return a line for each subagent that was refused, failed or did not report."""
    family, reports = family_of(children, evidence), _own_reports(children, evidence)
    missing = [label for task_id, label in family.accepted.items() if task_id not in reports]
    unwell = [report for report in reports.values() if not report.status.startswith("completed successfully")]
    return [
        *(f"Refused: {label}: {why}" for label, why in family.refused.items()),
        *(f"Not completed: {report.label}: {report.status}" for report in unwell),
        *(f"No report from: {label}" for label in missing),
    ]


# --------------------------------------------------------------------------------------------------
# The model.

CHUNKS_MAX = 12
SLOW = 4.0

_HELP = f"""\
I am the demo model: a script that needs no API key, not an LLM. It shows what Clutch does around a model.
I know these requests, about the folder that you work in:
- Survey the folder (five subagents search and read its files; you get one answer)
{chr(10).join(f"- question: {name} ({question.hits})" for name, question in QUESTIONS.items())}
To use a real model: export the API key of a provider, e.g. ANTHROPIC_API_KEY, then run `clutch init` and `clutch stop`.
The next command starts a gateway with that model."""


def watchable_latency(request: ModelRequest) -> float:
    """Return a delay that a user can follow, different for each call and the same for the same call."""
    seconds = 0.2 + zlib.crc32(request.key.encode()) % 200 / 1000
    return seconds * SLOW if _is_slow(request.transcript) else seconds


def _is_slow(transcript: Transcript) -> bool:
    return any("\npace: slow" in one.text for one in _inputs(transcript) if one.source == "task")


class OfflineModel:
    """The demo model as a `Models` port. `latency` and `sleep` make it as slow as an LLM or as fast as a test."""

    def __init__(
        self,
        latency: Callable[[ModelRequest], float] = watchable_latency,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._latency = latency
        self._sleep = sleep

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        answer = decide(request.transcript, request.tools, is_planning=PLAN_MODE in request.system)
        chunks = _chunks(answer.text)
        pause = self._latency(request) / (len(chunks) + 1)
        await self._sleep(pause)
        for chunk in chunks:
            on_delta(Delta(DeltaKind.TEXT, chunk))
            await self._sleep(pause)
        return replace(answer, usage=_usage(request, answer))


def decide(transcript: Transcript, tools: Sequence[ToolSpec], *, is_planning: bool = False) -> Answer:
    inputs = list(_inputs(transcript))
    jobs = [one for one in inputs if one.source in ("user", "task") and request_in(one.text)]
    newest = inputs[-1] if inputs else Input("")
    names = frozenset(spec.name for spec in tools)
    is_other = not jobs or (newest.source in ("user", "task") and newest is not jobs[-1])
    if is_other or (newest.source in ("instruction", "announce") and _is_answered(transcript, jobs[-1])):
        return _without_a_job(transcript, newest)
    if not {"list", "read", "search"} <= names:
        return say("I cannot survey a folder: I have no tools to list, read and search files.")
    return act(since(transcript, jobs[-1]), names, is_planning=is_planning)


def _inputs(transcript: Transcript) -> Iterator[Input]:
    return (message for message in transcript if isinstance(message, Input))


def _is_answered(transcript: Transcript, job: Input) -> bool:
    answers = (message for message in since(transcript, job).after if isinstance(message, Answer))
    return any(not answer.calls and SUMMARY in answer.text for answer in answers)


def _without_a_job(transcript: Transcript, newest: Input) -> Answer:
    """Return the answer to what the demo model does not know, or the reports that arrived without a survey."""
    reports = list(DemoEvidence(newest, _unanswered(transcript)).reports.values())
    if newest.source == "announce" and reports:
        return say("\n".join(["Subagents have finished.", *report_lines(reports)]))
    first = tidy(newest.text.partition("\n")[0])
    match newest.source:
        case "announce":
            return say(
                f"{first}\nIt waits for your decision: type `clutch inbox`, or open the Inbox of the page."
            )
        case "task":
            return say(f"{_HELP}{SUMMARY}nothing was done; the demo model does not know this task")
        case _:
            return say(f'I cannot answer "{first}".\n{_HELP}')


def _unanswered(transcript: Transcript) -> tuple[Message, ...]:
    answers = [at for at, message in enumerate(transcript) if isinstance(message, Answer)]
    return tuple(transcript[answers[-1] + 1 :] if answers else transcript)


def _chunks(text: str) -> list[str]:
    length = max(40, -(-len(text) // CHUNKS_MAX))
    return [text[start : start + length] for start in range(0, len(text), length)]


def _usage(request: ModelRequest, answer: Answer) -> Usage:
    """Estimate the tokens, at four bytes each."""
    schemas = sum(len(spec.description) + len(json.dumps(dict(spec.parameters))) for spec in request.tools)
    sent = len(request.system) + schemas + compaction.size(request.transcript)
    return Usage(input=sent // 4, output=compaction.size([answer]) // 4)
