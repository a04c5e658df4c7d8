"""Checks: what must be true before a task counts as done, and what follows from their results.

A spawn declares them, and its child cannot change them. They run after the final answer of the child and before the
task has an outcome. If one fails, the child reads the output once and may correct its work; after that the task fails.
A check whose result is not known counts as not passed. `engine/checks.py` runs them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

from clutch.core.redaction import redact
from clutch.core.text.format import quoted, visible
from clutch.errors import InvalidInput

FIELD: Final = "checks"  #: of what a task stores about its spawn
CHECKS_MAX: Final = 16  # of one task: they run one after the other
NAME_MAX, TEXT_MAX, PATTERN_MAX = 80, 4096, 1000
COUNT_MAX: Final = 10**9
COMMAND_S, COMMAND_S_MAX = 120.0, 3600.0
REPAIRS_MAX: Final = 1  #: how often the child may correct its work
DETAIL_CHARS_MAX = 2000  # of the output of one check; its end says how it came out
ERROR_CHARS_MAX = 200


class CheckKind(StrEnum):
    FILE = "file"
    COMMAND = "command"
    CALLS = "calls"
    AGENT = "agent"
    SCHEMA = "schema"


class CheckState(StrEnum):
    """How one check of a result came out."""

    RUNNING = "running"  #: started; after a crash it runs again
    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"  #: it could not be run


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCheck:
    """One condition of a result: give `file`, `command`, `calls`, `agent` or `schema`.

    `file`: exists in the workspace, with `min_bytes`, `max_bytes` and a line that `matches` an expression.
    `command`: exits with 0 within `timeout_seconds`, in the sandbox of the task.
    `calls`: this tool was called with success at least `min_calls` times; of `sessions_spawn`, the children succeeded.
    `agent`: this agent reviews the result; `prompt` says by what criteria.
    `schema`: the result, or the `file`, is JSON that satisfies this schema."""

    file: str | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    matches: str | None = None
    command: str | None = None
    timeout_seconds: float | None = None
    calls: str | None = None
    min_calls: int | None = None
    agent: str | None = None
    prompt: str | None = None
    schema: Mapping[str, Any] | None = None
    name: str | None = None  #: shown instead of the condition

    def __post_init__(self) -> None:
        """Raises InvalidInput for what is no check, so that none exists."""
        named = [kind for kind in CheckKind if getattr(self, kind) is not None]
        if named == [CheckKind.FILE, CheckKind.SCHEMA]:
            named = [CheckKind.SCHEMA]  # the file must satisfy it
        if len(named) != 1:
            given = ", ".join(named) or "none"
            raise InvalidInput("check", f"needs exactly one of {', '.join(CheckKind)}; given: {given}")
        for field, kind in _OPTIONS.items():
            if getattr(self, field) is not None and kind is not self.kind:
                raise InvalidInput(field, f"goes with {kind}, not with {self.kind}: leave it out")
        self._check_texts()
        self._check_numbers()

    def _check_texts(self) -> None:
        for field, most in _TEXTS.items():
            text = getattr(self, field)
            if text is not None and not (text.strip() and "\0" not in text and len(text) <= most):
                raise InvalidInput(field, f"must be text of 1 to {most} characters without NUL")
        if self.matches is not None:
            try:
                re.compile(self.matches)
            except (re.error, OverflowError, RecursionError) as error:
                raise InvalidInput("matches", f"is not a regular expression: {error}") from error

    def _check_numbers(self) -> None:
        for field, least in _NUMBERS.items():
            number = getattr(self, field)
            if number is not None and not least <= number <= COUNT_MAX:
                raise InvalidInput(field, f"must be from {least} to {COUNT_MAX}, not {number}")
        if None not in (self.min_bytes, self.max_bytes) and (self.min_bytes or 0) > (self.max_bytes or 0):
            raise InvalidInput(
                "minBytes", f"must be at most maxBytes ({self.max_bytes}), not {self.min_bytes}"
            )
        if self.timeout_seconds is not None and not 0 < self.timeout_seconds <= COMMAND_S_MAX:
            raise InvalidInput("timeoutSeconds", f"must be more than 0 and at most {COMMAND_S_MAX:g}")

    @property
    def kind(self) -> CheckKind:
        """The condition that is given; a file with a schema is a check of the schema."""
        if self.schema is not None:
            return CheckKind.SCHEMA
        return next(kind for kind in CheckKind if getattr(self, kind) is not None)

    @property
    def title(self) -> str:
        """What it is called in reports, without secrets: `command "pytest -q"`."""
        if self.name is not None:
            return visible(redact(self.name).text, NAME_MAX)
        about = {CheckKind.SCHEMA: self.file or "result"}.get(self.kind) or str(getattr(self, self.kind))
        return f"{self.kind} {quoted(redact(about).text, NAME_MAX)}"


_OPTIONS: Final = {
    "min_bytes": CheckKind.FILE,
    "max_bytes": CheckKind.FILE,
    "matches": CheckKind.FILE,
    "timeout_seconds": CheckKind.COMMAND,
    "min_calls": CheckKind.CALLS,
    "prompt": CheckKind.AGENT,
}
_TEXTS: Final = {
    "file": TEXT_MAX,
    "command": TEXT_MAX,
    "calls": NAME_MAX,
    "agent": NAME_MAX,
    "prompt": TEXT_MAX,
    "matches": PATTERN_MAX,
    "name": NAME_MAX,
}
_NUMBERS: Final = {"min_bytes": 0, "max_bytes": 0, "min_calls": 1}


def to_text(checks: Sequence[TaskCheck]) -> str:
    """As a task stores them."""
    return json.dumps([said_of(check) for check in checks])


def said_of(check: TaskCheck) -> dict[str, Any]:
    """Return what the check says, without what it leaves out."""
    known = {one.name: getattr(check, one.name) for one in fields(check)}
    return {name: value for name, value in known.items() if value is not None}


def from_text(text: str | None) -> tuple[TaskCheck, ...]:
    return tuple(TaskCheck(**one) for one in json.loads(text)) if text else ()


def typed(text: str) -> dict[str, Any]:
    """Read a check of the command line: `file:out.md`, `command:pytest -q`, `calls:shell>=2`, `agent:critic`, or JSON.

    Returns it as the argument of a spawn. Raises InvalidInput."""
    if text.lstrip().startswith("{"):
        try:
            said = json.loads(text)
        except ValueError as error:
            raise InvalidInput("check", f"is not JSON: {error}") from error
        assert isinstance(said, dict), "a text that begins so is an object"
        return said
    kind, colon, rest = text.partition(":")
    if not colon or kind not in (CheckKind.FILE, CheckKind.COMMAND, CheckKind.CALLS, CheckKind.AGENT):
        rule = (
            f"must be file:PATH, command:COMMAND, calls:TOOL>=N, agent:ID or a JSON object, not {text[:80]!r}"
        )
        raise InvalidInput("check", rule)
    name, is_least, least = rest.partition(">=")
    if kind != CheckKind.CALLS or not is_least:
        return {kind: rest}
    if not least.isdecimal():
        raise InvalidInput("check", f"needs a number after >=, not {least[:80]!r}")
    return {kind: name, "minCalls": int(least)}


# --------------------------------------------------------------------------------------------------
# The journal of one round of checks, stored with the task: a check that has a result is not run again after a crash.


@dataclass(frozen=True, slots=True)
class CheckResult:
    title: str
    state: CheckState
    detail: str = ""  #: what is wrong, bounded and without secrets


@dataclass(frozen=True, slots=True)
class CheckReport:
    """`seq`: the entry of the transcript that was checked. Results of another entry say nothing about this one."""

    generation: int
    seq: int
    total: int
    results: tuple[CheckResult, ...] = ()

    @property
    def passed(self) -> int:
        return sum(result.state is CheckState.PASSED for result in self.results)

    @property
    def running(self) -> int | None:
        """Return the place of the check that was started and has no result yet."""
        states = [result.state for result in self.results]
        return states.index(CheckState.RUNNING) if CheckState.RUNNING in states else None

    @property
    def next(self) -> int | None:
        """Return the place of the check to run next; None: each has a result."""
        if self.running is not None:
            return self.running
        return None if len(self.results) == self.total else len(self.results)

    def having(self, place: int, result: CheckResult) -> CheckReport:
        return replace(self, results=(*self.results[:place], result, *self.results[place + 1 :]))

    def to_text(self) -> str:
        results = [[one.title, one.state, one.detail] for one in self.results]
        return json.dumps([self.generation, self.seq, self.total, results])


def report_of(text: str | None, generation: int) -> CheckReport | None:
    """Return the stored report, if it is about this generation of the task."""
    if text is None:
        return None
    of, seq, total, results = json.loads(text)
    if of != generation:
        return None
    return CheckReport(
        of,
        seq,
        total,
        tuple(CheckResult(title, CheckState(state), detail) for title, state, detail in results),
    )


def taken_up(report: CheckReport | None, generation: int, seq: int, total: int) -> CheckReport:
    """Return the report to continue: the stored one if it is about this entry, else an empty one."""
    if report is not None and (report.generation, report.seq, report.total) == (generation, seq, total):
        return report
    return CheckReport(generation, seq, total)


def bounded(output: str) -> str:
    """Return the output of a check as it is stored: without secrets, its beginning and its end."""
    text = redact(output.replace("\0", "\ufffd").encode("utf-8", "replace").decode()).text.strip()
    if len(text) <= DETAIL_CHARS_MAX:
        return text
    part = DETAIL_CHARS_MAX // 2
    return f"{text[:part]}\n(... {len(text) - 2 * part} characters cut ...)\n{text[-part:]}"


# --------------------------------------------------------------------------------------------------
# What follows from the results.


class Conclusion(StrEnum):
    DONE = "done"
    REPAIR = "repair"
    FAIL = "fail"


def conclusion(report: CheckReport, repairs: int) -> Conclusion:
    """`repairs`: how often the child was asked to correct its work. What could not be run, it cannot correct."""
    states = [result.state for result in report.results]
    assert report.next is None, "a check has no result yet"
    if all(state is CheckState.PASSED for state in states):
        return Conclusion.DONE
    may_repair = repairs < REPAIRS_MAX and CheckState.FAILED in states
    return Conclusion.REPAIR if may_repair else Conclusion.FAIL


# --------------------------------------------------------------------------------------------------
# Texts: for lists and for the parent. What models read is in `core/text/check_notes.py`.

UNCHECKED: Final = "unchecked"


def words(report: CheckReport | None) -> str:
    """`checked 4/4`; `unchecked` for a task without results of checks."""
    return UNCHECKED if report is None else f"checked {report.passed}/{report.total}"


def error_text(report: CheckReport) -> str:
    """`check 2: command "pytest -q": exit code 1`: the first check that failed, else the first without a result."""
    not_passed = [
        (place, one) for place, one in enumerate(report.results, 1) if one.state is not CheckState.PASSED
    ]
    place, result = min(not_passed, key=lambda one: one[1].state is not CheckState.FAILED)
    unknown = "outcome unknown: " if result.state is CheckState.UNKNOWN else ""
    why = visible(" ".join(result.detail.split()), ERROR_CHARS_MAX)
    return f"check {place}: {result.title}: {unknown}{why}"
