"""What a decision does, in one sentence: shown beside the buttons of every item of the inbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clutch.core.budget import Budget, raised
from clutch.core.questions import Decision, QuestionKind
from clutch.core.text.format import counted, money


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
