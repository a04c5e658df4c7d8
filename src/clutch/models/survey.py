"""The scripted survey of a folder: look, give the questions to children, wait, put the answers together.

    main        list the folder → spawn five children and yield → one answer
    places      (one of the five) spawn two readers and yield → one answer
    the others  one or two rounds of tools, then an answer with `FINDING file:line: text` lines and a `SUMMARY:`

Every decision is made from the transcript alone, so a run that was cut anywhere goes on where it was. What
was refused, failed, was killed or never reported is said.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from clutch.core.messages import Answer, Call, Input, Results
from clutch.core.wording import CANCELLED
from clutch.models.evidence import TRIES_MAX, Evidence, Finding, Listing, Report, tidy, written
from clutch.models.questions import (
    LIST_ALL,
    QUESTIONS,
    Order,
    calls_of,
    files_in,
    folder,
    mentioned,
    order_in,
    places_in,
    places_of,
)

MODEL = "offline (scripted, not an LLM)"
NOTICE = "[offline model: scripted, not an LLM]"
APPROVED = "APPROVED:"  # without a word more there is nothing to follow
WAITING = "Waiting for"

RESULT_CHARS_MAX = 3800  # a longer result reaches the requester as a summary only
CHILD_LINES_MAX = 10  # of one child in the answer to a person
TYPES_MAX = 5

_SURVEY = re.compile(r"(?im)^\s*survey\b")
_PLACES = re.compile(r"(?m)^question: places$")
_SLOW = re.compile(r"(?m)^pace: slow$")


@dataclass(frozen=True, slots=True)
class Child:
    label: str
    task: str

    @property
    def call(self) -> Call:
        return Call("sessions_spawn", {"task": self.task, "label": self.label})


def is_job(text: str) -> bool:
    return bool(order_in(text) or _PLACES.search(text) or _SURVEY.search(text))


def is_slow(text: str) -> bool:
    return bool(_SLOW.search(text))


def act(evidence: Evidence, tools: frozenset[str]) -> Answer:
    """The next step of the job this evidence belongs to."""
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


def _research(order: Order, evidence: Evidence) -> Answer:
    calls = () if _is_late(evidence) else calls_of(order, evidence)
    if calls:
        return _do(calls, f"Tool calls about {order.question}: {len(calls)}.")
    question = QUESTIONS[order.question]
    summary = question.summary(order, evidence)
    return say(_result(question.findings(order, evidence), _remarks(evidence), summary))


def _is_late(evidence: Evidence) -> bool:
    """The runtime said that the time is nearly over: answer with what there is."""
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


def _remarks(evidence: Evidence) -> list[str]:
    """What a reader must know about how this came to be."""
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


def _nothing_to_survey(evidence: Evidence, seen: Listing) -> str:
    if evidence.text(LIST_ALL) is None:
        return _result([], _remarks(evidence), "the folder could not be listed")
    names = ", ".join(written(path) for path in (*seen.folders, *seen.others)[:20])
    what = f"there are no files in it, only: {names}" if names else "it is empty"
    return _result([], _remarks(evidence), f"nothing to survey in this folder: {what}")


# --- children ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Family:
    """What became of the children a job wanted."""

    accepted: dict[str, str]  #: task id → label
    refused: dict[str, str]  #: label → why
    unborn: tuple[Child, ...]  #: never asked for, or the asking was cancelled


def family_of(children: Iterable[Child], evidence: Evidence) -> Family:
    accepted: dict[str, str] = {}
    refused: dict[str, str] = {}
    unborn: list[Child] = []
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


def _asks_for(call: Call, child: Child) -> bool:
    return call.name == "sessions_spawn" and call.args.get("label") == child.label


def _spawn_answer(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _next_of(children: Sequence[Child], evidence: Evidence, tools: frozenset[str]) -> Answer | None:
    """Spawn what is missing, then wait; None when it is time to answer."""
    family = family_of(children, evidence)
    if family.unborn:
        waits = [Call("sessions_yield", {})] if "sessions_yield" in tools else []
        starts = [child.call for child in family.unborn]
        return _do([*starts, *waits], f"Starting {len(starts)} children.")
    told_of = evidence.reports
    waiting = [label for task_id, label in family.accepted.items() if task_id not in told_of]
    if not waiting or not _may_wait(evidence):
        return None
    if "sessions_yield" in tools:
        return _do([Call("sessions_yield", {})], f"Waiting for {len(waiting)} children.")
    return say(f"{WAITING} {', '.join(waiting)}.") if _is_first_wait(evidence) else None


def _may_wait(evidence: Evidence) -> bool:
    """Waiting again is paid for by a report that is new: so it ends, also when some never come."""
    last = evidence.after[-1]
    match last:
        case Results(results=results):
            return not any(result.name == "sessions_yield" for result in results)
        case Input(source="announce"):
            before = Evidence(evidence.job, evidence.after[:-1])
            return len(evidence.reports) > len(before.reports)
        case _:
            return True


def _is_first_wait(evidence: Evidence) -> bool:
    return not any(isinstance(message, Input) and message.source == "announce" for message in evidence.after)


def _delegate_places(evidence: Evidence, places: Sequence[str], tools: frozenset[str]) -> Answer:
    children = _readers(places)
    if "sessions_spawn" not in tools:
        return _research(Order("reading", tuple(places)), evidence)
    if step := _next_of(children, evidence, tools):
        return step
    reports = evidence.reports.values()
    findings = [found for report in reports for found in report.findings]
    remarks = [*_remarks(evidence), *_fates(children, evidence)]
    summary = f"{len(findings)} lines by {len(reports)} children, of {mentioned(files_in(findings))}"
    return say(_result(findings, remarks, summary))


def _readers(places: Sequence[str]) -> list[Child]:
    """Two halves of the folder, or, where there is only one place, two halves of its files."""
    if len(places) > 1:
        orders = [Order("reading", tuple(places[start::2])) for start in (0, 1)]
    else:
        orders = [Order("reading", tuple(places), closing=closing) for closing in (False, True)]
    words = "Read files of this folder and report how they begin or end.\n"
    return [
        Child(f"reading {number} of 2", f"{words}{order}") for number, order in enumerate(orders, start=1)
    ]


# --- the main agent ---------------------------------------------------------------------------------------


def _survey(evidence: Evidence, seen: Listing, tools: frozenset[str]) -> Answer:
    children = _researchers(seen)
    if "sessions_spawn" not in tools:
        return _research(Order("alone", types=_types(seen)), evidence)
    if step := _next_of(children, evidence, tools):
        return step
    if not family_of(children, evidence).accepted:
        return _alone_after_refusal(children, evidence, seen)
    reports = list(evidence.reports.values())
    return say("\n".join([_shape(seen), *told(reports), *_fates(children, evidence), *_remarks(evidence)]))


def _researchers(seen: Listing) -> list[Child]:
    outline = Order("outline", types=_types(seen))
    return [
        Child("unfinished work", f"Find what is marked as unfinished in this folder.\n{Order('markers')}"),
        Child("references", f"Find what points to other places in this folder.\n{Order('references')}"),
        Child("outline", f"Find the headings and definitions in this folder.\n{outline}"),
        Child(
            "size and shape",
            "Find the largest files and the longest lines of this folder. Take your time.\n"
            f"{Order('sizes')}\npace: slow",
        ),
        Child(
            "reading by place",
            "Read into every part of this folder: give each half to a child of your own.\n"
            f"question: places\nin: {json.dumps(places_of(seen))}",
        ),
    ]


def _types(seen: Listing) -> tuple[str, ...]:
    """The commonest ends of file names."""
    ends = Counter(end[0] for path, _ in seen.files if (end := re.search(r"\.[A-Za-z0-9]{1,8}$", path)))
    return tuple(sorted(ends, key=lambda end: (-ends[end], end))[:TYPES_MAX])


def _alone_after_refusal(children: Sequence[Child], evidence: Evidence, seen: Listing) -> Answer:
    answer = _research(Order("alone", types=_types(seen)), evidence)
    if answer.calls:
        return answer
    fates = "\n".join(_fates(children, evidence))
    return Answer(f"{answer.text}\n{fates}", model=MODEL)


def _shape(seen: Listing) -> str:
    size = sum(size for _, size in seen.files)
    largest = ", ".join(f"{written(path)} ({size} bytes)" for path, size in seen.largest[:5])
    return (
        f"Survey of the folder: {len(seen.files)} files and {len(seen.folders)} folders listed, {size} bytes "
        f"{seen.notice}. Largest: {largest}."
    )


def told(reports: Sequence[Report]) -> list[str]:
    """What children reported, for a person."""
    lines: list[str] = []
    for report in reports:
        findings = report.findings
        lines += ["", f"{report.label}: {report.status}. {_summary(report)}".rstrip()]
        lines += [f"- {found}" for found in findings[:CHILD_LINES_MAX]]
        if len(findings) > CHILD_LINES_MAX:
            lines.append(f"- and {len(findings) - CHILD_LINES_MAX} more in its own result")
    return lines


def _summary(report: Report) -> str:
    text = report.text or ""
    marked = [line.removeprefix("SUMMARY: ") for line in text.split("\n") if line.startswith("SUMMARY: ")]
    return tidy(marked[-1] if marked else text)


def _fates(children: Sequence[Child], evidence: Evidence) -> list[str]:
    """Every child that was wanted and did not end well, by name."""
    family = family_of(children, evidence)
    reports = evidence.reports
    missing = [label for task_id, label in family.accepted.items() if task_id not in reports]
    unwell = [report for report in reports.values() if not report.status.startswith("completed successfully")]
    return [
        *(f"Refused: {label}: {why}" for label, why in family.refused.items()),
        *(f"Did not end well: {report.label}: {report.status}" for report in unwell),
        *(f"No report from: {label}" for label in missing),
    ]
