"""When a session is due, and which letters its turn reads.

The two functions `due` and `choose` must agree: whenever `due` says now, `choose` finds something to
take. `due` is asked only with the session's row locked and without an owner.

Who waits for what:
- urgent letters (a task, an instruction, a decision, a note) start a turn at once, without announces;
  a user's message starts one before all others, alone; those of one route are read together, except a
  request, which has a turn and so an answer of its own;
- a letter whose answer goes its own way (a heartbeat) has a turn of its own, after the other urgent ones;
- announces wait for a debounce, so that one fan-out costs one turn; those for different routes, or with
  `followup`, have a turn each;
- a running turn reads announces between two steps if the mode says so, or it is cancelled there (`interrupt`);
- a session on *hold* (it yielded, or ended while children work) waits until no child works, then
  reads everything in spawn order;
- a letter given back after a failed attempt waits for its own time and needs no debounce."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from clutch.core.agents import ActiveHours
from clutch.core.model import PERSON_KINDS, Letter, LetterKind, Mail, Path, Phase, Reason, Route, RunState
from clutch.core.policy import Announcing, Direct, Drop, Policy, QueueMode
from clutch.core.text.format import visible

#: Gateways may differ by so much; what was written later than this was written under a wrong clock.
CLOCK_SLACK_S = 60.0


def is_put_back(next_at: float, now: float, period_s: float) -> bool:
    """Whether the clock was put back since a periodic timer was set: it is further away than its period."""
    return next_at > now + period_s + CLOCK_SLACK_S


def put_right(moment: float, written_at: float, now: float) -> float:
    """When a wait ends that was written down at `written_at`. If the clock was ahead then, and was put right since,
    what was left of the wait counts from now."""
    return now + (moment - written_at) if written_at > now + CLOCK_SLACK_S else moment


def letter_wait_max_s(policy: Policy) -> float:
    """Return how far ahead a letter can be put off: the longest delay between two attempts, or the grace of a tool."""
    rules = policy.announcing
    return max(max(rules.fast_max_s, rules.slow_max_s) * (1 + rules.jitter), policy.work.tool_grace_s)


def timer_max_s(phase: Phase, timeout_s: float, policy: Policy) -> float | None:
    """Return how far ahead the timer of a task in this phase can be. None: timers of this phase do not matter here."""
    match phase:
        case Phase.SPAWNING:
            return policy.limits.reservation_s
        case Phase.RUNNING:
            return timeout_s
        case Phase.ENDING:
            return policy.life.error_grace_s
        case Phase.ANNOUNCE_DEFERRED:
            return max(policy.announcing.until_s, policy.life.settle_expiry_s)
        case Phase.CLEANUP_PENDING:
            return max(policy.keeping.cleanup_first_s, policy.keeping.cleanup_max_s)
        case _:
            return None


def due(
    mail: Mail,
    *,
    now: float,
    is_closed: bool,
    is_paused: bool,
    is_held: bool,
    hold_until: float | None,
    working_children: int,
    run: RunState | None,
    parked_until: float | None,
    rules: Announcing,
    hours: ActiveHours | None = None,
    is_unbegun: bool = False,
) -> float | None:
    """Decide when a session is due; no other code does. None: not until something happens.

    `run`: the state of its open run. `hours`: outside of them announces start no turn; None = at any hour.
    `is_unbegun`: a worker claimed the paused session and died before it began the run."""
    if is_closed:
        return None
    if is_paused:
        # A run that lost its worker before it came to a step is claimed once more, only to be parked there. Otherwise
        # its task would be shown as queued or running until it is resumed.
        return 0.0 if run is RunState.RUNNING or is_unbegun else None
    if run is RunState.ASKING:
        return None
    if run is not None:
        return 0.0 if parked_until is None else parked_until  # interrupted or answered: before everything new
    moments = [mail.urgent_at]
    if is_held and not working_children:
        moments.append(now)
    elif is_held:
        moments.append(hold_until)
    elif mail.first_at is not None and mail.last_at is not None:
        d = rules.debounce_s
        collected_at = min(mail.last_at + d, mail.first_at + rules.debounce_restarts * d)
        moments.append(collected_at if hours is None else hours.opens_at(max(now, collected_at)))
    known = [moment for moment in moments if moment is not None]
    return min(known) if known else None


class PutOff(NamedTuple):
    """Why an announce is not read now, and until when, where a clock decides that."""

    reason: Reason
    until: float | None = None


def put_off(
    *,
    now: float,
    has_open_run: bool,
    is_held: bool,
    expects_completion: bool,
    rules: Announcing,
    hours: ActiveHours | None,
) -> PutOff | None:
    """None: as soon as it was collected, or at the next step of the turn."""
    if has_open_run:
        is_told_there = rules.mode is QueueMode.INTERRUPT or injects(rules.mode, expects_completion)
        return None if is_told_there else PutOff(Reason.BUSY)
    if hours is None or is_held:
        return None
    collected_at = now + rules.debounce_s
    opens_at = hours.opens_at(collected_at)
    return None if opens_at == collected_at else PutOff(Reason.QUIET_HOURS, opens_at)


#: Read between two steps: a note about the run itself, and an instruction for its task.
INJECTED = frozenset({LetterKind.NOTE, LetterKind.INSTRUCTION})


class Point(StrEnum):
    """The two places where a run takes letters."""

    START = "start"
    STEP = "step"


class LetterSelection(NamedTuple):
    """What a run takes now. Announces in `lines` are shown as one line each; `dropped` become dead letters."""

    urgent: tuple[Letter, ...] = ()
    blocks: tuple[Letter, ...] = ()
    lines: tuple[Letter, ...] = ()
    silent: tuple[Letter, ...] = ()  #: named only, in a settle message
    dropped: tuple[Letter, ...] = ()
    interrupts: bool = False  #: the running turn should end at this boundary

    @property
    def announces(self) -> tuple[Letter, ...]:
        return self.lines + self.blocks

    @property
    def taken(self) -> tuple[Letter, ...]:
        return self.urgent + self.lines + self.blocks + self.silent

    def __bool__(self) -> bool:
        return bool(self.taken)


NOTHING = LetterSelection()


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """The turn that reaches a step boundary: who started it, and where its reply goes."""

    by_person: bool = False
    route: str = ""


BACKGROUND = RunningTurn()


def choose(
    letters: Sequence[Letter],
    point: Point,
    *,
    now: float,
    rules: Announcing,
    is_held: bool = False,
    is_settled: bool = False,
    running: RunningTurn = BACKGROUND,
) -> LetterSelection:
    """Which of the waiting letters (oldest first) this run takes at this point."""
    ready = [letter for letter in letters if letter.ready_at <= now or is_settled]
    if point is Point.STEP:
        # No tool runs that these would have to wait for.
        notes = tuple(letter for letter in letters if letter.kind in INJECTED)
        return _at_step(notes, ready, rules, running, is_held=is_held)
    people = [letter for letter in ready if letter.kind in PERSON_KINDS]
    if people:
        return LetterSelection(urgent=_of_people(people))
    urgent = _one_route([letter for letter in ready if letter.is_urgent])
    if urgent and not is_settled:
        return LetterSelection(urgent=_of_one_turn(urgent))
    background = [letter for letter in ready if not letter.is_urgent]
    if is_settled:
        return _settled(background, urgent, rules)
    told = [letter for letter in background if not letter.silent]
    if is_held:
        told = [letter for letter in told if letter.taken_seq is not None]
    return _turn(told, rules)


def left_behind(letters: Sequence[Letter], choice: LetterSelection, *, now: float) -> list[Letter]:
    """Announces that a turn could read and does not: they wait for another one.

    Not what stands in the transcript already: the turn's model reads that, whatever the turn was started for."""
    if choice.interrupts:
        return []
    numbers = {letter.id for letter in (*choice.taken, *choice.dropped)}
    return [
        letter
        for letter in letters
        if letter.kind is LetterKind.ANNOUNCE
        and not letter.silent
        and letter.ready_at <= now
        and letter.taken_seq is None
        and letter.id not in numbers
    ]


def _of_people(people: list[Letter]) -> tuple[Letter, ...]:
    """The oldest, and what people wrote for the same route; a request is answered alone."""
    if people[0].kind is LetterKind.REQUEST:
        return (people[0],)
    return tuple(letter for letter in _same_route(people) if letter.kind is not LetterKind.REQUEST)


def _of_one_turn(urgent: tuple[Letter, ...], *, is_only: bool = True) -> tuple[Letter, ...]:
    """Those that may be read together; else, if there is nothing else to read, the oldest of those that may not."""
    together = tuple(letter for letter in urgent if not letter.is_solo)
    return together or (urgent[:1] if is_only else ())


def _settled(background: list[Letter], urgent: tuple[Letter, ...], rules: Announcing) -> LetterSelection:
    """The wait is over: everything for one route at once, whatever the mode."""
    told = [letter for letter in background if not letter.silent]
    silent = [letter for letter in background if letter.silent]
    here = _same_route(told + silent)
    together = _of_one_turn(urgent, is_only=not background)
    return _capped(
        [letter for letter in here if not letter.silent],
        rules,
        urgent=tuple(letter for letter in together if not here or letter.route in ("", here[0].route)),
        silent=tuple(letter for letter in here if letter.silent),
    )


def _turn(background: list[Letter], rules: Announcing) -> LetterSelection:
    """One turn: one route, and with `followup` (also of what could not be injected) one letter."""
    if not background:
        return NOTHING
    same_route = _same_route(background)
    if rules.mode in (QueueMode.FOLLOWUP, QueueMode.STEER_BACKLOG):
        return LetterSelection(blocks=(same_route[0],))
    return _capped(same_route, rules)


def _same_route(letters: list[Letter]) -> list[Letter]:
    return [letter for letter in letters if letter.route == letters[0].route]


def _one_route(urgent: list[Letter]) -> tuple[Letter, ...]:
    """A plan is answered where its requester speaks; instructions and decisions have no such place."""
    first = next((letter.route for letter in urgent if letter.route), "")
    return tuple(letter for letter in urgent if letter.route in ("", first))


def _capped(
    told: list[Letter], rules: Announcing, *, urgent: tuple[Letter, ...] = (), silent: tuple[Letter, ...] = ()
) -> LetterSelection:
    """At most `cap` new blocks in full: the newest, except that `drop: new` keeps the oldest.

    What stands in the transcript already is read in any case, so it can neither be shortened nor dropped."""
    standing = tuple(letter for letter in told if letter.taken_seq is not None)
    fresh = [letter for letter in told if letter.taken_seq is None]
    over = max(0, len(fresh) - rules.cap)
    if rules.drop is Drop.NEW:
        kept, rest = fresh[: len(fresh) - over], fresh[len(fresh) - over :]
    else:
        kept, rest = fresh[over:], fresh[:over]
    lines = tuple(rest) if rules.drop is Drop.SUMMARIZE else ()
    dropped = () if rules.drop is Drop.SUMMARIZE else tuple(rest)
    return LetterSelection(
        urgent=urgent, blocks=(*standing, *kept), lines=lines, silent=silent, dropped=dropped
    )


def _at_step(
    notes: tuple[Letter, ...], ready: list[Letter], rules: Announcing, running: RunningTurn, *, is_held: bool
) -> LetterSelection:
    announces = [letter for letter in ready if letter.kind is LetterKind.ANNOUNCE and not letter.silent]
    if rules.mode is QueueMode.INTERRUPT:
        return LetterSelection(
            urgent=notes, interrupts=bool(announces) and not (running.by_person or is_held)
        )
    injected = [
        letter
        for letter in announces
        if letter.route == running.route and injects(rules.mode, letter.expects_completion)
    ]
    return _capped(injected, rules, urgent=notes)


def injects(mode: QueueMode, expects_completion: bool) -> bool:
    """Return whether announces enter the running turn. `auto` does so if the parent does not wait for a completion."""
    if mode is QueueMode.AUTO:
        return not expects_completion
    return mode in (QueueMode.STEER, QueueMode.STEER_BACKLOG)


def is_sent(choice: LetterSelection, depths: Sequence[int], rules: Announcing, *, is_settled: bool) -> bool:
    """Do these results go to the person as they are, without a model turn? Only what a main session's own children
    found (`depths`: of the senders), and not what it waits for: that it means to work on."""
    is_only_told = bool(choice.announces) and not (choice.urgent or choice.silent)
    return rules.direct is Direct.SEND and is_only_told and not is_settled and set(depths) == {1}


class Way(NamedTuple):
    """In the words of a delivery trace: how a letter got into the transcript, and what was left on the way."""

    path: Path
    tried: tuple[tuple[str, str], ...] = ()


def way_of(
    letter: Letter, point: Point, mode: QueueMode, *, idle_since: float | None, was_held: bool = False
) -> Way:
    left: list[tuple[str, str]] = []
    if letter.bubbled_from is not None:
        left.append(("direct-primary", "requester gone"))
    if point is Point.STEP:
        return Way(Path.STEERED, tuple(left))
    if letter.taken_seq is not None:
        left.append(("direct-primary", "attempt failed"))
    # `ready_at`: the turn that gave a letter back did not keep it waiting.
    if idle_since is not None and letter.ready_at < idle_since:
        steers = injects(mode, letter.expects_completion)
        left.append(("steer-primary", "turn ended first") if steers else ("direct-primary", Reason.BUSY))
        return Way(Path.QUEUED, tuple(left))
    if was_held:
        left.append(("direct-primary", "descendants-active"))
    return Way(Path.DIRECT, tuple(left))


# --------------------------------------------------------------------------------------------------
# A session's own way to queue announces, set with `/queue <mode> [debounce:2s cap:25 drop:old]`.
#
# Stored as JSON with the session; what it does not say is as configured.

USAGE = (
    f"/queue <{'|'.join(mode.value for mode in QueueMode)}|default>"
    f" [debounce:2s cap:25 drop:{'|'.join(drop.value for drop in Drop)}]"
)
DEFAULT = "default"
DEBOUNCE_MAX_S = 3600.0  # longer is not a debounce but a way to lose letters
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


def parse(words: str) -> str | None:
    """What is stored for these words; None: as configured again. Raises ValueError, which says how to write it."""
    first, *rest = words.split() or [""]
    mode = "followup" if first == "direct" else first
    if mode == DEFAULT and not rest:
        return None
    if mode not in {known.value for known in QueueMode}:
        raise ValueError(f"there is no queue mode {first[:40]!r}. Usage: {USAGE}")
    said: dict[str, object] = {"mode": mode}
    for word in rest:
        name, _, value = word.partition(":")
        said[name] = _option(name, value)
    return json.dumps(said)


def _option(name: str, value: str) -> object:
    match name:
        case "debounce" if (found := _DURATION.fullmatch(value)) and _seconds(found) <= DEBOUNCE_MAX_S:
            return _seconds(found)
        case "cap" if value.isascii() and value.isdigit() and 1 <= int(value[:6]) <= 1000:
            return int(value)
        case "drop" if value in {known.value for known in Drop}:
            return value
    raise ValueError(f"{name[:40]}:{value[:40]} is not an option of the queue. Usage: {USAGE}")


def _seconds(found: re.Match[str]) -> float:
    return float(found[1]) * _SECONDS[found[2]]


def applied(rules: Announcing, stored: str | None) -> Announcing:
    """Asked at every turn of a session; few sessions have a way of their own."""
    return rules if stored is None else _changed(rules, stored)


@lru_cache(maxsize=256)
def _changed(rules: Announcing, stored: str) -> Announcing:
    said = json.loads(stored)
    return replace(
        rules,
        mode=QueueMode(said["mode"]),
        debounce_s=said.get("debounce", rules.debounce_s),
        cap=said.get("cap", rules.cap),
        drop=Drop(said.get("drop", rules.drop)),
    )


# --------------------------------------------------------------------------------------------------
# Where a requester's reply goes: the bound thread, else what a hook says, else the route captured at spawn.
#
# A route is stored as text, `channel:target`; the target is the plain `to`, or JSON when there is more to say. Two
# letters share a turn only if their texts are the same, so the reply to one never reaches the other's people.

#: The channel of clients of a gateway: replies wait in the outbox until they are asked for.
LOCAL_CHANNEL = "api"
#: They have no receiver outside of Clutch, so a hook cannot send a reply to them.
PUSH_CHANNEL = "push"  #: notifications of devices that asked for them
INTERNAL_CHANNELS = frozenset({LOCAL_CHANNEL, "internal", "hook", PUSH_CHANNEL})
CHANNEL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
CHAT = "chat"  #: the thread of a chat in which its person types


class RouteMode(StrEnum):
    """In the words of a delivery trace: how was the route found?"""

    BOUND = "bound"
    HOOK = "hook"
    FALLBACK = "fallback"


def to_text(route: Route) -> str:
    return f"{route.channel}:{target(route)}"


def target(route: Route) -> str:
    """What a channel is given as the address."""
    plain = route.to or ""
    if route.account is None and route.thread is None and not plain.startswith("{"):
        return plain
    known = {"account": route.account, "to": route.to, "thread": route.thread}
    return json.dumps({name: part for name, part in known.items() if part is not None}, ensure_ascii=False)


@lru_cache(maxsize=1024)  # every turn of a session asks for the same few
def from_text(text: str) -> Route:
    channel, _, address = text.partition(":")
    if address.startswith("{"):
        return Route(channel, **json.loads(address))
    return Route(channel, to=address or None)


def local_route(chat: str, name: str = CHAT) -> Route:
    """A thread of a chat, which is named by its session key. Neither a key nor a name has a slash in it."""
    return Route(LOCAL_CHANNEL, thread=f"{chat}/{name}")


def chat_of(route: Route) -> str | None:
    """The session key of the chat that has this thread. None: another channel has it, or it is no thread."""
    if route.channel != LOCAL_CHANNEL or route.thread is None:
        return None
    return route.thread.partition("/")[0]


def merged(captured: Route | None, current: Route | None) -> Route | None:
    """Missing parts of the captured route come from the current one, but only within the same channel."""
    if captured is None:
        return current
    if current is None or current.channel != captured.channel:
        return captured
    if captured.account is not None and captured.account != current.account:
        return captured
    return Route(
        captured.channel,
        captured.account or current.account,
        captured.to or current.to,
        captured.thread or (current.thread if captured.to in (None, current.to) else None),
    )


def choose_route(
    *, bound: Route | None, hook: Route | None, captured: Route | None, current: Route | None
) -> tuple[Route | None, RouteMode]:
    """`bound`: the thread of the child; `captured`: when it was spawned; `current`: of its requester, now."""
    if bound is not None:
        return merged(bound, captured), RouteMode.BOUND
    if hook is not None and hook.channel not in INTERNAL_CHANNELS:
        return hook, RouteMode.HOOK
    return merged(captured, current), RouteMode.FALLBACK


# --------------------------------------------------------------------------------------------------
# One send to a channel: what an error says about whether the receiver may have read the message


TEXT_CHARS_SHOWN = 60
ERROR_CHARS_SHOWN = 200


class SendOutcome(StrEnum):
    """How the last attempt to send a message ended, unless it arrived."""

    FAILED = "failed"  #: not read: sent again after a while, until the tries are used up
    REFUSED = "refused"  #: the receiver does not take it, now or later
    UNSURE = "unsure"  #: it may have been read: never sent again by itself


#: A connection that was cut after it was made.
_CUT = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)


class SendUnsure(ConnectionError):
    """The request was sent, and no answer tells whether it was read."""


def may_have_arrived(error: Exception) -> bool:
    """Whether the message may have been read although sending it failed.

    A channel says with a ConnectionError that it was not: the connection was refused, or the receiver answered with a
    failure. Every other error leaves it open."""
    return isinstance(error, (SendUnsure, *_CUT)) or not isinstance(error, ConnectionError)


def unsent_line(message_id: str, where: str, text: str, outcome: str, error: str, *, attempts: int) -> str:
    """A message that is not sent again by itself, why, and what can be done. `where`: its channel and target."""
    why = visible(error, ERROR_CHARS_SHOWN)
    became = {
        SendOutcome.UNSURE: f"unsure whether it arrived ({why}); it is not sent again",
        SendOutcome.REFUSED: f"refused ({why})",
    }.get(SendOutcome(outcome), f"not sent after {attempts} attempts ({why})")
    said = f'Message "{visible(text, TEXT_CHARS_SHOWN)}" to {visible(where, TEXT_CHARS_SHOWN)}: {became}'
    return (
        f"{said}. Send it again: `clutch redeliver {message_id}`. Discard it: `clutch dismiss {message_id}`."
    )
