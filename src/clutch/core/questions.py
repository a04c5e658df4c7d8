"""Which decisions an item of the inbox takes. Every surface asks this one rule."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from clutch.core.authority import Scope
from clutch.core.model import TaskStatus
from clutch.errors import ClutchError, InvalidInput


class QuestionKind(StrEnum):
    """What the user is asked."""

    APPROVAL = "approval"  #: may this call be made?
    QUESTION = "question"  #: `ask_human`
    BUDGET = "budget"
    PLAN = "plan"  #: no row of its own: it waits in its task


def question_status(kind: QuestionKind) -> TaskStatus:
    """Return the state of a task that asks this."""
    return TaskStatus.NEEDS_ANSWER if kind is QuestionKind.QUESTION else TaskStatus.NEEDS_APPROVAL


class Decision(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"
    ANSWER = "answer"
    VOID = "void"  #: the run it belonged to was superseded, killed or timed out


_YES_OR_NO = frozenset({Decision.APPROVE, Decision.REJECT})
ALLOWED = {
    QuestionKind.APPROVAL: _YES_OR_NO,
    QuestionKind.QUESTION: frozenset({Decision.ANSWER, Decision.REJECT}),
    QuestionKind.BUDGET: _YES_OR_NO,
    QuestionKind.PLAN: _YES_OR_NO,
}


class QuestionChanged(ClutchError):
    """The question is not the one that was shown; read it again."""


@dataclass(frozen=True, slots=True)
class OpenItem:
    """An open item. `hash` stands for exactly what is shown of it."""

    kind: QuestionKind
    hash: str
    choices: tuple[str, ...] = ()


def check(item: OpenItem, decision: Decision, text: str, seen_hash: str) -> None:
    """Raise QuestionChanged for a decision about something else, InvalidInput for one that this item does not take."""
    if seen_hash != item.hash:
        raise QuestionChanged()
    allowed = ALLOWED[item.kind]
    if decision not in allowed:
        raise InvalidInput("decision", f"must be one of: {', '.join(sorted(allowed))}")
    if decision is Decision.ANSWER:
        _check_answer(text, item.choices)


def _check_answer(text: str, choices: tuple[str, ...]) -> None:
    if not text.strip():
        raise InvalidInput("text", "must not be blank: write the answer, or reject the question")
    if choices and text not in choices:
        raise InvalidInput("text", f"must be one of: {', '.join(choices)}")


# --------------------------------------------------------------------------------------------------
# Who may give commands through a channel.
#
# The people behind a channel are not the operator of the gateway: a bridge passes on what any member of a
# chat has typed. What they write in a bound thread reaches the session of that thread as a message. A slash command
# acts, so its sender must be named: by the config of the channel, or as the account to which the thread is bound.

ANYONE = "*"  #: in a list of operators: every account that can write in a bound thread of the channel

COMMANDS = frozenset({Scope.READ, Scope.WRITE})


@dataclass(frozen=True, slots=True)
class Operators:
    """Accounts of one channel that may give commands, and those that may also decide approvals."""

    operators: Collection[str] = ()
    approvers: Collection[str] = ()

    def names(self, account: str) -> bool:
        return _is_named(account, self.operators) or _is_named(account, self.approvers)

    def rights(self, account: str, bound_account: str | None) -> frozenset[Scope]:
        """The rights of commands from this account; empty: none of its commands runs.

        `bound_account`: the account of the thread's binding, None without one. A binding without an account names no
        one: a bridge that does not say who writes must be trusted as a whole, with `ANYONE`."""
        if _is_named(account, self.approvers):
            return COMMANDS | {Scope.APPROVE}
        is_bound = bool(account) and account == bound_account
        return COMMANDS if is_bound or _is_named(account, self.operators) else frozenset()


def _is_named(account: str, named: Collection[str]) -> bool:
    return ANYONE in named or (bool(account) and account in named)


def within(rights: frozenset[Scope], scopes: frozenset[Scope]) -> frozenset[Scope]:
    """The rights of a sender, as far as the token that brought the message has them."""
    return rights if Scope.ADMIN in scopes else rights & scopes
