"""Any text is a value with places or a clear refusal; what is a value is the value that pyjson5 reads."""

from __future__ import annotations

import json
import math
from typing import Any

import pyjson5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.config.json5 import JsonNode, Unreadable, line_and_column, parse

PIECES = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    " ",
    "\n",
    "//c\n",
    "/*c*/",
    "a",
    "'b'",
    '"\\u0041"',
    "1",
    "-.5e3",
    "0x1F",
]
PIECES += [
    "true",
    "null",
    "NaN",
    "Infinity",
    "\\",
    "'",
    '"',
    "/",
    "*",
    "\ufeff",
    "é",
    "$",
    "9" * 30,
    "'\\\n'",
]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return bool(one == other) or repr(one) == repr(other)


def parsed(text: str) -> JsonNode | Unreadable:
    try:
        return parse(text)
    except Unreadable as error:
        return error


@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=25).map("".join)))
def test_any_text_is_what_pyjson5_reads_or_a_refusal_with_a_place(text: str) -> None:
    read = parsed(text)
    if isinstance(read, Unreadable):
        assert 0 <= read.at <= len(text)
        assert read.rule
    else:
        assert same(read.plain(), pyjson5.decode(text))


NUMBERS = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert same(parse(json.dumps(value)).plain(), value)


@pytest.mark.parametrize(
    ("text", "line", "column", "rule"),
    [
        ("{\n  a: 1,\n  'a': 2,\n}", 3, 3, "'a' is said twice, first in line 2"),
        ("{a: {b: [1, 2}}", 1, 14, "a comma or ] should be here, not '}'"),
        ("{\n a: 1\n b: 2}", 3, 2, "a comma or } should be here, not 'b'"),
        ("{a: yes}", 1, 5, "'yes' is no value; a text has quotes around it"),
        ("{a: 'x}\n", 1, 5, "this text has no closing quote"),
        ("{a: 1", 1, 6, "the text ends, but what was opened in line 1, column 1 lacks its }"),
        ("{a: 1} /* b", 1, 8, "this comment has no end: */ is missing"),
        ("", 1, 1, "a value is missing: the text ends here"),
        ("{a 1}", 1, 4, "a colon should follow the key 'a'"),
        ("[" * 40, 1, 34, "nests deeper than 32"),
    ],
)
def test_a_refusal_says_where_and_why(text: str, line: int, column: int, rule: str) -> None:
    with pytest.raises(Unreadable) as refused:
        parse(text)
    assert line_and_column(text, refused.value.at) == (line, column)
    assert refused.value.rule == rule
