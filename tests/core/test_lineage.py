"""Depth and parents from what each one says of its parent: whatever they say, it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.ids import ancestors, depth, untangled

NAMES = st.sampled_from("abcdefgh")
CLAIMS = st.dictionaries(NAMES, NAMES)


@pytest.mark.scenario(25)
def test_depth_is_the_length_of_the_chain() -> None:
    said = {"grandchild": "child", "child": "main"}
    assert depth("grandchild", said) == 2
    assert ancestors("grandchild", said) == ("child", "main")
    assert depth("main", said) == 0


@pytest.mark.scenario(25)
@pytest.mark.parametrize("said", [{"a": "a"}, {"a": "b", "b": "a"}, {"x": "a", "a": "b", "b": "c", "c": "a"}])
def test_a_chain_that_runs_in_a_circle_ends(said: dict[str, str]) -> None:
    for name in said:
        assert depth(name, said) < len(said)
        assert name not in ancestors(name, untangled(said))


@given(CLAIMS)
def test_untangled_has_no_circle_and_loses_nothing_else(said: dict[str, str]) -> None:
    kept = untangled(said)
    assert kept.items() <= said.items()
    for name in said:
        assert name not in ancestors(name, kept)
        if name not in kept:
            assert said[name] == name or name in ancestors(said[name], kept)


@given(CLAIMS)
def test_without_a_circle_nothing_changes(said: dict[str, str]) -> None:
    upward = {name: parent for name, parent in said.items() if parent < name}
    assert untangled(upward) == upward
