"""Which decisions an item of the inbox takes, who may take them, and what each does. Every surface asks here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from clutch.core.authority import Scope
from clutch.core.budget import Budget, raised
from clutch.core.model import TaskStatus
from clutch.core.text.format import counted, money
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


# --------------------------------------------------------------------------------------------------
# What a decision does, in one sentence: shown beside the buttons of every item of the inbox.


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """Who asks, as far as the effect of a decision depends on it."""

    is_task: bool = False  #: False: a main agent, or the gateway
    runtime: str | None = None  #: another program makes the call; None: the tools of the gateway
    directory: str | None = None  #: where an approved command starts; None: it is no command
    is_sandboxed: bool | None = None  #: None: not known
    others: int = 0  #: further open questions of the same run, which resumes with the last answer
    budget: Budget | None = None
    rejections: int = 0  #: of earlier plans
    rejections_max: int | None = None  #: after which one ends the task; None: not known

    @property
    def name(self) -> str:
        return "the subagent" if self.is_task else "the agent"


def consequences(
    kind: QuestionKind, detail: Mapping[str, Any], asker: DecisionContext
) -> dict[Decision, str]:
    match kind:
        case QuestionKind.PLAN:
            return _of_plan(asker)
        case QuestionKind.BUDGET:
            return _of_budget(asker)
        case QuestionKind.QUESTION:
            return _of_question(asker)
        case QuestionKind.APPROVAL if "mcpServer" in detail:
            return {
                Decision.APPROVE: "Approving offers the tool, as shown here, to all agents from their next turn on.",
                Decision.REJECT: "Rejecting withholds the tool. You are asked again when its definition changes.",
            }
        case QuestionKind.APPROVAL if "file" in detail:
            return {
                Decision.APPROVE: "Approving lets agents use the file, as shown here, from their next turn on.",
                Decision.REJECT: "Rejecting leaves the file without effect. You are asked again when it changes.",
            }
        case QuestionKind.APPROVAL:
            return _of_call(asker)


def _of_call(asker: DecisionContext) -> dict[Decision, str]:
    if asker.runtime is not None:
        approve = f"Approving lets {asker.runtime} make this call once"
    elif asker.directory is not None:
        sandbox = {True: ", in the sandbox", False: ", without a sandbox", None: ""}[asker.is_sandboxed]
        approve = f"Approving runs this command once, in {asker.directory}{sandbox}"
    else:
        approve = "Approving makes this call once"
    return {
        Decision.APPROVE: f"{approve}{_when(asker)}.",
        Decision.REJECT: f"Rejecting lets {asker.name} continue without it. It reads your comment.",
    }


def _when(asker: DecisionContext) -> str:
    """No call of an answer starts before the last of them is decided."""
    if not asker.others:
        return ""
    decided = "is decided" if asker.others == 1 else "are decided"
    return f", after {counted(asker.others, 'other item')} of the same run {decided}"


def _of_question(asker: DecisionContext) -> dict[Decision, str]:
    return {
        Decision.ANSWER: f"Answering lets {asker.name} continue with your text{_when(asker)}.",
        Decision.REJECT: f"Rejecting lets {asker.name} continue without an answer. It reads your comment.",
    }


def _of_budget(asker: DecisionContext) -> dict[Decision, str]:
    ends = "ends the task as failed" if asker.is_task else "ends this turn of the agent with an error"
    more = "" if asker.budget is None else f" from {_limit(asker.budget)} to {_limit(raised(asker.budget))}"
    return {
        Decision.APPROVE: f"Approving raises the limit{more} and resumes every task that waits for this budget.",
        Decision.REJECT: f"Rejecting {ends}: the budget is exhausted.",
    }


def _limit(budget: Budget) -> str:
    parts = [] if budget.tokens_max is None else [f"{budget.tokens_max:,} tokens"]
    return " and ".join(parts if budget.usd_max is None else [*parts, money(budget.usd_max)])


def _of_plan(asker: DecisionContext) -> dict[Decision, str]:
    match asker.rejections_max:
        case None:
            then = ""
        case most if asker.rejections < most:
            then = f"; {asker.name} writes a new plan (rejection {asker.rejections + 1} of {most})"
        case _:
            then = " and ends the task as failed"
    return {
        Decision.APPROVE: f"Approving lets {asker.name} carry out the plan with all its tools."
        " Its time limit starts again.",
        Decision.REJECT: f"Rejecting needs a reason{then}.",
    }
