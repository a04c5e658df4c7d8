"""The rows of a transcript: its entries, the calls of its answers, and how the letters of a turn become messages.

An entry is written once. Only the contents of files leave it later: a spawn call holds what it gives until that is on
disk, because after a crash the run resumes from its transcript. With the results of the call, or when its run has
ended without carrying it out, only name, size and hash stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from clutch.core import authority, delivery, ids, messages, session_tools
from clutch.core.agents import Heartbeat
from clutch.core.attachments import SPAWN, Handed, handed, redacted
from clutch.core.budget import CallState
from clutch.core.checks import CheckReport, report_of
from clutch.core.delivery import LetterSelection, Point
from clutch.core.ids import plan_hash
from clutch.core.messages import Answer, Call, Entry, Input, Message, Summary
from clutch.core.model import PERSON_KINDS, Delivery, Letter, LetterKind, Outcome, Plan, Route
from clutch.core.policy import Announcing, IdleWake, Policy
from clutch.core.text import announce
from clutch.core.text.announce import peer_message
from clutch.core.text.format import main_argument
from clutch.core.text.tasks import Payload, payload
from clutch.core.views import children_missing
from clutch.store.transaction import ManyRows, Row, Tx
from clutch.transactions import sessions
from clutch.transactions.conditions import IS_WORKING, worked
from clutch.transactions.sessions import OwnedRun, SessionRow, StepRow

NO_RUN = 0  # of entries that no run of this session has written

_INSERT = "INSERT INTO messages(session_id, seq, run_id, kind, body, at) VALUES(?, ?, ?, ?, ?, ?)"


def append(now: float, session: StepRow, run_id: int, new: Sequence[Entry]) -> Tx[None]:
    if new:
        yield _INSERT, ManyRows([_line(now, session, run_id, entry) for entry in new])


def append_one(now: float, session: StepRow, run_id: int, entry: Entry) -> Tx[None]:
    yield _INSERT, _line(now, session, run_id, entry)


def _line(now: float, session: StepRow, run_id: int, entry: Entry) -> Row:
    session.head += 1
    return (session.id, session.head, run_id, messages.kind(entry), messages.dump(entry), now)


def insert(session_id: int, run_id: int, entries: Iterable[tuple[Message, float]]) -> Tx[None]:
    """Begin the transcript of a new session with these entries and their times."""
    yield (
        _INSERT,
        ManyRows(
            (session_id, seq, run_id, messages.kind(entry), messages.dump(entry), at)
            for seq, (entry, at) in enumerate(entries, start=1)
        ),
    )


def compact(now: float, owned: OwnedRun, summary: Summary) -> Tx[int]:
    """Append a summary; the new head. Only between two steps: results must follow their answer directly."""
    session_id = owned.session_id
    session = yield from sessions.own(session_id, owned.fence)
    is_open = yield "SELECT 1 FROM calls WHERE session_id = ? AND seq = ?", (session_id, session.head)
    assert not is_open, f"session {session_id} has open calls at {session.head}"
    assert session.base < summary.upto <= session.head, f"there is no entry {summary.upto}"
    yield from append_one(now, session, owned.run_id, summary)
    session.progress_at = now
    yield from sessions.save(now, owned.policy, session)
    return session.head


def fork(now: float, child_id: int, copied: Sequence[Message]) -> Tx[None]:
    """Begin the transcript of a child with a copy, in the transaction that makes its session.

    No run of the child has written it, so it counts neither as steps nor as final text."""
    yield from insert(child_id, NO_RUN, ((entry, now) for entry in copied))
    yield from sessions.set_column(child_id, "head", len(copied))


def reword(session: StepRow, instead: Answer) -> Tx[None]:
    """Replace the last entry, before anything follows it."""
    known = (messages.dump(instead), session.id, session.head)
    yield "UPDATE messages SET body = ? WHERE session_id = ? AND seq = ?", known


def redact_open(session: StepRow) -> Tx[None]:
    """Remove the contents of files from an answer whose calls are not carried out any more."""
    rows = yield (
        "SELECT kind, body FROM messages WHERE session_id = ? AND seq = ? AND EXISTS (SELECT 1 FROM calls c"
        " WHERE c.session_id = messages.session_id AND c.seq = messages.seq AND c.name = ?)",
        (session.id, session.head, SPAWN),
    )
    for kind, body in rows:
        answer = messages.load(kind, body)
        if isinstance(answer, Answer) and (instead := redacted(answer)) is not answer:
            yield from reword(session, instead)


def open_calls(session: StepRow, run_id: int, seq: int, calls: Iterable[tuple[Call, bool]]) -> Tx[None]:
    """The calls of the answer at `seq`, each with whether it may be repeated after a crash."""
    yield (
        "INSERT INTO calls(session_id, seq, idx, run_id, name, replay_safe) VALUES(?, ?, ?, ?, ?, ?)",
        ManyRows(
            (session.id, seq, index, run_id, call.name, int(is_safe))
            for index, (call, is_safe) in enumerate(calls)
        ),
    )


def went_remote(session_id: int, seq: int, place: int, task: str) -> Tx[None]:
    """A task of another server carries out this open call."""
    yield (
        "UPDATE calls SET remote = ? WHERE session_id = ? AND seq = ? AND idx = ?",
        (task, session_id, seq, place),
    )


def opened(session_id: int, head: int) -> Tx[dict[int, str | None]]:
    """Return the open calls by their place, each with the task of another server that carries it out."""
    rows = yield "SELECT idx, remote FROM calls WHERE session_id = ? AND seq = ?", (session_id, head)
    return {row[0]: row[1] for row in rows}


def doing(now: float, session_id: int, run_id: int, call: Call | None) -> Tx[None]:
    """The call that foreign code makes right now; None: none that it reports."""
    yield "DELETE FROM doing WHERE session_id = ?", (session_id,)
    if call is not None:
        yield (
            "INSERT INTO doing(session_id, run_id, name, arg, at) VALUES(?, ?, ?, ?, ?)",
            (session_id, run_id, call.name, main_argument(call.args), now),
        )


def delete(session_id: int) -> Tx[None]:
    yield "DELETE FROM messages WHERE session_id = ?", (session_id,)


def forget(session_id: int, after: int = 0) -> Tx[None]:
    """The session is deleted: entries after this one, calls, and the call of the moment."""
    yield "DELETE FROM messages WHERE session_id = ? AND seq > ?", (session_id, after)
    yield "DELETE FROM calls WHERE session_id = ? AND seq > ?", (session_id, after)
    yield "DELETE FROM doing WHERE session_id = ?", (session_id,)


# --------------------------------------------------------------------------------------------------
# Letters as the model reads them: the senders as their letters show them, turned into messages


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
    missing: tuple[str, ...]  #: its own children that had not finished when it was delivered all the same
    tokens_in: int | None
    tokens_out: int | None
    files: Handed
    usd: float | None  #: None: not every call has a price
    depth: int
    is_bound: bool  #: a thread of a channel is its own
    is_plan: bool  #: it is to write a plan, or was
    checks: CheckReport | None


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
    f" WHERE u.session_id = tasks.id AND u.state = {CallState.ANSWERED:d}), depth,"
    " (SELECT bound FROM sessions s WHERE s.id = tasks.id),"
    " plan, checks FROM tasks WHERE id {any} ORDER BY id {lock}"
)


def senders(task_ids: list[int]) -> Tx[dict[int, Sender]]:
    """Locked, so that a steer or kill around a waiting task and the taking of its letter cannot both win."""
    rows = yield _SENDERS, (task_ids,)
    return {row[0]: _sender(row) for row in rows}


def _sender(row: Row) -> Sender:
    (
        task_id, label, session_key, generation, outcome, error, result, worked_s, spawn_order,
        expects_completion, delivery, evidence, tokens_in, tokens_out, files, usd, depth, bound, plan, checks,
    ) = row  # fmt: skip
    ended = None if outcome is None else _OUTCOMES[outcome]
    key, expects = session_key or "(deleted)", bool(expects_completion)
    return Sender(
        task_id, label, key, generation, ended, error, result, worked_s, spawn_order, expects,
        delivery == Delivery.SKIPPED, delivery == Delivery.DEFERRED, children_missing(evidence, generation),
        _whole(tokens_in), _whole(tokens_out), handed(files), usd, depth, bool(bound), plan == Plan.DRAFTING,
        report_of(checks, generation),
    )  # fmt: skip


# Looked up, not called: calling an enum costs ten times as much.
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


def _whole(total: int | None) -> int | None:
    """PostgreSQL adds up to a decimal."""
    return None if total is None else int(total)


def absent(
    session: SessionRow, choice: LetterSelection, senders: Mapping[int, Sender], route: str | None
) -> Tx[list[announce.Absent]]:
    """Children without a finding, by name: killed ones, and those still out when the wait expired.

    Where the reply is posted, only those whose own reply would go there."""
    silent = [senders[letter.task_id] for letter in choice.silent if letter.task_id is not None]
    gone = [
        announce.Absent(sender.label, ids.task_id(sender.task_id), _why(sender))
        for sender in sorted(silent, key=lambda sender: (sender.spawn_order, sender.task_id))
    ]
    rows = yield (
        "SELECT spawn_order, id, label, phase, (SELECT route FROM sessions s WHERE s.id = tasks.id)"  # noqa: S608
        f" FROM tasks WHERE requester_id = ? AND {IS_WORKING} ORDER BY spawn_order, id",
        (session.id,),
    )
    return gone + [
        announce.Absent(label, ids.task_id(task_id), f"still {phase}")
        for _, task_id, label, phase, captured in rows
        if route is None or _is_heard_at(route, captured, session.route)
    ]


def _is_heard_at(route: str, captured: str | None, current: str | None) -> bool:
    known = [None if text is None else delivery.from_text(text) for text in (captured, current)]
    return delivery.merged(*known) in (None, delivery.from_text(route))


def _why(sender: Sender) -> str:
    if sender.outcome is Outcome.KILLED:
        return f"killed: {sender.error}" if sender.error and sender.error != "killed" else "killed"
    return "has nothing to tell"


def audience(
    session: SessionRow, senders: Mapping[int, Sender], rules: Announcing, *, is_sent: bool
) -> announce.Audience:
    if session.depth:
        return announce.Audience.PARENT
    if is_sent:
        return announce.Audience.INFORMED_PERSON
    if rules.idle_wake is IdleWake.HEARTBEAT:
        return announce.Audience.PERSON
    expects = any(sender.expects_completion for sender in senders.values())
    return announce.Audience.WAITING_PERSON if expects else announce.Audience.PERSON


def prompt(policy: Policy, session: SessionRow, *, by_person: bool) -> str:
    """Where results come to an idle main agent as a heartbeat, they come with its prompt."""
    if session.depth or by_person or policy.announcing.idle_wake is IdleWake.TURN:
        return ""
    return (policy.heartbeat_of(session.agent_id) or Heartbeat()).prompt


def may_send(session: SessionRow, choice: LetterSelection) -> Tx[bool]:
    """Only a plan says so to its reader, and no child has that tool."""
    if session.depth or not any(letter.kind is LetterKind.PLAN for letter in choice.urgent):
        return False
    rows = yield "SELECT rights FROM sessions WHERE id = ?", (session.id,)
    return authority.from_text(rows[0][0]).permits_tool("sessions_send", is_read_only=False)


class LetterRenderer(NamedTuple):
    """Turns chosen letters into the messages that stand in the transcript."""

    rules: Announcing
    senders: Mapping[int, Sender]
    late: set[int]
    nonce: str
    audience: announce.Audience
    may_send: bool  #: the reader has `sessions_send`
    prompt: str = ""  #: stands before results that wake an idle agent

    def inputs(
        self, choice: LetterSelection, point: Point, absent: Sequence[announce.Absent]
    ) -> Iterator[Input]:
        for letter in choice.urgent:
            if letter.taken_seq is None:
                yield Input(self._words(letter), letter.source)
        fresh = [letter for letter in choice.blocks if letter.taken_seq is None]
        lines = [letter for letter in choice.lines if letter.taken_seq is None]
        if fresh or lines or absent:
            text = announce.announcement(
                self._findings(fresh),
                self.audience,
                self.nonce,
                older=self._findings(lines),
                absent=absent,
            )
            steered = point is Point.STEP
            woken = f"{self.prompt}\n\n{text}" if self.prompt else text
            yield Input(announce.interrupt(text) if steered else woken, LetterKind.ANNOUNCE.value)

    def verbatim(self, choice: LetterSelection) -> Iterator[Verbatim]:
        for letter in choice.announces:
            sender = self.senders[letter.task_id or 0]
            text = announce.as_it_is(self._finding(sender, letter), sender.result)
            yield Verbatim(sender.task_id, sender.generation, sender.session_key, text)

    def _words(self, letter: Letter) -> str:
        if letter.kind is LetterKind.PEER:
            return peer_message(session_tools.load(letter.body), self.nonce)
        if letter.kind is not LetterKind.PLAN or letter.task_id is None:
            return letter.body
        sender = self.senders[letter.task_id]
        shown = self._payload(sender)
        ready = announce.PlanReady(
            sender.label, ids.task_id(sender.task_id), sender.session_key, shown.text, plan_hash(sender.result or ""),
            summary_only=shown.is_summary,
            may_send=self.may_send,
        )  # fmt: skip
        return announce.plan_ready(ready, self.nonce)

    def _findings(self, chosen: Sequence[Letter]) -> list[announce.AnnouncedResult]:
        """In spawn order: the order of the calls in the model's answer; of what others spawned, the order they did."""
        pairs = [(self.senders[letter.task_id], letter) for letter in chosen if letter.task_id is not None]
        pairs.sort(key=lambda pair: (pair[0].spawn_order, pair[0].task_id))
        return [self._finding(sender, letter) for sender, letter in pairs]

    def _payload(self, sender: Sender) -> Payload:
        rules = self.rules
        return payload(sender.result or "", rules.payload, rules.inline_chars_max, rules.summary_chars_max)

    def _finding(self, sender: Sender, letter: Letter) -> announce.AnnouncedResult:
        shown = self._payload(sender)
        return announce.AnnouncedResult(
            label=sender.label,
            task_id=ids.task_id(sender.task_id),
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
            checks=sender.checks,
            is_plan=sender.is_plan and sender.outcome is not Outcome.OK,
        )


# --------------------------------------------------------------------------------------------------
# Where the reply to a letter goes, found when the letter is about to be taken: bound thread, hook, captured route.
#
# Only a main session's replies are posted, so for a child nothing is looked up and all letters are alike.


def resolved(
    session: SessionRow, waiting: Sequence[Letter], hooked: Mapping[int, str], in_threads: Sequence[int]
) -> Tx[list[Letter]]:
    """The letters with the routes their replies go to. `hooked`: what a hook said, by letter. `in_threads`: senders
    that have one."""
    if session.depth:
        return [letter._replace(route="") if letter.route else letter for letter in waiting]
    current = None if session.route is None else delivery.from_text(session.route)
    bound = (yield from _bound(in_threads)) if in_threads else {}
    return [_routed(letter, current, bound, hooked.get(letter.id)) for letter in waiting]


def _bound(task_ids: Sequence[int]) -> Tx[dict[int, Route]]:
    rows = yield (
        "SELECT session_id, channel, account, thread FROM bindings WHERE session_id {any} ORDER BY bound_at",
        (list(task_ids),),
    )
    return {
        session_id: Route(channel, account or None, None, thread)
        for session_id, channel, account, thread in rows
    }


def _routed(letter: Letter, current: Route | None, bound: Mapping[int, Route], hook: str | None) -> Letter:
    captured = delivery.from_text(letter.route) if letter.route else None
    if letter.task_id is None:
        has_place = captured is not None or letter.kind in PERSON_KINDS
        found, mode = (delivery.merged(captured, current) if has_place else None), ""
    else:
        found, mode = delivery.choose_route(
            bound=bound.get(letter.task_id),
            hook=delivery.from_text(hook) if hook else None,
            captured=captured,
            current=current,
        )
    return letter._replace(route=delivery.to_text(found) if found else "", route_mode=mode)


def of_turn(session: SessionRow, choice: LetterSelection) -> str | None:
    """Where the reply of a turn goes that begins with these letters. None: a child's words are posted nowhere."""
    if session.depth:
        return None
    known = [letter.route for letter in choice.taken if letter.route]
    if known:
        return known[0]
    return None if session.route is None else delivery.to_text(delivery.from_text(session.route))
