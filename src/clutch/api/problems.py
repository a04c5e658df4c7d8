"""What went wrong, as every surface says it: `{"error": {"code", "message", "field"?, …}}` and its status.

Which exception means which code is decided here and nowhere else. What a stranger gave is never repeated
at more than a glance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clutch.api.spawn import snake
from clutch.core.questions import QuestionChanged
from clutch.core.text.format import visible
from clutch.errors import (
    AmbiguousTarget,
    ClutchError,
    ConstraintViolated,
    Draining,
    Forbidden,
    IdempotencyConflict,
    InvalidInput,
    NoGateway,
    NotFound,
    RateLimited,
    SpawnRefused,
    StateDirectoryInUse,
    StoreError,
    StoreRefused,
)
from clutch.transactions.control import AlreadyFinished, NotPossible, PlanChanged
from clutch.transactions.questions import UnknownQuestion

ECHO_CHARS_MAX = 200
MESSAGE_CHARS_MAX = 1000
DRAINING = "draining"  #: the rule of the error, by which a remote caller tells it from a failing store

STATUS: Mapping[str, int] = {
    "invalid_input": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "ambiguous": 409,
    "already_finished": 409,
    "plan_changed": 409,
    "idempotency_conflict": 409,
    "gone": 410,
    "too_large": 413,
    "wrong_host": 421,
    "rate_limited": 429,
    "internal": 500,
    "turn_failed": 502,
    "unavailable": 503,
}


class Problem(ClutchError):
    """A request that is answered with an error."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        field: str | None = None,
        rule: str | None = None,
        remedy: str | None = None,
        candidates: Sequence[str] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(visible(message, MESSAGE_CHARS_MAX))
        self.code = code
        self.field, self.rule, self.remedy = field, rule, remedy
        self.candidates, self.retry_after_s = candidates, retry_after_s

    @property
    def status(self) -> int:
        return STATUS[self.code]

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"code": self.code, "message": str(self)}
        for name, value in (("field", self.field), ("rule", self.rule)):
            if value is not None:
                said[name] = visible(value, ECHO_CHARS_MAX)
        if self.remedy is not None:  # our own text: half a command does not run
            said["remedy"] = self.remedy
        if self.candidates:
            said["candidates"] = [visible(one, ECHO_CHARS_MAX) for one in self.candidates]
        if self.retry_after_s is not None:
            said["retryAfterSeconds"] = self.retry_after_s
        return {"error": said}


def problem_of(error: ClutchError) -> Problem:
    """Return the error object of an exception."""
    message = str(error)
    match error:
        case Problem():
            return error
        case InvalidInput():
            return Problem("invalid_input", message, field=error.field, rule=error.rule)
        case NotFound():
            return Problem("not_found", message, candidates=error.candidates)
        case UnknownQuestion():
            return Problem("not_found", message)
        case AmbiguousTarget():
            return Problem("ambiguous", message, candidates=error.candidates)
        case IdempotencyConflict():
            return Problem("idempotency_conflict", message)
        case PlanChanged() | QuestionChanged():
            return Problem("plan_changed", message, remedy="read it again, then decide with its new hash")
        case AlreadyFinished():
            return Problem("already_finished", message)
        case NotPossible():
            return Problem("forbidden", message, rule="state")
        case Forbidden():
            return Problem("forbidden", message, rule=error.rule)
        case SpawnRefused():
            return Problem("forbidden", message, rule="limit")
        case RateLimited():
            return Problem("rate_limited", message, retry_after_s=round(error.retry_after_s, 1))
        case StateDirectoryInUse() | NoGateway():
            return Problem("unavailable", message, remedy=error.remedy)
        case StoreRefused() | ConstraintViolated():
            return Problem("internal", message)
        case Draining():
            return Problem("unavailable", message, rule=DRAINING, remedy="clutch drain, then ask again")
        case StoreError():
            return Problem("unavailable", message)
        case _:
            return Problem("internal", message)


def error_of(said: Mapping[str, Any]) -> ClutchError:
    """Return the exception of an error object, for a remote client: the one a local call would have raised."""
    message, rule = str(said.get("message", "")), said.get("rule")
    match said.get("code"):
        case "invalid_input":
            field = str(said.get("field", "input"))
            return InvalidInput(snake(field), rule or message.removeprefix(f"{field}: "))
        case "not_found":
            return NotFound(message, said.get("candidates", ()))
        case "ambiguous":
            return AmbiguousTarget(message, said.get("candidates", ()))
        case "plan_changed":
            return PlanChanged(message)
        case "already_finished":
            return AlreadyFinished(message)
        case "idempotency_conflict":
            return IdempotencyConflict(message)
        case "rate_limited":
            wait_s = float(said.get("retryAfterSeconds", 0))
            return RateLimited(message.partition("; try again")[0], retry_after_s=wait_s)
        case "forbidden" if rule == "state":
            return NotPossible(message)
        case "forbidden" if rule is None:
            return SpawnRefused(message, said.get("limit"))
        case "forbidden":
            return Forbidden(str(rule), message)
        case "unavailable" if rule == DRAINING:
            return Draining(message)
        case "unavailable":
            return StoreError(message)
        case _:
            return ClutchError(message)
