"""Marks on the types of `api/objects.py`: what their JSON schemas say beyond the type; and the object of an error."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, NotRequired, TypeAlias

from typing_extensions import TypedDict

from clutch.core.checks import CheckState
from clutch.core.diagnosis import Gate
from clutch.core.fair_share import Priority
from clutch.core.forecast import Basis
from clutch.core.model import Delivery, DeliveryStatus, Outcome, Path, Phase, TaskStatus, Thinking
from clutch.core.spawn import Context, Mode
from clutch.core.status import Activity, TaskGroup


class EnumText:
    """Marks a text that is a value of an enum: its schema refers to the enum."""

    def __init__(self, values: type[StrEnum]) -> None:
        self._values = values

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return handler.generate_schema(self._values)


class SchemaNote:
    """Adds keywords, such as `description`, to the schema of a field."""

    def __init__(self, **keywords: Any) -> None:
        self._keywords = keywords

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return {**handler(core), **self._keywords}


ActivityName: TypeAlias = Annotated[str, EnumText(Activity)]
CheckStateName: TypeAlias = Annotated[str, EnumText(CheckState)]
GroupName: TypeAlias = Annotated[str, EnumText(TaskGroup)]
PhaseName: TypeAlias = Annotated[str, EnumText(Phase)]
StatusName: TypeAlias = Annotated[str, EnumText(TaskStatus)]
PriorityName: TypeAlias = Annotated[str, EnumText(Priority)]
MaybeStatus: TypeAlias = StatusName | None
DeliveryStatusName: TypeAlias = Annotated[str, EnumText(DeliveryStatus)]
OutcomeName: TypeAlias = Annotated[str, EnumText(Outcome)]
MaybeOutcome: TypeAlias = OutcomeName | None
DeliveryName: TypeAlias = Annotated[str, EnumText(Delivery)]
PathName: TypeAlias = Annotated[str, EnumText(Path)]
GateName: TypeAlias = Annotated[str, EnumText(Gate)]
ThinkingName: TypeAlias = Annotated[str, EnumText(Thinking)]
ModeName: TypeAlias = Annotated[str, EnumText(Mode)]
BasisName: TypeAlias = Annotated[str, EnumText(Basis)]
ContextName: TypeAlias = Annotated[str, EnumText(Context)]
#: A text that is left out when there is none.
MaybeText: TypeAlias = Annotated[str | None, SchemaNote(default=None)]


class SaidObject(TypedDict):
    code: str
    message: str
    field: NotRequired[MaybeText]
    rule: NotRequired[MaybeText]
    remedy: NotRequired[MaybeText]
    candidates: NotRequired[Annotated[list[str], SchemaNote(default=[])]]
    retryAfterSeconds: NotRequired[Annotated[float | None, SchemaNote(default=None)]]


class ProblemAnswer(TypedDict):
    error: SaidObject
