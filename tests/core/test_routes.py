"""Where a reply goes: captured parts stay, parts of two channels never mix, and the text gives back the route."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core import delivery
from clutch.core.delivery import RouteMode, merged
from clutch.core.model import Route

PARTS = st.one_of(st.none(), st.sampled_from(["a", "b"]))
ROUTES = st.builds(Route, st.sampled_from(["web", "terminal"]), PARTS, PARTS, PARTS)
WORDS = st.one_of(st.none(), st.text(min_size=1))
ANY_ROUTE = st.builds(Route, st.sampled_from(["web", "terminal"]), WORDS, WORDS, WORDS)


@given(ANY_ROUTE)
def test_text_of_a_route_gives_the_route_back(route: Route) -> None:
    assert delivery.from_text(delivery.to_text(route)) == route
    assert delivery.to_text(route).partition(":")[2] == delivery.target(route)


@pytest.mark.parametrize("text", ["api:agent:main:main", "terminal:x", "web:"])
def test_plain_routes_are_written_as_they_were(text: str) -> None:
    assert delivery.to_text(delivery.from_text(text)) == text


@pytest.mark.scenario(95)
def test_missing_target_is_filled_from_the_session_only_within_the_same_channel() -> None:
    captured = Route("web", "me", None)
    assert merged(captured, Route("web", "me", "room", "9")) == Route("web", "me", "room", "9")
    assert merged(captured, Route("terminal", "me", "tty1")) == captured
    assert merged(captured, Route("web", "you", "room")) == captured


@pytest.mark.scenario(95)
def test_thread_of_another_target_is_not_borrowed() -> None:
    captured = Route("web", "me", "room")
    assert merged(captured, Route("web", "me", "kitchen", "9")) == captured
    assert merged(captured, Route("web", "me", "room", "9")) == Route("web", "me", "room", "9")


@pytest.mark.scenario(201)
@given(ROUTES, ROUTES)
def test_captured_parts_are_never_replaced_and_borrowed_ones_come_from_one_route(
    captured: Route, current: Route
) -> None:
    found = merged(captured, current)
    assert found is not None
    assert found.channel == captured.channel
    borrowed = set()
    for part in ("account", "to", "thread"):
        own, got, other = getattr(captured, part), getattr(found, part), getattr(current, part)
        assert got == own if own is not None else got in (None, other)
        borrowed |= {part} if got != own else set()
    if current.channel != captured.channel:
        assert not borrowed
    if borrowed:
        assert found.account in (current.account, captured.account)
        assert captured.account in (None, current.account)
    if "thread" in borrowed:
        assert found.to == current.to


@given(st.one_of(st.none(), ROUTES))
def test_without_one_of_the_routes_the_other_stands(route: Route | None) -> None:
    assert merged(None, route) == route
    assert merged(route, None) == route


@pytest.mark.scenario(96)
def test_bound_thread_wins_over_the_hook_and_the_hook_over_the_captured_route() -> None:
    bound, hook = Route("web", None, None, "t1"), Route("mail", to="2")
    captured, current = Route("web", None, "3"), Route("terminal", to="4")

    def found(bound: Route | None, hook: Route | None, captured: Route | None = captured) -> object:
        return delivery.choose_route(bound=bound, hook=hook, captured=captured, current=current)

    assert found(bound, hook) == (Route("web", None, "3", "t1"), RouteMode.BOUND)
    assert found(None, hook) == (hook, RouteMode.HOOK)
    assert found(None, None) == (captured, RouteMode.FALLBACK)
    assert found(None, None, None) == (current, RouteMode.FALLBACK)


@pytest.mark.scenario(96)
@pytest.mark.parametrize("channel", sorted(delivery.INTERNAL_CHANNELS))
def test_hook_that_names_an_internal_channel_is_ignored(channel: str) -> None:
    captured = Route("web", to="3")
    found = delivery.choose_route(bound=None, hook=Route(channel, to="x"), captured=captured, current=None)
    assert found == (captured, RouteMode.FALLBACK)
