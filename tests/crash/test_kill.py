"""The short form of `make trust`'s kills: real processes die, stories go on, nothing is lost or doubled."""

from __future__ import annotations

import pytest

from tests.trust.kills.bugs import EARLY_ANSWER, REPLAYED_EFFECTS, SECOND_LETTER, TWO_TRANSACTIONS
from tests.trust.kills.points import POINTS, VARIABLE, Points
from tests.trust.kills.series import Total, Wish, run_kills

pytestmark = pytest.mark.slow


def test_a_process_killed_at_any_named_point_loses_nothing_and_repeats_no_effect() -> None:
    total = run_kills(Wish(kills=1, seed=1, processes=1, backends=["sqlite"], per_point=1))
    assert total.failures == []
    assert [point for point in POINTS if not total.by_point[point]] == []
    assert (total.lost, total.twice, total.unsafe_repeats) == (0, 0, 0)
    assert total.by_point["random"] >= 5
    assert total.in_recovery >= 5
    assert total.accepted == 19 * total.stories


def test_workers_that_share_a_postgresql_take_over_from_each_other() -> None:
    total = run_kills(Wish(kills=20, seed=2, processes=1, backends=["postgres"]))
    assert total.failures == []
    assert total.kills >= 20
    assert total.in_flight >= 5


def planted(bug: str, point: str) -> Total:
    """One story of a victim with this bug; it dies mostly at the point where that hurts."""
    return run_kills(
        Wish(
            kills=1_000,
            seed=3,
            processes=1,
            backends=["sqlite"],
            plant=bug,
            stories_max=2,
            only=(point,),
            life_max_s=3,
        )
    )


def test_a_task_that_is_accepted_before_it_is_written_is_seen_to_get_lost() -> None:
    total = planted(EARLY_ANSWER, "model:asked")
    assert total.lost > 0
    assert "was accepted and is gone" in total.failures[0]


def test_a_result_announced_in_a_second_transaction_is_seen_to_get_lost() -> None:
    total = planted(TWO_TRANSACTIONS, "after:finish")
    assert total.lost > 0
    assert "was never shown" in total.failures[0]


def test_a_result_told_by_two_letters_is_seen() -> None:
    assert planted(SECOND_LETTER, "after:begin").twice > 0


def test_an_effect_that_a_restart_repeats_is_seen() -> None:
    assert planted(REPLAYED_EFFECTS, "tool:done").unsafe_repeats > 0


def test_a_point_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "after:lunch:1")
    with pytest.raises(ValueError, match="no crash point 'after:lunch'"):
        Points.from_environment()
