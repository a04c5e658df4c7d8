"""A run's own small life: open, parked, ended. Provider failures and crashes, decided.

Main sessions have runs but no task, so this is where retry and parking belong. Counters only mean
something while the transcript has not grown: any commit in between starts them anew, which is why
they are compared with `progress_head` instead of being reset."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final

from clutch.core.messages import Answer, Call, Entry, Input, Results, Summary
from clutch.core.model import LetterKind, Reason, RunState
from clutch.core.policy import Life
from clutch.core.text.format import clock

_sorted = json.JSONEncoder(sort_keys=True).encode
TRIAL_S: Final = 30.0  # what ends a process does so at once; the others cannot wait for longer

#: The life of a run: every allowed change of its state, with its cause. None: the run does not exist yet.
#: `transactions.runs` makes the SQL of a change and raises for a pair that is not listed here.
RUN_MOVES: Final[Mapping[tuple[RunState | None, RunState], str]] = {
    # A claimed session without an open run takes its letters.
    (None, RunState.RUNNING): "begun",
    # Results that go to the user as they are need no model; the history of an imported task is one run.
    (None, RunState.ENDED): "sent, or imported",
    # The provider or a budget names a time, the session is paused, its worker stops in good order, or a new turn takes
    # its place. A run that waits already keeps its wait: it was claimed and not begun.
    (RunState.RUNNING, RunState.PARKED): "waits without a slot",
    (RunState.PARKED, RunState.RUNNING): "resumed",
    # It parks before any call of the answer is started, so an approval is never used twice.
    (RunState.RUNNING, RunState.ASKING): "asks a user",
    # Only the answer to its last question makes it due.
    (RunState.ASKING, RunState.ANSWERED): "answered",
    (RunState.ANSWERED, RunState.RUNNING): "resumed with the answers",
    # A kill, a stop or a new instruction ends it wherever it stands.
    **{
        (state, RunState.ENDED): "ended"
        for state in (RunState.RUNNING, RunState.PARKED, RunState.ASKING, RunState.ANSWERED)
    },
}

#: What `stop_reason` of a run says where its turn has no answer.
ERROR, STOPPED = "error: ", "stopped"


def failure(stop_reason: str | None) -> str | None:
    """Return why a run ended without an answer of its model; None: it has one, or it continues."""
    if stop_reason == STOPPED:
        return "it was stopped"
    is_error = stop_reason is not None and stop_reason.startswith(ERROR)
    return stop_reason.removeprefix(ERROR) if stop_reason is not None and is_error else None


@dataclass(frozen=True, slots=True)
class Counters:
    """Troubles of one run since its transcript last grew."""

    crashes: int = 0
    failures: int = 0
    progress_head: int = 0


@dataclass(frozen=True, slots=True)
class Park:
    """Wait without a slot and ask the provider again then."""

    until: float
    reason: Reason
    counters: Counters


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run with this error. `is_permanent`: asking again cannot help (401, 400, 404), so no grace is given."""

    error: str
    is_permanent: bool = False


def since(counters: Counters, head: int) -> Counters:
    return counters if counters.progress_head == head else Counters(progress_head=head)


def taken_over(counters: Counters, head: int, *, was_executing: bool) -> Counters:
    """Its owner died holding it. Only a run whose tool or runtime was executing in that process can be the cause: one
    that waited for a model is not blamed for the death of its neighbours."""
    now = since(counters, head)
    return Counters(now.crashes + was_executing, now.failures, head)


def is_crash_loop(counters: Counters, life: Life) -> bool:
    return counters.crashes >= life.crash_limit


def suspect_from(life: Life) -> int:
    """Return the number of counted deaths from which a run that was interrupted again is tried alone. The count lacks
    that latest death, which is added when the run resumes: one more death after it ends the run."""
    return max(1, life.crash_limit - 2)


class Admission(Enum):
    """Which sessions a process may claim."""

    NOTHING = auto()
    SUSPECT = auto()  #: one suspect, and nothing beside it
    OTHERS = auto()  #: everything but suspects


def admission(
    now: float, *, tried_since: float | None, waits_since: float | None, is_idle: bool
) -> Admission:
    """One suspect at a time, with the process for itself, so that a death of the process is the fault of that run.

    Nothing waits without a bound: a suspect that has survived `TRIAL_S` gets company, and a suspect for which the
    process claims nothing new is tried after `TRIAL_S` beside the turns that have not ended by then.
    `tried_since`: the process holds a suspect that has committed nothing. `waits_since`: another one is due."""
    if tried_since is not None:
        return Admission.NOTHING if _is_within(now, tried_since) else Admission.OTHERS
    if waits_since is None:
        return Admission.OTHERS
    return Admission.NOTHING if not is_idle and _is_within(now, waits_since) else Admission.SUSPECT


def _is_within(now: float, since_when: float) -> bool:
    """False also under a clock that was put back since: nothing waits until it has caught up."""
    return 0 <= now - since_when < TRIAL_S


def provider_failed(
    counters: Counters,
    head: int,
    *,
    at: float,
    error: str,
    is_retryable: bool,
    retry_at: float | None,
    life: Life,
    is_sent: bool = True,
    is_limited: bool = True,
) -> Park | GiveUp:
    """Retryable: park and come back, a few times. A provider that names a time is believed, within bounds.

    `is_sent` False: it only had to wait in line, which is no failure of its own. `is_limited` False: the provider is in
    trouble, whatever time was named; that is no rate limit."""
    now = since(counters, head)
    failed = Counters(now.crashes, now.failures + is_sent, head)
    if not is_retryable:
        return GiveUp(error, is_permanent=True)
    if retry_at is not None:
        if life.quota_wait_max_s and retry_at - at > life.quota_wait_max_s:
            return GiveUp(f"{error}; the wait until {clock(retry_at, at)} is longer than models.maxWait")
        if failed.failures <= _quota_tries(life):
            return Park(max(retry_at, at), Reason.QUOTA if is_limited else Reason.PROVIDER, failed)
    elif failed.failures <= len(life.provider_retries_s):
        return Park(at + life.provider_retries_s[failed.failures - 1], Reason.PROVIDER, failed)
    return GiveUp(f"{error} ({failed.failures} times)")


def _quota_tries(life: Life) -> int:
    """A provider that keeps saying "later" must not park a run for ever."""
    return 10 * len(life.provider_retries_s)


# --------------------------------------------------------------------------------------------------
# What bounds a run from inside: the same call again and again, and an answer that must have a form.
#
# Looks at the transcript of the run only; the caller acts. The number of steps, the deadline and the budget
# have places of their own.

SUBMIT = "submit_result"
ACCEPTED = "accepted: this is your result; the task is done"
#: source of the note that asks for the form; it is said once
FORM_NOTE = "form"
#: source of the note that asks again after an empty answer
EMPTY_NOTE = "empty"
#: source of the note with the output of checks that failed
CHECK_NOTE = "check"
#: error of a run that neither said nor did anything
EMPTY = "empty answer"
#: Inputs that the runtime writes itself
NOTES = frozenset({FORM_NOTE, EMPTY_NOTE, LetterKind.NOTE.value})
#: Letters that contain text of another agent
FOREIGN = frozenset({LetterKind.ANNOUNCE, LetterKind.PLAN, LetterKind.NEWS, LetterKind.PEER})


class Loop(StrEnum):
    NONE = "none"
    WARNED = "warned"
    ENDED = "ended"


class SinceInput:
    """What a run has done since the last message from outside: a person or a parent may well ask for the same again.

    It reads the transcript of the run, which only grows, and counts each entry once. An answer is counted with what
    follows it: until then the contents of files may leave its calls."""

    __slots__ = ("_calls", "_form_errors", "_read", "_times", "_transcript")

    def __init__(self, transcript: Sequence[Entry]) -> None:
        self._transcript = transcript
        self._read = 0
        self._forget()

    def loop(self, answer: Answer, life: Life) -> Loop:
        """Does this answer (the last of the transcript or about to be) repeat a call too often?"""
        self._count()
        if self._times.total() + len(self._calls) + len(answer.calls) < life.same_call_warn:
            return Loop.NONE
        self._times.update(map(_name, self._calls))
        self._calls.clear()
        now = Counter(map(_name, answer.calls))
        most = max((self._times[name] + times for name, times in now.items()), default=0)
        if most >= life.same_call_max:
            return Loop.ENDED
        return Loop.WARNED if most >= life.same_call_warn else Loop.NONE

    def form_errors(self) -> int:
        """How often the result did not match its schema, or was missing."""
        self._count()
        return self._form_errors

    def _count(self) -> None:
        known = self._transcript
        end = len(known) - (bool(known) and isinstance(known[-1], Answer))
        for at in range(self._read, end):
            match known[at]:
                case Answer(calls=calls):
                    self._calls += calls
                case Results(results):
                    self._form_errors += any(result.name == SUBMIT and result.failed for result in results)
                case Input(source=source) if source not in NOTES:
                    self._forget()
                case Input(source=source):
                    self._form_errors += source == FORM_NOTE
                case Summary():
                    pass  # what it hides was done all the same
        self._read = max(self._read, end)

    def _forget(self) -> None:
        self._calls: list[Call] = []  #: not in `_times` yet: short runs never need names
        self._times: Counter[tuple[str, str]] = Counter()
        self._form_errors = 0


def _since_input(transcript: Sequence[Entry]) -> Iterator[Entry]:
    """Back to the last message from outside."""
    for entry in reversed(transcript):
        if isinstance(entry, Input) and entry.source not in NOTES:
            return
        yield entry


def _name(call: Call) -> tuple[str, str]:
    return call.name, _sorted(dict(call.args))


def submitted(transcript: Sequence[Entry]) -> Call | None:
    """The call whose value was accepted as the result, if the run is at that point.

    A note of the runtime that came with the results asks for nothing that could change it."""
    said = [entry for entry in transcript[-8:] if not (isinstance(entry, Input) and entry.source in NOTES)]
    if len(said) < 2:
        return None
    answer, results = said[-2], said[-1]
    if not isinstance(answer, Answer) or not isinstance(results, Results):
        return None
    for result in results.results:
        if result.name == SUBMIT and not result.failed:
            return answer.calls[result.index]
    return None


def last_text(answer: Answer) -> str:
    """The text of an answer after which its run makes no call; beside calls a text is not the last."""
    return "" if answer.calls else answer.text


def is_empty(answer: Answer) -> bool:
    """A final answer without text. It is asked for once more: providers return such answers now and then."""
    return not answer.calls and not answer.text.strip()


def was_empty(transcript: Sequence[Entry]) -> bool:
    """Whether the model was asked again since the last message from outside."""
    return any(isinstance(entry, Input) and entry.source == EMPTY_NOTE for entry in _since_input(transcript))


def is_failure(transcript: Sequence[Entry], answer: Answer, steps: int) -> bool:
    """An empty answer of a run that did nothing is no result; one that used tools may have nothing to add.

    `steps`: earlier answers of this run. Those before them are of another run, or of the caller of a forked child."""
    answers = [said for said in transcript if isinstance(said, Answer)]
    return is_empty(answer) and not any(said.calls for said in answers[max(0, len(answers) - steps) :])


# ---- the checks of a result ------------------------------------------------------------------------------

#: instead of the name of a tool: any of them
ANY_TOOL = "*"


def repairs_made(transcript: Sequence[Entry]) -> int:
    """Return how often the child was asked since a person or its parent last wrote. Results of its own children do not
    count as such: a child that spawns again would never be stopped."""
    made = 0
    for entry in reversed(transcript):
        if isinstance(entry, Input):
            if entry.source not in (CHECK_NOTE, *NOTES, *FOREIGN):
                break
            made += entry.source == CHECK_NOTE
    return made


def awaiting(transcript: Sequence[Entry]) -> Answer | None:
    """Return the final answer that is committed while the run is open: its checks have not ended."""
    last = transcript[-1 - notes_after(transcript)] if notes_after(transcript) < len(transcript) else None
    return last if isinstance(last, Answer) and not last.calls else None


def notes_after(transcript: Sequence[Entry]) -> int:
    """Return how many notes of the runtime end the transcript, such as one about files on another machine."""
    found = 0
    for entry in reversed(transcript):
        if not isinstance(entry, Input) or entry.source != LetterKind.NOTE:
            break
        found += 1
    return found


def successes(made: Iterable[Results], tool: str) -> int:
    """Count the calls of a tool that succeeded."""
    return sum(
        not result.failed and (result.name != SUBMIT if tool == ANY_TOOL else result.name == tool)
        for results in made
        for result in results.results
    )


# --------------------------------------------------------------------------------------------------
# Whether a turn has read text from outside: a page, an answer of a server, the text of another agent.
#
# Such text may contain instructions. What a tainted turn does beyond the workspace, or with a shell, needs approval.

SHELL = "shell"
#: Input that contains text from outside: also what a check printed, or the agent that reviewed the result.
_TAINTING = FOREIGN | {CHECK_NOTE}
#: Input that continues a turn after an answer without calls. At the start of a turn it taints that one, too.
_GOING_ON = frozenset({FORM_NOTE, EMPTY_NOTE, LetterKind.INSTRUCTION})


def is_tainted(transcript: Sequence[Entry], ours: Collection[str]) -> bool:
    """Return whether the last turn of the transcript has read text from outside. `ours`: the tools whose answers
    contain none; the answer of a tool that is not known any more may contain any."""
    goes_on = False
    for entry in reversed(transcript):
        match entry:
            case Answer(calls=()) if not goes_on:
                return False  # the final answer of the turn before
            case Answer():
                goes_on = False
            case Input(source=source) if source in _TAINTING:
                return True
            case Input(source=source):
                goes_on |= source in _GOING_ON
            case Results(results) if any(result.name not in ours for result in results):
                return True
    return False


def is_dangerous(name: str, *, is_outward: bool) -> bool:
    """What it takes away or brings about cannot be undone here."""
    return is_outward or name == SHELL
