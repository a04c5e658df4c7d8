"""How one run of a transaction ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Outcome:
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
