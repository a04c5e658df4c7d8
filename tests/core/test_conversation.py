"""Conversations that are known by their history."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clutch.core.session_tools import ConversationMessage, digest, introduced

TEXTS = st.text(max_size=20).map(str.strip)
LINES = st.lists(st.builds(ConversationMessage, st.sampled_from(["user", "assistant"]), TEXTS), max_size=6)
OWNERS = st.sampled_from(["ada\nmain", "bob\nmain"])


@given(OWNERS, LINES, OWNERS, LINES)
def test_two_histories_have_one_name_only_if_they_are_the_same(
    owner: str, lines: list[ConversationMessage], other: str, others: list[ConversationMessage]
) -> None:
    padded = [line._replace(text=f" {line.text}\n") for line in lines]
    assert digest(owner, padded) == digest(owner, lines)
    assert (digest(owner, lines) == digest(other, others)) is ((owner, lines) == (other, others))


@given(LINES, st.text(max_size=50), st.integers(0, 400))
def test_what_was_said_before_never_makes_a_message_too_long(
    lines: list[ConversationMessage], text: str, room: int
) -> None:
    bytes_max = len(text.encode()) + room
    said = introduced(lines, text, bytes_max)
    assert said.endswith(text)
    assert len(said.encode()) <= bytes_max


def test_the_newest_lines_are_kept() -> None:
    lines = [
        ConversationMessage("user", "old" * 50),
        ConversationMessage("assistant", "answer"),
        ConversationMessage("user", "new"),
    ]
    assert introduced(lines, "now", 10_000).splitlines()[1:4] == [
        "user: " + "old" * 50,
        "assistant: answer",
        "user: new",
    ]
    shorter = introduced(lines, "now", 200)
    assert "assistant: answer\nuser: new" in shorter
    assert "old" not in shorter
