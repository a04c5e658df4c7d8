"""A transcript as others may read it: bounded, redacted, newest kept, and honest about what is missing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from clutch.core import messages
from clutch.core.messages import Answer, Call, Entry, Input, Result, Results, Summary
from clutch.core.redaction import MARK, redact
from clutch.core.views import OVERHEAD, RESULTS_MAX, History, HistoryLimits, Stored, history, of_result

RULES = HistoryLimits()


def stored(*entries: Entry, first: int = 1) -> list[Stored]:
    bodies = [(messages.kind(entry), messages.dump(entry)) for entry in entries]
    return [Stored(seq, 1.0, kind, len(body), body) for seq, (kind, body) in enumerate(bodies, start=first)]


def shown(
    *entries: Entry, with_tools: bool = False, is_more: bool = False, rules: HistoryLimits = RULES
) -> History:
    return history(stored(*entries), rules, with_tools=with_tools, is_more=is_more)


TALK = (
    Input("do it", "task"),
    Answer("I look", (Call("read", {"path": "a.txt"}),)),
    Results((Result(0, "read", "contents", failed=True),)),
    Answer("", (Call("shell", {"command": "ls"}),)),
    Results((Result(0, "shell", "files"),)),
    Summary("in short", 3),
    Answer("done"),
)


def test_without_tools_only_words_are_shown() -> None:
    assert [(said.kind, said.text) for said in shown(*TALK).entries] == [
        ("input", "do it"), ("answer", "I look"), ("summary", "in short"), ("answer", "done"),
    ]  # fmt: skip


def test_with_tools_calls_and_results_are_shown() -> None:
    entries = shown(*TALK, with_tools=True).entries
    assert entries[1].calls == ("read(a.txt)",)
    assert (entries[2].source, entries[2].text, entries[2].is_failed) == ("read", "contents", True)
    assert entries[3].calls == ("shell(ls)",)


def test_a_long_text_is_cut_and_says_so() -> None:
    found = shown(Answer("x" * 5000))
    assert found.is_cut
    assert (
        found.entries[0].text == "x" * 4000 + "… [5000 characters in all; continue with before=2 offset=4000]"
    )
    assert found.entries[0].next_offset == 4000


def test_secrets_are_taken_out_of_words_arguments_and_results_also_across_a_cut() -> None:
    secret = "sk-abcdefghijklmnop0123456789"
    found = shown(
        Answer("y" * 3990 + " " + secret, (Call("shell", {"command": f"curl -H {secret}"}),)),
        Results((Result(0, "shell", f"token={secret}"),)),
        with_tools=True,
    )
    assert found.is_redacted
    assert not any(
        "sk-abc" in said.text or any("sk-abc" in call for call in said.calls) for said in found.entries
    )
    assert MARK in found.entries[1].text


def test_an_entry_too_long_to_load_is_a_placeholder() -> None:
    found = history([Stored(7, 1.0, "results", 5 * 2**20, None)], RULES, with_tools=True, is_more=False)
    assert found.entries[0].text == "[results of 5 MiB: too long to be shown]"
    assert found.is_cut


def test_the_oldest_are_dropped_and_paging_goes_on_where_they_are() -> None:
    many = [Answer(f"{number}" + "z" * 3900) for number in range(1, 41)]
    found = shown(*many)
    assert found.is_dropped
    assert found.entries[-1].text.startswith("40")
    assert found.before == found.entries[0].seq
    assert sum(said.bytes for said in found.entries) <= RULES.bytes_max


def test_older_ones_that_were_not_asked_for_are_found_before_the_first() -> None:
    assert shown(Answer("a"), is_more=True).before == 1
    assert shown(Answer("a")).before is None
    assert shown() == History()


def test_many_results_of_one_answer_share_the_room_of_one_look() -> None:
    results = Results(tuple(Result(place, "read", "ü" * 9000) for place in range(60)))
    found = shown(results, with_tools=True)
    assert len(found.entries) == RESULTS_MAX + 1
    assert found.entries[-1].text == "[and 40 more results]"
    assert sum(said.bytes for said in found.entries) <= RULES.bytes_max + RESULTS_MAX * OVERHEAD


LONG_KEY = (
    f"-----BEGIN PRIVATE KEY-----{'Q' * 4048}-----END PRIVATE KEY-----"  # is much shorter without its secret
)


@given(
    st.lists(st.text(max_size=40) | st.sampled_from(["ü" * 50, " token=abcdefgh ", LONG_KEY]), max_size=12)
)
@example([LONG_KEY, f" ghp_{'Z' * 36}"])
def test_a_long_text_read_in_pieces_is_the_whole_text_without_its_secrets(parts: list[str]) -> None:
    text = "x".join(parts)
    rules, read, offset = replace(RULES, text_chars_max=30), "", 0
    while True:
        (said,) = of_result(text, 1.0, rules, offset).entries
        if said.next_offset is None:
            break
        assert said.next_offset > offset, "every piece leads on"
        read, offset = read + said.text[: said.next_offset - offset], said.next_offset
    assert read + said.text == redact(text).text


texts = st.text(max_size=30) | st.sampled_from(["ü" * 6000, "x" * 90_000, "token=abcdefgh"])
entries = st.lists(
    st.builds(Input, texts, st.just("user"))
    | st.builds(Answer, texts)
    | st.builds(
        Results, st.lists(st.builds(Result, st.just(0), st.just("t"), texts), max_size=30).map(tuple)
    ),
    max_size=12,
)


@given(entries, st.booleans())
def test_whatever_was_said_one_look_stays_within_its_bounds(said: list[Entry], with_tools: bool) -> None:
    found = shown(*said, with_tools=with_tools)
    assert sum(one.bytes for one in found.entries) <= RULES.bytes_max + 64 * OVERHEAD
    assert all(len(one.text) <= RULES.text_chars_max + 100 for one in found.entries)
    assert [one.seq for one in found.entries] == sorted(one.seq for one in found.entries)
