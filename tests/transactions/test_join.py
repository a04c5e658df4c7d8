"""No lost and no double wake-up at a join, in any interleaving; and the exploration has teeth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from clutch.store.transaction import Statement, Tx
from clutch.transactions import delivery, inbox, sessions
from tests.transactions.joins import A, Broken, R, Story, explored
from tests.trust.mutants.statements import answering_only, tampered


@pytest.mark.slow(5)
@pytest.mark.scenario(104)
def test_sleeping_parents_are_woken_exactly_once_whatever_happens_first_and_whoever_dies() -> None:
    explorer = explored(Story(frozenset({R, A}), crashes=1))
    assert explorer.states > 3_000
    assert explorer.moves > 8_000
    assert explorer.ends > 1


@pytest.mark.parametrize("sleeps", [{R, A}, {R}, {A}, set()])
def test_every_order_of_yield_and_completion_tells_everything_once(sleeps: set[int]) -> None:
    """Whoever does not sleep has ended its turn while children work."""
    explorer = explored(Story(frozenset(sleeps), crashes=0))
    assert explorer.states > 400
    assert explorer.ends > 1


def _born_seen(sql: str, parameters: Any) -> Statement:
    return sql, (*parameters[:-1], 1)


def _nobody_works(session_id: int) -> Tx[int]:
    del session_id
    yield from ()
    return 0


@pytest.fixture(params=["lost wake-up", "early wake-up", "double wake-up"])
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A planted bug, and the words in which it must be found."""
    match request.param:
        case "lost wake-up":
            monkeypatch.setattr(inbox, "announce", tampered(inbox.announce, say=_born_seen, hints=False))
            yield "left behind"
        case "early wake-up":
            monkeypatch.setattr(sessions, "working", _nobody_works)
            yield "woken too early"
        case _:
            monkeypatch.setattr(delivery, "_mark", answering_only(delivery._mark))
            yield "told 2 times|in a circle"


def test_planted_bug_of_the_join_is_found_with_the_moves_that_lead_to_it(broken: str) -> None:
    with pytest.raises(Broken, match=broken) as found:
        explored(Story(frozenset({R, A}), crashes=0))
    assert "step R" in str(found.value)
