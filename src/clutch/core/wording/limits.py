"""What a model or a person is told at a bound of a run: a loop, a form, a budget."""

from __future__ import annotations

from clutch.core import keys
from clutch.core.budget import PurseKind, Refused

LOOP_NOTE = (
    "(You have made this same call several times. Its result will not change: try another way, or answer with "
    "what you have. Some more and the run is ended.)"
)
SUBMIT_RESULT = "Hand in your result in the form that was asked for. This ends the task."
SUBMIT_NOTE = (
    "Your result must be handed in with the tool `submit_result`, in the form of its schema; a text alone is not "
    "taken. Call it now. There is no second reminder."
)


def whose_budget(name: str) -> str:
    """A purse, as people know whom it belongs to."""
    kind, _, owner = name.partition(":")
    match PurseKind(kind):
        case PurseKind.TASK:
            return f"the budget of {keys.task_id(int(owner))}"
        case PurseKind.ROOT:
            return "the budget of the whole tree"
        case PurseKind.DAY:
            return f"the budget of {owner}"


def budget_used_up(refused: Refused) -> str:
    whose = whose_budget(refused.name)
    if refused.is_unpriced:
        return (
            f"budget: {whose} is in dollars and the price of this model is not known;"
            " name a model that has a price, or give the budget in tokens"
        )
    return f"budget: {whose} is used up: {refused.spent} of {refused.limit} {refused.measure}"
