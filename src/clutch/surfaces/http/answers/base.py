"""What all answers have in common, and the one that says what is wrong."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

Money = str | None  #: a decimal; null = not known
Moment = str  #: RFC 3339, UTC


class Answer(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)


class Said(Answer):
    code: str
    message: str
    field: str | None = None
    rule: str | None = None
    remedy: str | None = None
    candidates: list[str] = []
    retry_after_seconds: float | None = None


class ProblemAnswer(Answer):
    error: Said
