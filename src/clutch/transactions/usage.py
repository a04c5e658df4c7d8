"""The ledger of model calls and the budgets they draw on: a row before a call is sent, its cost after.

Without a budget the row is written by the transaction that comes before the call anyway, and nothing else
happens. With one, `reserve` is a transaction of its own: it locks every budget of the chain, always after the
session and in the order of their names, and takes from all of them or from none."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

from clutch.core import budget
from clutch.core.budget import Amount, Budget, BudgetKind, CallState, raised
from clutch.core.costs import LedgerPlace, OldCall, summed
from clutch.core.messages import Answer
from clutch.core.model import LetterKind
from clutch.core.policy import Budgets, Policy
from clutch.core.text import announce, prompts
from clutch.store.transaction import ManyRows, Tx
from clutch.transactions import inbox, sessions
from clutch.transactions.read.tasks import BUDGET_COLUMNS, budget_of, day_name, money
from clutch.transactions.sessions import OwnedRun, StepRow

NOTHING = Amount(0, None)
_DAY_KEY = -1
#: Only the newest call of a session can be open.
_OPEN = (
    f"session_id = ? AND state = {CallState.OPEN:d}"  # noqa: S608
    " AND call_no = (SELECT MAX(call_no) FROM usage WHERE session_id = ?)"
)
_SETTLE = (
    f"UPDATE usage SET state = {CallState.ANSWERED:d}, effective = ?, input = ?, output = ?, cache_read = ?,"  # noqa: S608
    f" cache_write = ?, usd = ? WHERE {_OPEN}"
)


#: Not INSERT … SELECT: to read and write the same table that way, SQLite copies the rows first.
_FORESEE = (
    "INSERT INTO usage(session_id, call_no, run_id, at, model, reserved_tokens, reserved_usd)"
    " VALUES(?, COALESCE((SELECT MAX(call_no) FROM usage WHERE session_id = ?), 0) + 1, ?, ?, ?, ?, ?)"
)


class Fate(StrEnum):
    """What became of a call that gave no answer."""

    UNSENT = "unsent"  #: it never left: as if it had not been
    FREE = "free"  #: the provider refused it before it worked
    UNKNOWN = "unknown"  #: cut on the way: it is charged as reserved


class Summable(NamedTuple):
    """`next`: where the following calls begin; None: these were the last. `is_any`: some of these make one row."""

    next: LedgerPlace | None
    is_any: bool


def is_budgeted(policy: Policy, purses: str) -> bool:
    return bool(purses) or policy.budgets.has_day


def keys(policy: Policy, purses: str) -> tuple[int, ...]:
    """What a transaction that touches these budgets must share with others, beside its session."""
    own = tuple(-int(name.partition(":")[2]) for name in purses.split())
    return (*own, _DAY_KEY) if policy.budgets.has_day else own


def budgets_of(now: float, session_ids: Sequence[int]) -> Tx[dict[int, str]]:
    del now
    return dict((yield "SELECT id, purses FROM sessions WHERE id {any}", (list(session_ids),)))


def foresee(now: float, session_id: int, run_id: int, model: str, reserved: Amount = NOTHING) -> Tx[None]:
    """The row of a call that is about to be made. The one before has its answer or was given up."""
    yield _FORESEE, (session_id, session_id, run_id, now, model, reserved.tokens, _text(reserved.usd))


def reserve(
    now: float, owned: OwnedRun, model: str, estimate: Amount
) -> Tx[budget.Reservation | budget.BudgetExhausted]:
    """Reserve in all budgets, or return the one that is exhausted.

    A call that an interrupted run left open is charged first."""
    session = yield from sessions.own(owned.session_id, owned.fence)
    yield from give_up(now, owned.policy, session, Fate.UNKNOWN)
    held = budget.reserve((yield from _lock(owned.policy, session, now)), estimate)
    if isinstance(held, budget.BudgetExhausted):
        return held
    yield from _save(held.purses)
    yield from foresee(now, session.id, owned.run_id, model, estimate)
    return held


def settle(now: float, policy: Policy, session: StepRow, answer: Answer, usd: Decimal | None) -> Tx[None]:
    """The call was answered. `usd` None: the price is not known."""
    used = answer.usage
    if not (used.input or used.output):
        usd = None  # a provider that reports no tokens is not free of charge
    if is_budgeted(policy, session.purses):
        cost = Amount(used.input + used.output, usd) if used.input or used.output else None
        yield from _charge(now, policy, session, cost)
    yield (
        _SETTLE,
        (
            answer.model, used.input, used.output, used.cache_read, used.cache_write, _text(usd), session.id,
            session.id,
        ),
    )  # fmt: skip


def give_up(now: float, policy: Policy, session: StepRow, fate: Fate) -> Tx[None]:
    """The open call, if there is one, will not be answered."""
    if is_budgeted(policy, session.purses):
        cost = None if fate is Fate.UNKNOWN else Amount(0, Decimal(0))
        yield from _charge(now, policy, session, cost)
    which = (session.id, session.id)
    if fate is Fate.UNSENT:
        yield f"DELETE FROM usage WHERE {_OPEN}", which  # noqa: S608 (constant condition)
    else:
        state = CallState.FREE if fate is Fate.FREE else CallState.UNKNOWN
        yield f"UPDATE usage SET state = ? WHERE {_OPEN}", (int(state), *which)  # noqa: S608 (constant condition)


def drop(now: float, owned: OwnedRun, fate: Fate) -> Tx[None]:
    """`give_up` as a transaction: the run continues with another call."""
    session = yield from sessions.own(owned.session_id, owned.fence)
    yield from give_up(now, owned.policy, session, fate)


def book(now: float, owned: OwnedRun, answer: Answer, usd: Decimal | None) -> Tx[None]:
    """Settle a call whose answer is no message of the transcript, and insert the row of the next call."""
    policy = owned.policy
    session = yield from sessions.own(owned.session_id, owned.fence)
    yield from settle(now, policy, session, answer, usd)
    if not is_budgeted(policy, session.purses):
        yield from foresee(now, session.id, owned.run_id, session.model or policy.model_of(session.agent_id))


_OLD = (
    "SELECT session_id, call_no, run_id, at, model, effective, input, output, cache_read, cache_write, usd, calls,"  # noqa: S608
    " reserved_tokens FROM usage WHERE (session_id, call_no) > (?, ?) AND at <= ?"
    f" AND state = {CallState.ANSWERED:d} ORDER BY session_id, call_no LIMIT ?"
)


def summable(now: float, before: float, after: LedgerPlace, count_max: int) -> Tx[Summable]:
    """Look at the next answered calls of the ledger."""
    del now
    old = yield from _old(_OLD, before, after, count_max)
    return Summable(old[-1].place if len(old) == count_max else None, bool(summed(old)))


def sum_up(now: float, before: float, after: LedgerPlace, count_max: int) -> Tx[None]:
    """Replace the calls of a group by one row with their sums, which has the number of the last.

    Locked, so that of two gateways the second sees what the first has left. Answered calls never change otherwise."""
    del now
    sums = summed((yield from _old(_OLD + " {lock}", before, after, count_max)))
    yield (
        "DELETE FROM usage WHERE session_id = ? AND call_no = ?",
        ManyRows(call.place for one in sums for call in one.replaced),
    )
    yield (
        "UPDATE usage SET input = ?, output = ?, cache_read = ?, cache_write = ?, usd = ?, calls = ?,"
        " reserved_tokens = ? WHERE session_id = ? AND call_no = ?",
        ManyRows(
            (
                one.input, one.output, one.cache_read, one.cache_write, _text(one.usd), one.calls,
                one.reserved_tokens, *one.place,
            )
            for one in (one.total for one in sums)
        ),
    )  # fmt: skip


def _old(sql: str, before: float, after: LedgerPlace, count_max: int) -> Tx[list[OldCall]]:
    rows = yield sql, (*after, before, count_max)
    return [OldCall._make((*row[:10], money(row[10]), *row[11:])) for row in rows]


def insert_imported(rows: ManyRows) -> Tx[None]:
    """Answered calls of an imported task."""
    yield (
        "INSERT INTO usage(session_id, call_no, run_id, at, state, model, effective, input, output, cache_read,"
        f" cache_write, usd) VALUES(?, ?, ?, ?, {CallState.ANSWERED:d}, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )


def open_budget(kind: BudgetKind, number: int, tokens: int | None, usd: Decimal | None) -> Tx[str]:
    name = f"{kind}:{number}"
    yield (
        "INSERT INTO purses(name, kind, tokens_max, usd_max) VALUES(?, ?, ?, ?) ON CONFLICT(name) DO NOTHING",
        (name, kind.value, tokens, _text(usd)),
    )
    return name


def close_budget(name: str) -> Tx[None]:
    """Of a spawn that is undone."""
    yield "DELETE FROM purses WHERE name = ?", (name,)


def open_root(now: float, policy: Policy, main: sessions.NewMain) -> Tx[int]:
    """A root session and its budget in one: a letter that comes between the two would be worked on for free."""
    opened = yield from sessions.open_session(now, main)
    if policy.budgets.has_root:
        yield from give_root(now, policy, opened)
    return opened


def give_root(now: float, policy: Policy, session_id: int) -> Tx[None]:
    """The budget of a root session; children inherit it by name."""
    del now
    budgets = policy.budgets
    name = yield from open_budget(BudgetKind.ROOT, session_id, budgets.root_tokens, budgets.root_usd)
    yield from sessions.set_budget(session_id, name)


def raise_limit(name: str, tokens: int | None, usd: Decimal | None) -> Tx[None]:
    """A user raised the budget. Without a figure: as much again."""
    (purse,) = [budget_of(row) for row in (yield _SELECT, ([name],))]
    now = raised(purse, tokens, usd)
    yield (
        "UPDATE purses SET tokens_max = ?, usd_max = ?, warned = 0 WHERE name = ?",
        (now.tokens_max, _text(now.usd_max), name),
    )


def set_limit(name: str, tokens: int | None, usd: Decimal | None) -> Tx[None]:
    """Of a budget whose config has changed. What is spent stays spent."""
    yield (
        "UPDATE purses SET tokens_max = ?, usd_max = ?, warned = 0 WHERE name = ?",
        (tokens, _text(usd), name),
    )


# ---- budgets as rows ----------------------------------------------------------------------------------

_SELECT = f"SELECT {BUDGET_COLUMNS} FROM purses WHERE name {{any}} ORDER BY name {{lock}}"  # noqa: S608 (constant columns)


def chain(session: StepRow) -> Tx[list[Budget]]:
    """Locked: what a new child of this session may draw on."""
    if not session.purses:
        return []
    return [budget_of(row) for row in (yield _SELECT, (session.purses.split(),))]


def _lock(policy: Policy, session: StepRow, at: float) -> Tx[list[Budget]]:
    """`at`: the moment of the reservation, which names the day."""
    names = session.purses.split()
    if policy.budgets.has_day:
        names.append((yield from _open_day(policy.budgets, at)))
    return [budget_of(row) for row in (yield _SELECT, (names,))]


def _open_day(budgets: Budgets, at: float) -> Tx[str]:
    name = day_name(at)
    yield (
        "INSERT INTO purses(name, kind, tokens_max, usd_max) VALUES(?, 'day', ?, ?) ON CONFLICT(name) DO NOTHING",
        (name, budgets.day_tokens, _text(budgets.day_usd)),
    )
    return name


def _charge(now: float, policy: Policy, session: StepRow, cost: Amount | None) -> Tx[None]:
    """`cost` None: it is not known, so what was reserved is charged."""
    rows = yield (
        f"SELECT call_no, at, reserved_tokens, reserved_usd FROM usage WHERE {_OPEN}",  # noqa: S608 (as above)
        (session.id, session.id),
    )
    if not rows:
        return
    call_no, at, tokens, usd = rows[0]
    settled = budget.settle((yield from _lock(policy, session, at)), Amount(tokens, money(usd)), cost)
    yield from _save(settled.purses)
    for purse in settled.warnings:
        note = prompts.budget_note(budget.used_percent(purse), announce.whose_budget(purse.name))
        key = f"budget:{purse.name}:{session.id}:{call_no}"
        yield from inbox.insert(now, session.id, key, LetterKind.NOTE, note)


def _save(purses: Sequence[Budget]) -> Tx[None]:
    yield (
        "UPDATE purses SET tokens_spent = ?, tokens_reserved = ?, usd_spent = ?, usd_reserved = ?,"
        " unpriced_calls = ?, warned = ? WHERE name = ?",
        ManyRows(
            (
                purse.tokens_spent, purse.tokens_reserved, str(purse.usd_spent), str(purse.usd_reserved),
                purse.unpriced_calls, int(purse.warned), purse.name,
            )
            for purse in purses
        ),
    )  # fmt: skip


def _text(usd: Decimal | None) -> str | None:
    return None if usd is None else format(usd, "f")
