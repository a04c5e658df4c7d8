"""`/queue`: what is written is what applies, and what is wrong is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.delivery import DEFAULT, USAGE, applied, parse
from clutch.core.policy import Announcing, Drop, QueueMode

RULES = Announcing(mode=QueueMode.COLLECT, debounce_s=3.0, cap=7, drop=Drop.OLD)


@given(
    st.sampled_from(QueueMode),
    st.one_of(st.none(), st.integers(0, 60)),
    st.one_of(st.none(), st.integers(1, 1000)),
    st.one_of(st.none(), st.sampled_from(Drop)),
)
def test_what_was_said_applies_and_the_rest_stays_as_configured(
    mode: QueueMode, debounce: int | None, cap: int | None, drop: Drop | None
) -> None:
    words = [
        mode.value,
        *([] if debounce is None else [f"debounce:{debounce}s"]),
        *([] if cap is None else [f"cap:{cap}"]),
        *([] if drop is None else [f"drop:{drop}"]),
    ]
    got = applied(RULES, parse(" ".join(words)))
    assert got.mode is mode
    assert got.debounce_s == (3.0 if debounce is None else debounce)
    assert got.cap == (7 if cap is None else cap)
    assert got.drop is (Drop.OLD if drop is None else drop)
    assert got.until_s == RULES.until_s


def test_direct_is_another_word_for_followup() -> None:
    assert applied(RULES, parse("direct")).mode is QueueMode.FOLLOWUP


def test_default_takes_the_own_way_back() -> None:
    assert parse(DEFAULT) is None
    assert applied(RULES, None) is RULES


def test_debounce_is_a_duration() -> None:
    assert applied(RULES, parse("collect debounce:250ms")).debounce_s == 0.25
    assert applied(RULES, parse("collect debounce:1.5m")).debounce_s == 90.0


@pytest.mark.parametrize(
    "words",
    [
        "", "fast", "COLLECT", "collect debounce:2", "collect debounce:-1s", "collect debounce:2h", "collect cap:0",
        "collect cap:1001", "collect cap:x", "collect cap:\u0663", "collect drop:all", "collect drop", "default cap:3",
        "collect debounce:61m", "collect mode:steer",
    ],
)  # fmt: skip
def test_wrong_words_are_refused_with_the_usage(words: str) -> None:
    with pytest.raises(ValueError, match="Usage") as caught:
        parse(words)
    assert USAGE in str(caught.value)
