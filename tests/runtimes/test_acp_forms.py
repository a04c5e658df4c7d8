"""Forms of external agents as questions: what is asked, and how an answer becomes a value."""

from __future__ import annotations

from typing import Any

import pytest

from clutch.runtimes.acp_forms import FIELDS_MAX, QUESTION_CHARS_MAX, fields_of, page_question

COLOURS = [{"const": "#f00", "title": "Red"}, {"const": "#00f", "title": "Blue"}]


def form(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


@pytest.mark.parametrize(
    ("schema", "choices", "answer", "value"),
    [
        ({"type": "string"}, (), "any text", "any text"),
        ({"type": "string", "oneOf": COLOURS}, ("Red", "Blue"), "Blue", "#00f"),
        ({"type": "string", "enum": ["a", "b"]}, ("a", "b"), "a", "a"),
        ({"type": "boolean"}, ("yes", "no"), "no", False),
        ({"type": "number"}, (), " 2.5 ", 2.5),
        ({"type": "array", "items": {"anyOf": COLOURS}}, (), "Red, Blue", ["#f00", "#00f"]),
    ],
)
def test_a_field_is_a_question_and_its_answer_a_value(
    schema: dict[str, Any], choices: tuple[str, ...], answer: str, value: Any
) -> None:
    (field,) = fields_of(form(one=schema)) or ()
    asked = field.question("Paint?")
    assert asked.choices == choices
    assert asked.question.startswith("Paint?\none")
    assert field.value(answer) == value


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"type": "integer"}, "2.5"),
        ({"type": "array", "items": {"enum": ["a"]}}, "a, z"),
        ({"type": "number"}, "x"),
        ({"type": "number"}, "nan"),
    ],
)
def test_an_answer_that_is_no_value_says_the_rule(schema: dict[str, Any], answer: str) -> None:
    (field,) = fields_of(form(one=schema)) or ()
    with pytest.raises(ValueError, match=r"must be|none of"):
        field.value(answer)


def test_optional_fields_are_asked_only_where_no_other_is() -> None:
    text = {"type": "string"}
    assert [one.name for one in fields_of(form("b", a=text, b=text)) or ()] == ["b"]
    assert [one.name for one in fields_of(form(a=text, b=text)) or ()] == ["a", "b"]
    assert fields_of(form(a={"type": "object"})) is None
    assert fields_of(form(**{f"f{place}": text for place in range(FIELDS_MAX + 1)})) is None


def test_a_page_is_shown_with_its_whole_address() -> None:
    assert "https://example.org/a?b=c" in page_question("Connect.", "https://example.org/a?b=c").question


def test_a_long_message_hides_nothing_of_what_is_asked_below_it() -> None:
    (field,) = fields_of(form("path", path={"type": "string", "title": "Folder to delete"})) or ()
    long = "x" * 2 * QUESTION_CHARS_MAX
    for asked in (field.question(long, "Not accepted."), page_question(long, "https://example.org/")):
        assert len(asked.question) == QUESTION_CHARS_MAX
        assert asked.question.endswith(("Folder to delete\nNot accepted.", "https://example.org/"))
