"""What the model reads of its letters: the senders as their letters show them, turned into messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from clutch.core import authority, keys, pingpong, routes, wording
from clutch.core.attachments import Handed, handed
from clutch.core.delivery import Choice, Point
from clutch.core.evidence import children_missing
from clutch.core.keys import plan_hash as plan_hash
from clutch.core.messages import Input
from clutch.core.model import Delivery, Letter, LetterKind, Outcome, Plan
from clutch.core.policy import Announcing, IdleWake
from clutch.core.wording.peers import peer_message
from clutch.protocol.conditions import worked
from clutch.protocol.sessions import IS_WORKING, SessionRow
from clutch.store.door import Tx


class Sender(NamedTuple):
    """A task as its letter shows it."""

    task_id: int
    label: str
    session_key: str
    generation: int
    outcome: Outcome | None
    error: str | None
    result: str | None
    worked_s: float | None  #: of all its runs together
    spawn_order: int
    expects_completion: bool
    is_skipped: bool
    is_deferred: bool
    missing: tuple[str, ...]  #: its own children that were still out when it was told all the same
    tokens_in: int | None
    tokens_out: int | None
    files: Handed
    usd: float | None  #: None: not every call has a price
    depth: int
    is_bound: bool  #: a thread of a channel is its own
    is_plan: bool  #: it is to write a plan, or was


class Verbatim(NamedTuple):
    """A result that goes to a person as it is."""

    task_id: int
    generation: int
    session_key: str
    text: str


_SENDERS = (
    "SELECT id, label, (SELECT key FROM sessions s WHERE s.id = tasks.id), generation, outcome, error, result,"  # noqa: S608
    f" COALESCE({worked('tasks')}, ended_at - started_at), spawn_order, expects_completion, delivery, evidence,"
    " (SELECT SUM(input) FROM usage u WHERE u.session_id = tasks.id),"
    " (SELECT SUM(output) FROM usage u WHERE u.session_id = tasks.id), files,"
    " (SELECT CASE WHEN COUNT(*) = COUNT(usd) THEN SUM(CAST(usd AS {float})) END FROM usage u"
    " WHERE u.session_id = tasks.id AND u.state = 1), depth, (SELECT bound FROM sessions s WHERE s.id = tasks.id),"
    " plan FROM tasks WHERE id {any} ORDER BY id {lock}"
)


def senders(task_ids: list[int]) -> Tx[dict[int, Sender]]:
    """Locked, so that a steer or kill around a waiting task and the taking of its letter cannot both win."""
    rows = yield _SENDERS, (task_ids,)
    return {row[0]: _sender(*row) for row in rows}


def _sender(
    task_id: int,
    label: str,
    session_key: str | None,
    generation: int,
    outcome: str | None,
    error: str | None,
    result: str | None,
    worked_s: float | None,
    spawn_order: int,
    expects_completion: int,
    delivery: str,
    evidence: str | None,
    tokens_in: int | None,
    tokens_out: int | None,
    files: str | None,
    usd: float | None,
    depth: int,
    bound: int | None,
    plan: str,
) -> Sender:
    ended = None if outcome is None else _OUTCOMES[outcome]
    key, expects = session_key or "(deleted)", bool(expects_completion)
    return Sender(
        task_id, label, key, generation, ended, error, result, worked_s, spawn_order, expects,
        delivery == Delivery.SKIPPED, delivery == Delivery.DEFERRED, children_missing(evidence, generation),
        _whole(tokens_in), _whole(tokens_out), handed(files), usd, depth, bool(bound), plan == Plan.DRAFTING,
    )  # fmt: skip


# Looked up, not called: calling an enum costs ten times as much.
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


def _whole(total: int | None) -> int | None:
    """PostgreSQL adds up to a decimal."""
    return None if total is None else int(total)


def absent(
    session: SessionRow, choice: Choice, senders: Mapping[int, Sender], route: str | None
) -> Tx[list[wording.Absent]]:
    """Children without a finding, by name: killed ones, and those still out when the wait expired.

    Where the reply is posted, only those whose own reply would go there."""
    silent = [senders[letter.task_id] for letter in choice.silent if letter.task_id is not None]
    gone = [
        wording.Absent(sender.label, keys.task_id(sender.task_id), _why(sender))
        for sender in sorted(silent, key=lambda sender: (sender.spawn_order, sender.task_id))
    ]
    rows = yield (
        "SELECT spawn_order, id, label, phase, (SELECT route FROM sessions s WHERE s.id = tasks.id)"  # noqa: S608
        f" FROM tasks WHERE requester_id = ? AND {IS_WORKING} ORDER BY spawn_order, id",
        (session.id,),
    )
    return gone + [
        wording.Absent(label, keys.task_id(task_id), f"still {phase}")
        for _, task_id, label, phase, captured in rows
        if route is None or _is_heard_at(route, captured, session.route)
    ]


def _is_heard_at(route: str, captured: str | None, current: str | None) -> bool:
    known = [None if text is None else routes.from_text(text) for text in (captured, current)]
    return routes.merged(*known) in (None, routes.from_text(route))


def _why(sender: Sender) -> str:
    if sender.outcome is Outcome.KILLED:
        return f"killed: {sender.error}" if sender.error and sender.error != "killed" else "killed"
    return "has nothing to tell"


def audience(
    session: SessionRow, senders: Mapping[int, Sender], rules: Announcing, *, is_sent: bool
) -> wording.Audience:
    if session.depth:
        return wording.Audience.PARENT
    if is_sent:
        return wording.Audience.INFORMED_PERSON
    if rules.idle_wake is IdleWake.HEARTBEAT:
        return wording.Audience.PERSON
    expects = any(sender.expects_completion for sender in senders.values())
    return wording.Audience.WAITING_PERSON if expects else wording.Audience.PERSON


def may_send(session: SessionRow, choice: Choice) -> Tx[bool]:
    """Only a plan says so to its reader, and no child has that tool."""
    if session.depth or not any(letter.kind is LetterKind.PLAN for letter in choice.urgent):
        return False
    rows = yield "SELECT rights FROM sessions WHERE id = ?", (session.id,)
    return authority.from_text(rows[0][0]).permits_tool("sessions_send", is_read_only=False)


class Page(NamedTuple):
    """Turns chosen letters into the messages that stand in the transcript."""

    rules: Announcing
    senders: Mapping[int, Sender]
    late: set[int]
    nonce: str
    audience: wording.Audience
    may_send: bool  #: the reader has `sessions_send`

    def inputs(self, choice: Choice, point: Point, absent: Sequence[wording.Absent]) -> Iterator[Input]:
        for letter in choice.urgent:
            if letter.taken_seq is None:
                yield Input(self._words(letter), letter.kind.value)
        fresh = [letter for letter in choice.blocks if letter.taken_seq is None]
        lines = [letter for letter in choice.lines if letter.taken_seq is None]
        if fresh or lines or absent:
            text = wording.announcement(
                self._findings(fresh),
                self.audience,
                self.nonce,
                older=self._findings(lines),
                absent=absent,
            )
            steered = point is Point.STEP
            yield Input(wording.interrupt(text) if steered else text, LetterKind.ANNOUNCE.value)

    def verbatim(self, choice: Choice) -> Iterator[Verbatim]:
        for letter in choice.announces:
            sender = self.senders[letter.task_id or 0]
            text = wording.as_it_is(self._finding(sender, letter), sender.result)
            yield Verbatim(sender.task_id, sender.generation, sender.session_key, text)

    def _words(self, letter: Letter) -> str:
        if letter.kind is LetterKind.PEER:
            return peer_message(pingpong.load(letter.body), self.nonce)
        if letter.kind is not LetterKind.PLAN or letter.task_id is None:
            return letter.body
        sender = self.senders[letter.task_id]
        shown = self._payload(sender)
        ready = wording.PlanReady(
            sender.label, keys.task_id(sender.task_id), sender.session_key, shown.text, plan_hash(sender.result or ""),
            summary_only=shown.is_summary,
            may_send=self.may_send,
        )  # fmt: skip
        return wording.plan_ready(ready, self.nonce)

    def _findings(self, chosen: Sequence[Letter]) -> list[wording.Finding]:
        """In spawn order: the order of the calls in the model's answer; of what others spawned, the order they did."""
        pairs = [(self.senders[letter.task_id], letter) for letter in chosen if letter.task_id is not None]
        pairs.sort(key=lambda pair: (pair[0].spawn_order, pair[0].task_id))
        return [self._finding(sender, letter) for sender, letter in pairs]

    def _payload(self, sender: Sender) -> wording.Payload:
        rules = self.rules
        return wording.payload(
            sender.result or "", rules.payload, rules.inline_chars_max, rules.summary_chars_max
        )

    def _finding(self, sender: Sender, letter: Letter) -> wording.Finding:
        shown = self._payload(sender)
        return wording.Finding(
            label=sender.label,
            task_id=keys.task_id(sender.task_id),
            session_key=sender.session_key,
            outcome=sender.outcome or Outcome.LOST,
            error=sender.error,
            text=shown.text or None,
            summary_only=shown.is_summary,
            runtime_s=sender.worked_s,
            tokens_in=sender.tokens_in,
            tokens_out=sender.tokens_out,
            usd=None if sender.usd is None else Decimal(sender.usd),
            late=letter.id in self.late,
            missing=sender.missing,
            files=sender.files.files,
            files_left_out=sender.files.left_out,
            is_plan=sender.is_plan and sender.outcome is not Outcome.OK,
        )
