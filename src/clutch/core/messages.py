"""Our own transcript format: small, versioned, independent of any provider.

A transcript is a gap-free list of messages: what was put to the model (`Input`), what it answered
(`Answer`), and what its tool calls gave (`Results`, one message for all calls of one answer).
Adapters convert at the edge; the database stores `dump(message)`.

A long one also holds summaries of its own beginning. They are entries, not messages: `core.compaction.view`
turns entries into the messages a model is shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

VERSION = 1
#: That an answer can be said to have used: up to here every reader of JSON can tell a number from the next.
TOKENS_MAX = 2**53
_ODD = re.compile(r"\\ud|\\u0000|NaN|Infinity")
_SURROGATE = re.compile("[\ud800-\udfff]")
#: A backslash that is escaped itself and both halves of a pair come first, so that neither is taken for a lone one.
_HALF = re.compile(r"\\\\|\\ud[89ab]..\\ud[c-f]..|(?P<half>\\ud[89a-f]..)")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_text = json.encoder.encode_basestring  # what the encoder does with a text, without asking whether it is one


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. It is known by its place in the answer: providers repeat their own ids."""

    name: str
    args: Mapping[str, Any]
    id: str = ""  #: the provider's id, only to echo it back


@dataclass(frozen=True, slots=True)
class Thought:
    """What a model thought aloud. Some providers want it back, word for word and signed, with the next request."""

    text: str
    signature: str = ""
    provider: str = ""  #: who signed it; another provider is never shown it


@dataclass(frozen=True, slots=True)
class Input:
    """Text put to the model: a user's message, a task, a collect message, a note of the runtime."""

    text: str
    source: str = "user"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered: a text, or tool calls. `stop`: why it ended."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    stop: str = "end"  #: end | tools | length | filter | refusal | …
    thoughts: tuple[Thought, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    index: int
    name: str
    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Results:
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything up to the entry with the number `upto`, in short. The original stays where it is."""

    text: str
    upto: int


#: what a model is shown
Message = Input | Answer | Results
Transcript = Sequence[Message]
#: what is stored
Entry = Message | Summary


def kind(message: Entry) -> str:
    match message:
        case Input():
            return "input"
        case Answer():
            return "answer"
        case Results():
            return "results"
        case Summary():
            return "summary"
        case _:
            assert_never(message)


def dump(message: Entry) -> str:
    """JSON escapes control characters; halves of surrogate pairs, which no database takes, are escaped too."""
    text = f'{{"v":{VERSION},{_fields(message)}}}'
    try:
        text.encode()  # several times as fast as looking for halves
    except UnicodeEncodeError:
        return _SURROGATE.sub(_escaped, text)
    return text


def _escaped(half: re.Match[str]) -> str:
    return f"\\u{ord(half[0]):04x}"


def whole(answer: Answer) -> Answer:
    """As everybody can store, show and send it. A provider may cut a character in two halves of a surrogate pair, which
    are joined; of a lone one, and of a NUL among the words, a mark is left. A number beyond all (`1e999`) is none, and
    nothing uses less than no tokens."""
    used = answer.usage
    counts = used.input, used.output, used.cache_read, used.cache_write
    if min(counts) < 0 or max(counts) > TOKENS_MAX:
        answer = replace(answer, usage=Usage(*[min(max(count, 0), TOKENS_MAX) for count in counts]))
    stored = dump(answer)
    if not _ODD.search(stored):
        return answer
    read = load("answer", json.dumps(json.loads(_HALF.sub(_marked, stored), parse_constant=str)))
    assert isinstance(read, Answer)
    calls = tuple(
        replace(call, name=_without_nul(call.name), id=_without_nul(call.id)) for call in read.calls
    )
    return replace(read, text=_without_nul(read.text), model=_without_nul(read.model), calls=calls)


def _without_nul(text: str) -> str:
    return text.replace("\0", "\ufffd")


def _marked(found: re.Match[str]) -> str:
    return "\ufffd" if found["half"] else found[0]


def _fields(message: Entry) -> str:
    """By hand: an encoder that looks at every value cost more than any statement of the transaction around it."""
    match message:
        case Input(text, source):
            return f'"text":{_text(text)},"source":{_text(source)}'
        case Answer(text, calls, usage, model, stop, thoughts):
            made = ",".join([_call(call) for call in calls])
            thought = f',"thoughts":[{",".join([_thought(one) for one in thoughts])}]' if thoughts else ""
            return (
                f'"text":{_text(text)},"calls":[{made}],"usage":{_usage(usage)},'
                f'"model":{_text(model)},"stop":{_text(stop)}{thought}'
            )
        case Results(results):
            return f'"results":[{",".join([_result(result) for result in results])}]'
        case Summary(text, upto):
            return f'"text":{_text(text)},"upto":{upto:d}'
        case _:
            assert_never(message)


def _call(call: Call) -> str:
    return f'{{"name":{_text(call.name)},"args":{_encode(dict(call.args))},"id":{_text(call.id)}}}'


def _thought(thought: Thought) -> str:
    return (
        f'{{"text":{_text(thought.text)},"signature":{_text(thought.signature)},'
        f'"provider":{_text(thought.provider)}}}'
    )


def _usage(usage: Usage) -> str:
    return (
        f'{{"input":{usage.input:d},"output":{usage.output:d},'
        f'"cache_read":{usage.cache_read:d},"cache_write":{usage.cache_write:d}}}'
    )


def _result(result: Result) -> str:
    failed = "true" if result.failed else "false"
    return (
        f'{{"index":{result.index:d},"name":{_text(result.name)},'
        f'"text":{_text(result.text)},"failed":{failed}}}'
    )


def load(kind: str, body: str) -> Entry:
    data = json.loads(body)
    version = data.pop("v")
    if version > VERSION:
        raise ValueError(
            f"message format {version} is newer than this program knows ({VERSION}); upgrade clutch"
        )
    match kind:
        case "input":
            return Input(**data)
        case "answer":
            calls = tuple(Call(**call) for call in data.pop("calls"))
            thoughts = tuple(Thought(**thought) for thought in data.pop("thoughts", ()))
            return Answer(calls=calls, usage=Usage(**data.pop("usage")), thoughts=thoughts, **data)
        case "results":
            return Results(tuple(Result(**result) for result in data["results"]))
        case "summary":
            return Summary(**data)
        case _:
            raise ValueError(f"unknown kind of message: {kind!r}")
