"""The demo model: a script, not an LLM, that calls real tools and starts real subagents without a network.

It knows one job, the survey of a folder. It decides from the transcript and its tools alone: the same request gets the
same answer, also in another process after a crash."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clutch.core.messages import Answer, Call, Input, Message, Results, Transcript, Usage
from clutch.core.text.format import counted
from clutch.core.text.prompts import CANCELLED
from clutch.models.demo_evidence import (
    LIST_ALL,
    QUESTIONS,
    TRIES_MAX,
    ChildReport,
    DemoEvidence,
    DemoRequest,
    Finding,
    Listing,
    calls_of,
    files_in,
    folder,
    mentioned,
    order_in,
    places_in,
    places_of,
    since,
    tidy,
    written,
)
from clutch.ports import Delta, DeltaKind, ModelRequest, OnDelta, ToolSpec

# --------------------------------------------------------------------------------------------------
# The survey of a folder: list it, give questions to children, wait, combine their answers.
#
#     main        list the folder → spawn five children and yield → one answer
#     places      (one of the five) spawn two readers and yield → one answer
#     the others  one or two rounds of tools, then an answer with `FINDING file:line: text` lines and a `SUMMARY:`
#
# Every decision is made from the transcript alone, so an interrupted run resumes where it was. The answer names
# children that were refused, failed, were killed or did not report.

MODEL = "offline (scripted, not an LLM)"
NOTICE = "[offline model: scripted, not an LLM]"
APPROVED = "APPROVED:"  #: an approval without a comment, which needs no remark
WAITING = "Waiting for"

RESULT_CHARS_MAX = 3800  #: of a longer result, the parent receives only a summary
CHILD_LINES_MAX = 10  #: of one child in the answer to a user
TYPES_MAX = 5

_SURVEY = re.compile(r"(?im)^\s*survey\b")
_PLACES = re.compile(r"(?m)^question: places$")
_SLOW = re.compile(r"(?m)^pace: slow$")


@dataclass(frozen=True, slots=True)
class DemoChild:
    label: str
    task: str

    @property
    def call(self) -> Call:
        return Call("sessions_spawn", {"task": self.task, "label": self.label})


def is_job(text: str) -> bool:
    return bool(order_in(text) or _PLACES.search(text) or _SURVEY.search(text))


def is_slow(text: str) -> bool:
    return bool(_SLOW.search(text))


def act(evidence: DemoEvidence, tools: frozenset[str]) -> Answer:
    """Return the next step of the job of this evidence."""
    task = evidence.job.text
    if order := order_in(task):
        return _research(order, evidence)
    if _PLACES.search(task) and (places := places_in(task)):
        return _delegate_places(evidence, places, tools)
    if is_asking := evidence.missing([LIST_ALL]):
        return _do(is_asking, "Looking at the folder.")
    seen = folder(evidence)
    if not seen.files:
        return say(_nothing_to_survey(evidence, seen))
    if _PLACES.search(task):
        return _delegate_places(evidence, places_of(seen), tools)
    return _survey(evidence, seen, tools)


def say(text: str) -> Answer:
    return Answer(f"{NOTICE}\n{text}", model=MODEL)


def is_last_word(answer: Answer) -> bool:
    return not answer.calls and not answer.text.startswith(f"{NOTICE}\n{WAITING}")


def _do(calls: Sequence[Call], text: str) -> Answer:
    return Answer(text, tuple(calls), model=MODEL, stop="tools")


# --- a researcher -----------------------------------------------------------------------------------------


def _research(order: DemoRequest, evidence: DemoEvidence) -> Answer:
    calls = () if _is_late(evidence) else calls_of(order, evidence)
    if calls:
        return _do(calls, f"Tool calls about {order.question}: {len(calls)}.")
    question = QUESTIONS[order.question]
    summary = question.summary(order, evidence)
    return say(_result(question.findings(order, evidence), _remarks(evidence), summary))


def _is_late(evidence: DemoEvidence) -> bool:
    """Whether the runtime has announced the end of the time, so that the answer must be given now."""
    return any(told.source == "note" and told.text.startswith("[Time]") for told in evidence.inputs)


def _result(findings: Sequence[Finding], remarks: Iterable[str], summary: str) -> str:
    tail = [*remarks, f"SUMMARY: {tidy(summary)}"]
    room = RESULT_CHARS_MAX - sum(len(line) + 1 for line in tail)
    lines: list[str] = []
    for found in findings:
        line = f"FINDING {found}"
        room -= len(line) + 1
        if room < 0:
            tail.insert(0, f"{len(findings) - len(lines)} more findings did not fit.")
            break
        lines.append(line)
    return "\n".join([*lines, *tail])


def _remarks(evidence: DemoEvidence) -> list[str]:
    """Return what limits the answer: instructions a script cannot follow, and failed calls."""
    remarks = [
        f"Not followed, because a script cannot: {tidy(told.text)}"
        for told in evidence.inputs
        if told.source in ("instruction", "decision") and told.text.strip() != APPROVED
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


# --- children ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Family:
    """The children of a job by what became of their spawns."""

    accepted: dict[str, str]  #: task id → label
    refused: dict[str, str]  #: label → why
    unborn: tuple[DemoChild, ...]  #: not spawned, or the spawn was cancelled


def family_of(children: Iterable[DemoChild], evidence: DemoEvidence) -> Family:
    accepted: dict[str, str] = {}
    refused: dict[str, str] = {}
    unborn: list[DemoChild] = []
    for child in children:
        texts = [result.text for call, result in evidence.pairs if _asks_for(call, child)]
        task_ids = [answer["taskId"] for answer in map(_spawn_answer, texts) if "taskId" in answer]
        if task_ids:
            accepted[task_ids[-1]] = child.label
        elif not texts or (texts[-1] == CANCELLED and len(texts) < TRIES_MAX):
            unborn.append(child)
        else:
            refused[child.label] = tidy(str(_spawn_answer(texts[-1]).get("error", texts[-1])))
    return Family(accepted, refused, tuple(unborn))


def _asks_for(call: Call, child: DemoChild) -> bool:
    return call.name == "sessions_spawn" and call.args.get("label") == child.label


def _spawn_answer(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _next_of(children: Sequence[DemoChild], evidence: DemoEvidence, tools: frozenset[str]) -> Answer | None:
    """Spawn the missing children, then wait; None when it is time to answer."""
    family = family_of(children, evidence)
    if family.unborn:
        waits = [Call("sessions_yield", {})] if "sessions_yield" in tools else []
        starts = [child.call for child in family.unborn]
        return _do([*starts, *waits], f"Starting {counted(len(starts), 'child', 'children')}.")
    told_of = evidence.reports
    waiting = [label for task_id, label in family.accepted.items() if task_id not in told_of]
    if not waiting or not _may_wait(evidence):
        return None
    if "sessions_yield" in tools:
        return _do([Call("sessions_yield", {})], f"Waiting for {counted(len(waiting), 'child', 'children')}.")
    return say(f"{WAITING} {', '.join(waiting)}.") if _is_first_wait(evidence) else None


def _may_wait(evidence: DemoEvidence) -> bool:
    """Whether to wait again: only after a new report, so that waiting ends even if some never arrive."""
    last = evidence.after[-1]
    match last:
        case Results(results=results):
            return not any(result.name == "sessions_yield" for result in results)
        case Input(source="announce"):
            before = DemoEvidence(evidence.job, evidence.after[:-1])
            return len(evidence.reports) > len(before.reports)
        case _:
            return True


def _is_first_wait(evidence: DemoEvidence) -> bool:
    return not any(isinstance(message, Input) and message.source == "announce" for message in evidence.after)


def _delegate_places(evidence: DemoEvidence, places: Sequence[str], tools: frozenset[str]) -> Answer:
    children = _readers(places)
    if "sessions_spawn" not in tools:
        return _research(DemoRequest("reading", tuple(places)), evidence)
    if step := _next_of(children, evidence, tools):
        return step
    reports = evidence.reports.values()
    findings = [found for report in reports for found in report.findings]
    remarks = [*_remarks(evidence), *_fates(children, evidence)]
    gathered = f"{counted(len(findings), 'line')} by {counted(len(reports), 'child', 'children')}"
    summary = f"{gathered}, of {mentioned(files_in(findings))}"
    return say(_result(findings, remarks, summary))


def _readers(places: Sequence[str]) -> list[DemoChild]:
    """Return two children for two halves of the folder or, with one place, of its files."""
    if len(places) > 1:
        orders = [DemoRequest("reading", tuple(places[start::2])) for start in (0, 1)]
    else:
        orders = [DemoRequest("reading", tuple(places), closing=closing) for closing in (False, True)]
    words = "Read files of this folder and report how they begin or end.\n"
    return [
        DemoChild(f"reading {number} of 2", f"{words}{order}") for number, order in enumerate(orders, start=1)
    ]


# --- the main agent ---------------------------------------------------------------------------------------


def _survey(evidence: DemoEvidence, seen: Listing, tools: frozenset[str]) -> Answer:
    children = _researchers(seen)
    if "sessions_spawn" not in tools:
        return _research(DemoRequest("alone", types=_types(seen)), evidence)
    if step := _next_of(children, evidence, tools):
        return step
    if not family_of(children, evidence).accepted:
        return _alone_after_refusal(children, evidence, seen)
    reports = list(evidence.reports.values())
    return say("\n".join([_shape(seen), *told(reports), *_fates(children, evidence), *_remarks(evidence)]))


def _researchers(seen: Listing) -> list[DemoChild]:
    outline = DemoRequest("outline", types=_types(seen))
    return [
        DemoChild(
            "unfinished work", f"Find what is marked as unfinished in this folder.\n{DemoRequest('markers')}"
        ),
        DemoChild(
            "references", f"Find what points to other places in this folder.\n{DemoRequest('references')}"
        ),
        DemoChild("outline", f"Find the headings and definitions in this folder.\n{outline}"),
        DemoChild(
            "size and shape",
            "Find the largest files and the longest lines of this folder. Take your time.\n"
            f"{DemoRequest('sizes')}\npace: slow",
        ),
        DemoChild(
            "reading by place",
            "Read into every part of this folder: give each half to a child of your own.\n"
            f"question: places\nin: {json.dumps(places_of(seen))}",
        ),
    ]


def _types(seen: Listing) -> tuple[str, ...]:
    """Return the most frequent suffixes of file names."""
    ends = Counter(end[0] for path, _ in seen.files if (end := re.search(r"\.[A-Za-z0-9]{1,8}$", path)))
    return tuple(sorted(ends, key=lambda end: (-ends[end], end))[:TYPES_MAX])


def _alone_after_refusal(children: Sequence[DemoChild], evidence: DemoEvidence, seen: Listing) -> Answer:
    answer = _research(DemoRequest("alone", types=_types(seen)), evidence)
    if answer.calls:
        return answer
    fates = "\n".join(_fates(children, evidence))
    return Answer(f"{answer.text}\n{fates}", model=MODEL)


def _shape(seen: Listing) -> str:
    size = sum(size for _, size in seen.files)
    largest = ", ".join(f"{written(path)} ({size} bytes)" for path, size in seen.largest[:5])
    listed = f"{counted(len(seen.files), 'file')} and {counted(len(seen.folders), 'folder')} listed"
    return f"Survey of the folder: {listed}, {size} bytes {seen.notice}. Largest: {largest}."


def told(reports: Sequence[ChildReport]) -> list[str]:
    """Return the children's reports as lines for a user."""
    lines: list[str] = []
    for report in reports:
        findings = report.findings
        lines += ["", f"{report.label}: {report.status}. {_summary(report)}".rstrip()]
        lines += [f"- {found}" for found in findings[:CHILD_LINES_MAX]]
        if len(findings) > CHILD_LINES_MAX:
            lines.append(f"- and {len(findings) - CHILD_LINES_MAX} more in its own result")
    return lines


def _summary(report: ChildReport) -> str:
    text = report.text or ""
    marked = [line.removeprefix("SUMMARY: ") for line in text.split("\n") if line.startswith("SUMMARY: ")]
    return tidy(marked[-1] if marked else text)


def _fates(children: Sequence[DemoChild], evidence: DemoEvidence) -> list[str]:
    """Return a line for each child that was refused, failed or did not report."""
    family = family_of(children, evidence)
    reports = evidence.reports
    missing = [label for task_id, label in family.accepted.items() if task_id not in reports]
    unwell = [report for report in reports.values() if not report.status.startswith("completed successfully")]
    return [
        *(f"Refused: {label}: {why}" for label, why in family.refused.items()),
        *(f"Did not end well: {report.label}: {report.status}" for report in unwell),
        *(f"No report from: {label}" for label in missing),
    ]


__all__ = ["MODEL", "NOTICE", "OfflineModel", "decide", "watchable_latency"]

CHUNKS_MAX = 12
SLOW = 4.0


def watchable_latency(request: ModelRequest) -> float:
    """Return a delay that a user can follow, different for each call and the same for the same call."""
    seconds = 0.2 + zlib.crc32(request.key.encode()) % 200 / 1000
    return seconds * SLOW if _is_slow(request.transcript) else seconds


def _is_slow(transcript: Transcript) -> bool:
    return any(is_slow(told.text) for told in _inputs(transcript) if told.source == "task")


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
        answer = decide(request.transcript, request.tools)
        chunks = _chunks(answer.text)
        pause = self._latency(request) / (len(chunks) + 1)
        await self._sleep(pause)
        for chunk in chunks:
            on_delta(Delta(DeltaKind.TEXT, chunk))
            await self._sleep(pause)
        return replace(answer, usage=_usage(request, answer))


def decide(transcript: Transcript, tools: Sequence[ToolSpec]) -> Answer:
    told = list(_inputs(transcript))
    jobs = [one for one in told if one.source in ("user", "task") and is_job(one.text)]
    newest = told[-1] if told else Input("")
    names = frozenset(spec.name for spec in tools)
    if not jobs or (newest.source in ("user", "task") and newest is not jobs[-1]):
        return _without_a_job(transcript, newest)
    if newest.source in ("instruction", "announce") and _is_answered(transcript, jobs[-1], names):
        return _without_a_job(transcript, newest)
    if not {"list", "read", "search"} <= names:
        return say("I cannot survey a folder: I have no tools to list, read and search files.")
    return act(since(transcript, jobs[-1]), names)


def _inputs(transcript: Transcript) -> Iterator[Input]:
    return (message for message in transcript if isinstance(message, Input))


def _is_answered(transcript: Transcript, job: Input, names: frozenset[str]) -> bool:
    """Whether the transcript contains the answer that the script gives to this job."""
    begun = next(place for place, message in enumerate(transcript) if message is job)
    return any(
        isinstance(message, Answer)
        and is_last_word(message)
        and message.text == act(since(transcript[:place], job), names).text
        for place, message in enumerate(transcript)
        if place > begun
    )


def _without_a_job(transcript: Transcript, newest: Input) -> Answer:
    reports = list(DemoEvidence(newest, _unanswered(transcript)).reports.values())
    if newest.source == "announce" and reports:
        return say("Background work has ended." + "\n".join(told(reports)))
    can = (
        "I am a script without understanding; I show that all around a model works. I can do one thing: "
        'say "Survey the folder", and I list it, start background children that search and read its files, '
        "and tell you what they found. For anything else configure a real model."
    )
    if newest.source == "task":
        return say(f"{can}\nSUMMARY: nothing was done; the scripted model knows no such task")
    return say(f'You said "{tidy(newest.text)}", which a script cannot answer. {can}')


def _unanswered(transcript: Transcript) -> tuple[Message, ...]:
    answers = [at for at, message in enumerate(transcript) if isinstance(message, Answer)]
    return tuple(transcript[answers[-1] + 1 :] if answers else transcript)


def _chunks(text: str) -> list[str]:
    size = max(40, -(-len(text) // CHUNKS_MAX))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _usage(request: ModelRequest, answer: Answer) -> Usage:
    """Estimate the tokens, at four characters each."""
    schemas = sum(len(spec.description) + len(json.dumps(dict(spec.parameters))) for spec in request.tools)
    sent = len(request.system) + schemas + sum(map(_length, request.transcript))
    return Usage(input=sent // 4, output=_length(answer) // 4)


def _length(message: Message) -> int:
    match message:
        case Input():
            return len(message.text)
        case Answer():
            return len(message.text) + sum(len(json.dumps(dict(call.args))) for call in message.calls)
        case Results():
            return sum(len(result.text) for result in message.results)
