"""The simulation has teeth: bugs planted in the product are found, by a promise and not by an exception."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clutch.testing.invariants.checker import all_names
from clutch.transactions import inbox
from tests.trust.mutants import hunt as hunt_module
from tests.trust.mutants.hunt import Found, NotFound, hunt
from tests.trust.mutants.mutant import Mutant, TargetGone, locate, mutants, planted

#: one for each part of the product; `make trust` hunts all of them
SAMPLE = (
    "children_not_counted",
    "no_deferral",
    "no_fence_check",
    "release_forgets_mail",
    "kill_without_cascade",
    "senders_not_stepped",
    "twin_spawn",
    "unsafe_tool_runs_again",
    "children_locked_first",
    "limit_of_a_purse_not_asked",
    "call_before_its_row",
    "approval_not_waited_for",
    "undone_spawn_keeps_its_session",
)


@pytest.mark.parametrize("name", mutants())
def test_the_target_of_every_mutant_exists_and_is_called_as_the_mutant_thinks(name: str) -> None:
    with planted(mutants()[name]):
        assert all(callable(locate(target)[2]) for target in mutants()[name].targets)


def test_there_are_enough_mutants_and_each_says_who_must_find_it() -> None:
    assert len(mutants()) >= 80
    assert all(mutant.expected and mutant.expected <= all_names() for mutant in mutants().values())


@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_bug_is_found(name: str) -> None:
    found = hunt(mutants()[name])
    assert isinstance(found, Found), found
    assert found.found_by in mutants()[name].expected


def test_a_mutant_without_a_bug_is_not_found() -> None:
    harmless = Mutant(
        "harmless",
        ("clutch.transactions.inbox.post",),
        frozenset({"N12"}),
        ("calm",),
        lambda post: (post,),
        "nothing is changed",
    )
    assert isinstance(hunt(harmless, worlds_max=1), NotFound)


def test_a_mutant_that_breaks_by_an_exception_is_not_found_whatever_follows_from_it() -> None:
    def breaks(post: Any) -> tuple[Any, ...]:
        del post
        return (lambda now, session_id, idem, kind, body, route="": 1 / 0,)

    broken = replace(mutants()["words_lost"], expected=frozenset(all_names()), worlds=("busy",), plant=breaks)
    ended = hunt(broken, worlds_max=1)
    assert isinstance(ended, NotFound)
    assert "ZeroDivisionError" in ended.why


def test_a_world_that_fails_by_itself_finds_no_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunt_module, "_is_sound", lambda seed, world: False)
    ended = hunt(mutants()["children_not_counted"])
    assert isinstance(ended, NotFound)
    assert "without it, too" in ended.why


def test_a_bug_is_gone_after_the_hunt() -> None:
    before = inbox.announce
    with planted(mutants()["lost_wake_up_at_a_join"]):
        assert inbox.announce is not before
    assert inbox.announce is before


def test_a_mutant_that_takes_other_arguments_than_its_target_is_an_error() -> None:
    disarmed = replace(mutants()["words_lost"], plant=lambda post: (lambda now: [now, post],))
    with pytest.raises(TargetGone, match="takes other arguments"), planted(disarmed):
        pass


def test_a_mutant_whose_target_is_gone_is_an_error() -> None:
    with pytest.raises(TargetGone, match="no_such_function"):
        locate("clutch.transactions.inbox.no_such_function")


def test_a_hunt_that_the_time_limit_ends_says_so() -> None:
    ended = hunt(mutants()["children_not_counted"], until=0.0)
    assert isinstance(ended, NotFound)
    assert (ended.why, ended.seeds) == (hunt_module.CUT, 0)
