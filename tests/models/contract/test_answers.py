"""What every adapter makes of a good answer, whatever its format."""

from __future__ import annotations

import json

import pytest

from clutch.core.messages import Answer, Input, Result, Results, Usage
from clutch.ports import DeltaKind
from clutch.testing.providers import Pause, Piece, Refusal, Reply, Text, Thinking, ToolCall, turns
from tests.models.contract.adapters import MODEL
from tests.models.contract.conftest import Talk

pytestmark = pytest.mark.anyio


async def test_text_is_streamed_and_complete(talk: Talk) -> None:
    answer = await talk.ask(Reply([Text("Hel"), Text("lo "), Text("you")]))
    assert (answer.text, answer.stop, answer.calls) == ("Hello you", "end", ())
    assert talk.streamed(DeltaKind.TEXT) == "Hello you"


async def test_thinking_is_streamed_and_kept_apart_from_the_text(talk: Talk) -> None:
    pieces: list[Piece] = [Thinking("first "), Thinking("this", signature="signed"), Text("so")]
    answer = await talk.ask(Reply(pieces))
    assert answer.text == "so"
    assert "".join(thought.text for thought in answer.thoughts) == "first this"
    assert talk.streamed(DeltaKind.THINKING) == "first this"


async def test_arguments_of_a_tool_call_are_put_together(talk: Talk) -> None:
    answer = await talk.ask(Reply([ToolCall("read", ('{"pa', 'th": "a', '.txt"}'))]))
    assert answer.stop == "tools"
    assert [(call.name, dict(call.args)) for call in answer.calls] == [("read", {"path": "a.txt"})]
    assert talk.streamed(DeltaKind.CALL) == 'read{"path": "a.txt"}'


async def test_parallel_tool_calls_stay_apart(talk: Talk) -> None:
    pieces: list[Piece] = [
        Text("I look."),
        ToolCall("read", ('{"path"', ':"a"}')),
        ToolCall("list", ("{}",)),
        ToolCall("read", ('{"path":"b"}',)),
    ]
    answer = await talk.ask(Reply(pieces))
    assert answer.text == "I look."
    assert [call.name for call in answer.calls] == ["read", "list", "read"]
    assert [dict(call.args) for call in answer.calls] == [{"path": "a"}, {}, {"path": "b"}]
    parts = dict.fromkeys(range(3), "")
    for delta in talk.deltas:
        if delta.kind is DeltaKind.CALL:
            parts[delta.call] += delta.text
    assert parts == {0: 'read{"path":"a"}', 1: "list{}", 2: 'read{"path":"b"}'}


async def test_a_call_without_arguments_has_none(talk: Talk) -> None:
    answer = await talk.ask(Reply([ToolCall("list", ())]))
    assert [(call.name, dict(call.args)) for call in answer.calls] == [("list", {})]


async def test_usage_counts_the_cache_as_part_of_the_input(talk: Talk) -> None:
    answer = await talk.ask(Reply([Text("ok")], Usage(1000, 20, cache_read=700, cache_write=100)))
    assert answer.usage == Usage(1000, 20, cache_read=700, cache_write=100)
    assert talk.last.billed == answer.usage


async def test_an_empty_answer_is_an_answer_that_cost_something(talk: Talk) -> None:
    answer = await talk.ask(Reply([], Usage(10, 1)))
    assert (answer.text, answer.calls, answer.stop, answer.usage) == ("", (), "end", Usage(10, 1))


@pytest.mark.parametrize("stop", ["length", "filter"])
async def test_why_an_answer_stopped_is_told(talk: Talk, stop: str) -> None:
    answer = await talk.ask(Reply([Text("half an")], stop=stop))
    assert answer.stop == (talk.adapter.filtered if stop == "filter" else stop)
    assert answer.text == "half an"


async def test_a_call_cut_off_by_the_length_limit_is_left_out(talk: Talk) -> None:
    pieces: list[Piece] = [ToolCall("list", ("{}",)), ToolCall("read", ('{"path": "a',))]
    answer = await talk.ask(Reply(pieces, stop="length"))
    assert (answer.stop, [call.name for call in answer.calls]) == ("length", ["list"])


async def test_a_refusal_is_no_normal_end(talk: Talk) -> None:
    answer = await talk.ask(Reply([Refusal("I will "), Refusal("not")], stop="refusal"))
    assert (answer.stop, answer.text) == ("refusal", "I will not")


async def test_effective_model_is_recorded(talk: Talk) -> None:
    answer = await talk.ask(Reply([Text("ok")], model=f"{MODEL}-2026-01-01"))
    assert answer.model == f"{MODEL}-2026-01-01"


async def test_characters_torn_apart_on_the_way_are_whole_again(talk: Talk) -> None:
    words = "grüße 😀👩‍👩‍👧 日本"
    pieces: list[Piece] = [
        Text(words[:7]),
        Text(words[7:]),
        ToolCall("read", (json.dumps({"path": words}, ensure_ascii=False),)),
    ]
    for size in (1, 5):
        talk.deltas.clear()
        answer = await talk.ask(Reply(pieces, split_bytes=size))
        assert answer.text == words == talk.streamed(DeltaKind.TEXT)
        assert answer.calls[0].args == {"path": words}


async def test_line_separators_inside_a_text_do_not_end_an_event(talk: Talk) -> None:
    words = "one\u2028two\u2029three\x85four\r\nfive\x0bsix\x1cseven"
    answer = await talk.ask(Reply([Text(words)]))
    assert answer.text == words


async def test_a_slow_stream_is_not_cut_while_bytes_come(talk: Talk) -> None:
    models = talk.models(idle_timeout_s=1.5)
    pieces: list[Piece] = [piece for word in "abc" for piece in (Text(word), Pause(0.6))]
    answer = await talk.ask(Reply(pieces), models=models)
    assert answer.text == "abc"


async def test_each_result_goes_back_to_its_call(talk: Talk) -> None:
    pieces: list[Piece] = [
        Text("I look."),
        ToolCall("read", ('{"path":"a"}',)),
        ToolCall("read", ('{"path":"b"}',)),
    ]
    first = await talk.ask(Reply(pieces))
    results = Results((Result(0, "read", "text of a"), Result(1, "read", "no such file", failed=True)))
    asked = Input("compare a and b")
    await talk.ask(Reply([Text("done")]), transcript=(asked, first, results, Input("and now?")))
    said = turns(talk.last.request)
    assert [(turn.role, turn.text) for turn in said if turn.role in ("system", "user")] == [
        ("system", "Be brief."),
        ("user", "compare a and b"),
        ("user", "and now?"),
    ]
    calls = {turn.id: json.loads(turn.text)["path"] for turn in said if turn.role == "call"}
    given = {calls[turn.id]: turn.text for turn in said if turn.role == "result"}
    assert given == {"a": "text of a", "b": "no such file"}


@pytest.mark.parametrize("repeated", ["call_1", ""])
async def test_repeated_call_ids_do_not_mix_results_up(talk: Talk, repeated: str) -> None:
    pieces: list[Piece] = [
        ToolCall("read", ('{"path":"a"}',), repeated),
        ToolCall("read", ('{"path":"b"}',), repeated),
    ]
    first = await talk.ask(Reply(pieces))
    assert [dict(call.args) for call in first.calls] == [{"path": "a"}, {"path": "b"}]
    results = Results((Result(0, "read", "text of a"), Result(1, "read", "text of b")))
    again = (Input("go on"), first, results)
    await talk.ask(Reply([Text("done")]), transcript=(Input("hello"), first, results, *again))
    said = turns(talk.last.request)
    calls = [turn.id for turn in said if turn.role == "call"]
    assert len(set(calls)) == 4
    assert all(calls)
    paths = {turn.id: json.loads(turn.text)["path"] for turn in said if turn.role == "call"}
    assert [(paths[turn.id], turn.text) for turn in said if turn.role == "result"] == [
        ("a", "text of a"),
        ("b", "text of b"),
    ] * 2


async def test_a_transcript_of_another_provider_can_be_sent(talk: Talk) -> None:
    """A conversation may change its model: ids are foreign, thoughts are signed by somebody else."""
    pieces: list[Piece] = [ToolCall("read", ('{"path":"a"}',), "foreign:id/with+signs" + "x" * 80)]
    first = await talk.ask(Reply(pieces))
    results = Results((Result(0, "read", "text of a"),))
    answer = await talk.ask(Reply([Text("done")]), transcript=(Input("hello"), first, results))
    assert answer.text == "done"


async def test_tools_and_the_limit_of_the_answer_reach_the_provider(talk: Talk) -> None:
    await talk.ask(Reply([Text("ok")]), output_tokens_max=321)
    body = talk.last.request.body
    assert 321 in body.values()
    names = [tool.get("name") or tool["function"]["name"] for tool in talk.last.request.tools]
    assert names == ["read", "list"]


async def test_without_tools_and_system_nothing_of_them_is_sent(talk: Talk) -> None:
    await talk.ask(Reply([Text("ok")]), tools=[], system="")
    assert not talk.last.request.tools
    assert [turn.role for turn in turns(talk.last.request)] == ["user"]


async def test_the_call_carries_its_stable_key_and_the_provider_key(talk: Talk) -> None:
    models = talk.models()
    for key in ("session:7", "session:8", "session:7"):
        await talk.ask(Reply([Text("ok")]), key=key, models=models)
    assert talk.server.log.repeated == {"session:7": 2}
    assert talk.last.request.api_key == "sk-secret"


async def test_answers_equal_what_was_streamed(talk: Talk) -> None:
    answer = await talk.ask(Reply([Thinking("hm", signature="s"), Text("a"), ToolCall("list", ("{}",))]))
    assert isinstance(answer, Answer)
    assert answer.text == talk.streamed(DeltaKind.TEXT)
    assert [delta.kind for delta in talk.deltas][:2] == [DeltaKind.THINKING, DeltaKind.TEXT]
