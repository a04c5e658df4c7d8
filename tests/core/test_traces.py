"""Spans from recorded runs: ids that only depend on the rows, times that fit, and no content unless it is wanted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clutch.core.budget import CallState
from clutch.core.messages import Answer, Call, Entry, Input, Result, Results, Summary
from clutch.core.traces import ModelCall, RecordedEntry, RecordedRun, TraceIds, spans

CONTENT = "CONTENT"
IDS = TraceIds("one")

times = st.floats(1e9, 2e9)
words = st.just(CONTENT)
made_calls = st.lists(st.builds(Call, st.just("tool"), st.just({"a": CONTENT})), max_size=3).map(tuple)
results = st.lists(
    st.builds(Result, st.integers(0, 3), st.just("tool"), words, st.booleans()),
    max_size=3,
    unique_by=lambda one: one.index,
)
entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Input, words),
    st.builds(Answer, words, made_calls),
    st.builds(Results, results.map(tuple)),
    st.builds(Summary, words, st.just(1)),
)
model_calls = st.builds(
    ModelCall,
    call_no=st.just(0),
    at=times,
    state=st.sampled_from(list(CallState)),
    model=st.sampled_from(["openai:gpt", "offline", "runtime:acp"]),
    effective=st.none() | st.just("gpt-2026"),
    input=st.integers(0, 9),
    output=st.integers(0, 9),
    cache_read=st.just(0),
    cache_write=st.just(0),
)


@st.composite
def recorded_runs(draw: st.DrawFn) -> RecordedRun:
    started, ended = draw(times), draw(times)  # clocks of two machines: it may end before it starts
    told = draw(st.lists(st.tuples(times, entries), max_size=8))
    calls = draw(st.lists(model_calls, max_size=5))
    return RecordedRun(
        7, 3, 1, "agent:main:main", "main", 1, 1, started, ended,
        draw(st.sampled_from(["end", "stopped", "error: no"])),
        draw(st.none() | st.sampled_from(["1:2:0", "key:mine"])),
        [RecordedEntry(seq, at, entry) for seq, (at, entry) in enumerate(told, start=1)],
        [call._replace(call_no=number) for number, call in enumerate(calls, start=1)],
        draw(st.lists(st.integers(10, 20), max_size=3)),
    )  # fmt: skip


@given(recorded_runs())
def test_spans_have_ids_of_their_own_and_end_after_they_start(run: RecordedRun) -> None:
    made = spans(IDS, run)
    assert made == spans(TraceIds("one"), run)
    assert len({one.span_id for one in made}) == len(made)
    assert {one.trace_id for one in made} == {IDS.trace(1)}
    assert all(one.start <= one.end for one in made)
    *below, whole = made
    assert all(one.parent_id == whole.span_id for one in below)
    assert whole.parent_id == (IDS.tool("1:2:0") if run.spawn_key == "1:2:0" else None)
    assert list(whole.links) == [IDS.run(child) for child in run.read]


@given(recorded_runs())
def test_every_model_call_is_a_span_unless_foreign_code_made_it(run: RecordedRun) -> None:
    chats = [one for one in spans(IDS, run) if one.name.startswith("chat ")]
    assert len(chats) == sum(not call.model.startswith("runtime:") for call in run.calls)
    assert all((one.model_call is None) == bool(one.error) for one in chats)


@given(recorded_runs())
def test_content_is_only_there_on_request(run: RecordedRun) -> None:
    assert CONTENT not in str([dict(one.attributes) for one in spans(IDS, run)])
    has_input = any(isinstance(one.entry, Input) for one in run.entries)
    assert (CONTENT in str(spans(IDS, run, has_content=True)[-1].attributes)) or not has_input


def test_another_database_has_other_ids() -> None:
    assert TraceIds("two").trace(1) != IDS.trace(1)
    assert TraceIds("two").run(1) != IDS.run(1)
    assert len({IDS.run(1), IDS.chat(1, 1), IDS.tool("1:1:1")}) == 3


def test_a_model_call_lasts_until_its_answer_or_until_the_next_one_is_booked() -> None:
    """The answer of a summary stands in no entry; that of the call after it does."""
    call = ModelCall(1, 10.0, CallState.ANSWERED, "a:b", None, 1, 1, 0, 0)
    run = RecordedRun(
        1, 1, 1, "k", "main", 0, 0, 9.0, 30.0, "end", None,
        [RecordedEntry(1, 9.0, Input("x")), RecordedEntry(2, 25.0, Answer("y"))],
        [call, call._replace(call_no=2, at=20.0)],
    )  # fmt: skip
    first, second, _ = spans(IDS, run)
    assert ((first.start, first.end), (second.start, second.end)) == ((10.0, 20.0), (20.0, 25.0))
