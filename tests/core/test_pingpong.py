"""Two agents that write to each other stop in time, and no chain of messages closes a circle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.authority import Peers
from clutch.core.session_tools import Exchange, Stage, answered, begins, dump, load
from clutch.core.text.announce import peer_message
from clutch.core.text.tasks import parse_fences
from clutch.errors import InvalidInput

A, B, C = (1, "agent:a:main"), (2, "agent:b:main"), (3, "agent:c:main")
NONCE = "0" * 32


def begun(turns_max: int = 5, hops: tuple[int, ...] = ()) -> Exchange:
    exchange = begins("k", A, B, "how are you?", hops=hops, turns_max=turns_max)
    assert exchange is not None
    return exchange


def readers(exchange: Exchange, *replies: str) -> list[tuple[Stage, int]]:
    """Who reads what, as the replies come."""
    seen: list[tuple[Stage, int]] = []
    following: Exchange | None = exchange
    for reply in replies:
        if following is None:
            break
        seen.append((following.stage, following.reader_id))
        following = answered(following, reply)
    return seen if following is None else [*seen, (following.stage, following.reader_id)]


@pytest.mark.scenario(145)
@pytest.mark.parametrize("turns_max", range(6))
def test_replies_go_to_and_fro_at_most_so_often_and_then_the_target_may_tell(turns_max: int) -> None:
    to_and_fro = [(Stage.REPLY, 1 if turn % 2 else 2) for turn in range(1, turns_max + 1)]
    expected = [(Stage.REQUEST, 2), *to_and_fro, (Stage.ANNOUNCE, 2)]
    assert readers(begun(turns_max), *("fine" for _ in range(20))) == expected


@pytest.mark.scenario(145)
@pytest.mark.parametrize("last", ["REPLY_SKIP", " REPLY_SKIP\n", "", "  ", "no_reply"])
def test_a_talk_ends_when_one_has_nothing_to_add(last: str) -> None:
    seen = readers(begun(), "fine, and you?", last)
    assert seen == [(Stage.REQUEST, 2), (Stage.REPLY, 1), (Stage.ANNOUNCE, 2)]


def test_a_token_inside_a_text_is_text() -> None:
    assert readers(begun(), "I never say REPLY_SKIP")[-1] == (Stage.REPLY, 1)


def test_a_target_that_skips_at_once_may_still_tell_and_one_without_words_may_not() -> None:
    assert readers(begun(), "REPLY_SKIP") == [(Stage.REQUEST, 2), (Stage.ANNOUNCE, 2)]
    assert readers(begun(), "") == [(Stage.REQUEST, 2)]


@pytest.mark.scenario(145)
def test_nobody_writes_to_itself_back_or_round_in_a_circle() -> None:
    assert begins("k", A, A, "x") is None
    first = begun()
    assert begins("k", B, A, "x", hops=first.hops) is None, "pair"
    second = begins("k", B, C, "x", hops=first.hops)
    assert second is not None
    assert begins("k", C, A, "x", hops=second.hops) is None, "triangle"
    assert begins("k", C, B, "x", hops=second.hops) is None
    reply = answered(first, "fine")
    assert reply is not None
    assert begins("k", A, B, "x", hops=reply.hops) is None, "whoever is to reply does not also write"


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30))
def test_a_chain_of_any_shape_is_no_longer_than_there_are_sessions(edges: list[tuple[int, int]]) -> None:
    """Whoever is woken by a message sends on along any edge it likes."""
    hops: tuple[int, ...] = ()
    at, length = 0, 0
    for source, target in edges:
        if source != at:
            continue
        sent = begins("k", (source, ""), (target, ""), "x", hops=hops)
        if sent is not None:
            at, hops, length = target, sent.hops, length + 1
    assert length <= 6


def test_an_exchange_survives_being_stored() -> None:
    reply = answered(begun(hops=(7, 8)), "fine\0 \N{SNOWMAN}")
    assert reply is not None
    assert load(dump(reply)) == reply


@pytest.mark.parametrize("turns_max", [-1, 6])
def test_more_turns_than_five_are_refused_when_they_are_configured(turns_max: int) -> None:
    with pytest.raises(InvalidInput, match="0 to 5"):
        Peers(turns_max=turns_max)


@given(st.text(max_size=80))
def test_what_a_peer_wrote_is_data(said: str) -> None:
    exchange = begins("k", A, B, said)
    assert exchange is not None
    shown = peer_message(exchange, NONCE)
    assert [one.text for one in parse_fences(shown, NONCE)] == [said]
    assert shown.startswith("[Message from agent:a:main]\n")
