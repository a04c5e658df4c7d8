"""Forms and pages that an external agent wants from the user, as questions of the inbox. No process, no connection.

A form of the protocol is flat. Each field that must be filled in is one question with its choices, and a field that
may stay empty is not asked, unless no field must be filled in."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from clutch.ports import HumanQuestion

QUESTION_CHARS_MAX: Final = 4000
CHOICES_MAX: Final = 20  #: more are listed in the question, and typed
FIELDS_MAX: Final = 20  #: a longer form is declined: a person does not answer so many questions one by one
YES, NO = "yes", "no"
FormValue: TypeAlias = str | int | float | bool | list[str]


@dataclass(frozen=True, slots=True)
class FormField:
    """`allowed`: the values of its options by what the user reads; empty: any text of its type."""

    name: str
    kind: str  #: string, number, integer, boolean, array
    title: str
    allowed: Mapping[str, str]

    def question(self, message: str, wrong: str = "") -> HumanQuestion:
        """Return the question of this field. `wrong`: what was wrong with the last answer."""
        is_listed = self.kind == "array" or len(self.allowed) > CHOICES_MAX
        lines = [self.title if self.title != message else "", wrong]
        if is_listed:
            lines.append(f"Options, separated by commas: {', '.join(self.allowed)}")
        text = _fitted(message, "\n".join(line for line in lines if line))
        return HumanQuestion(text, () if is_listed else tuple(self.allowed))

    def value(self, text: str) -> FormValue:
        """Return the answer as the agent wants it. Raises ValueError with the rule that it breaks."""
        match self.kind:
            case "boolean":
                return text == YES
            case "integer":
                return _number(int, text, "must be a whole number")
            case "number":
                return _number(_finite, text, "must be a number")
            case "array":
                return [self._option(one.strip()) for one in text.split(",") if one.strip()]
            case _:
                return self._option(text) if self.allowed else text

    def _option(self, text: str) -> str:
        if text not in self.allowed:
            raise ValueError(f"{text[:80]!r} is none of the options")
        return self.allowed[text]


def _fitted(message: str, asked: str) -> str:
    """Return both as one text. A long message is cut, and not what the user agrees to below it."""
    asked = asked[:QUESTION_CHARS_MAX]
    return "\n".join(filter(None, (message[: max(0, QUESTION_CHARS_MAX - len(asked) - 1)], asked)))


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("JSON has no such number")
    return number


def _number(kind: Callable[[str], int | float], text: str, rule: str) -> int | float:
    try:
        return kind(text.strip())
    except ValueError:
        raise ValueError(f"{text[:80]!r} {rule}") from None


def fields_of(schema: Mapping[str, Any]) -> Sequence[FormField] | None:
    """Return what to ask for a form. None: it has fields of a kind that no text can fill in, or too many."""
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties") or {}
    wanted = [name for name in properties if name in (schema.get("required") or ())] or list(properties)
    fields = [_field(name, properties[name]) for name in wanted]
    is_known = all(one.kind in ("string", "number", "integer", "boolean", "array") for one in fields)
    return fields if is_known and len(fields) <= FIELDS_MAX else None


def _field(name: str, schema: Mapping[str, Any]) -> FormField:
    kind = str(schema.get("type"))
    options = schema.get("items") or {} if kind == "array" else schema
    titled = options.get("oneOf") or options.get("anyOf") or ()
    allowed = {str(one["title"]): str(one["const"]) for one in titled}
    allowed = allowed or {str(one): str(one) for one in options.get("enum") or ()}
    if kind == "boolean":
        allowed = {YES: YES, NO: NO}
    shown = (schema.get("title") or name, schema.get("description"))
    return FormField(name, kind, ": ".join(one for one in shown if one), allowed)


#: What is asked where a form has no fields: whether the user agrees to its message.
CONSENT: Final = FormField("", "string", "", {"ok": "ok"})


def page_question(message: str, url: str) -> HumanQuestion:
    """Return the question for a page that the user has to open: the whole address is shown before any consent."""
    asked = f"Open this page yourself if you trust it: {json.dumps(url)[1:-1]}"
    return HumanQuestion(_fitted(message, asked), ("opened",))
