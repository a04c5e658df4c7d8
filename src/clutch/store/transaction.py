"""The interface of the database: what a transaction looks like and how it is run. Types only, no I/O.

A transaction is a generator `fn(now, *args)` that yields statements and is sent their rows:

    def rename(now: float, session: int, name: str) -> Tx[bool]:
        rows = yield "SELECT closed FROM sessions WHERE id = ? {lock}", (session,)
        if not rows:
            raise Refused(session)                  # before the first write: nothing to undo
        yield "UPDATE sessions SET name = ? WHERE id = ?", (name, session)
        yield HINT, ("renamed", session)            # sent to listeners after the commit
        return True

The same text runs on SQLite and PostgreSQL:
- `?` is a placeholder. Rows are tuples of int, float, str, bytes and None; a truth value is 0 or 1.
- `column {any}` takes one list parameter (ints or texts): the rows whose column is in the list.
- `{lock}` locks the selected rows till the end, `{skip}` also leaves out rows that others have locked, `{keep}` keeps
  others only from deleting or locking them: a heartbeat must not wait for a claim of its own worker.
- `{joined}(text, ',')` is one text of all rows.
- `yield sql, Many(rows)` runs one statement for many parameter rows and answers ().
- A SELECT, or a statement with RETURNING, answers its rows; any other answers ().
- PostgreSQL must know a parameter's type. Where no column tells it, say it: `CAST(? AS {big})`, `{float}`,
  `{text}` or `{blob}`. Needed in `? IS NULL`, in `SELECT ?`, in `? + ?`, in `CASE … THEN ?` without a column
  beside it. It is strict about it, too: no int for a text, no float for a {big}.
- A condition is a comparison (`flag = 1`, not `flag`). LIKE heeds case on PostgreSQL only: avoid it.
- Text cannot hold a NUL character or half a surrogate pair: StoreError, on both.

`now` is one value for a whole batch. A failed statement ends the transaction; it cannot be caught inside.
Rules for the writer of transactions:
- A transaction may be started again from the beginning: no effect outside the yields.
- Inside a batch there is no isolation: statements of neighbours run between yours. What two transactions must not
  do at once, they do under the same key: two that share a key never run beside each other.
- Lock first, compute in a second statement: one that waited for a lock sees older rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

Row: TypeAlias = tuple[Any, ...]


class ManyRows(list[Row]):
    """Parameter rows of one statement that runs once for each; answers ()."""


#: in the place of a statement: what follows is a hint, sent to listeners once the commit is durable.
#: A hint is a tuple of texts and numbers, so that equal ones are sent once and other processes can read it.
HINT: Final = None

#: the hint that stands for hints too many to carry or lost with a connection: look at the tables yourself
LOOK: Final = ("look",)

Statement: TypeAlias = tuple[str | None, Any]
Tx: TypeAlias = Generator[Statement, Sequence[Row], T]
TxFunction: TypeAlias = Callable[Concatenate[float, P], Tx[T]]
Listener: TypeAlias = Callable[[Sequence[Any]], None]
Keys: TypeAlias = int | tuple[int, ...]


@dataclass(slots=True)
class DatabaseStats:
    """Counters since the store was opened. `by_function` has [transactions, statements] per name."""

    transactions: int = 0
    statements: int = 0
    commits: int = 0
    batches: int = 0
    redone: int = 0
    batch_s: float = 0.0  #: from the first statement to durable, all batches together
    by_function: dict[str, list[int]] = field(default_factory=dict)

    def count(self, function: str, statements: int) -> None:
        self.transactions += 1
        self.statements += statements
        counters = self.by_function.setdefault(function, [0, 0])
        counters[0] += 1
        counters[1] += statements


class Database(Protocol):
    @property
    def stats(self) -> DatabaseStats: ...

    async def tx(self, keys: Keys, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run with others in one commit; returns when it is durable. `keys` are the sessions it writes.

        Transactions that share a key run in the order they came. A caller that is cancelled while it waits
        takes its transaction back only if that has not begun."""
        ...

    async def alone(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run isolated from all others: for what writes several sessions."""
        ...

    async def read(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run on a reader: one snapshot, no writes, beside the writer. A caller that is cancelled ends the query."""
        ...

    async def urgent(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one statement that may run twice, and that no other transaction of this process delays."""
        ...

    def listen(self, callback: Listener) -> None:
        """Call with the hints of every commit, equal ones once, on the event loop."""
        ...

    @property
    def is_hearing(self) -> bool:
        """Whether hints of other processes arrive, as was proven just now: then it is enough to look rarely."""
        ...

    async def close(self) -> None:
        """Finish what is waiting, then close the database."""
        ...


# --------------------------------------------------------------------------------------------------
# How one run of a transaction ended.


@dataclass(slots=True)
class TransactionOutcome:
    """How one run of a transaction ended: a value, or the error for its caller."""

    value: Any = None
    error: Exception | None = None
    hints: list[Any] = field(default_factory=list)
    statements: int = 0


class Spoiled(Exception):
    """A transaction failed after it wrote, so its batch cannot be committed. `cause` is for its caller."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause
