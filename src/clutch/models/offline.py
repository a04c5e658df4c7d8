"""A scripted model, not an LLM: it really calls tools and starts children, so that all can be tried offline.

It knows one job, the survey of a folder (`survey`). It decides from the transcript and the tools it is given,
from nothing else: the same request gets the same answer, in this process or after a crash in another.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

from clutch.core.messages import Answer, Input, Message, Results, Transcript, Usage
from clutch.models import survey
from clutch.models.evidence import Evidence, since, tidy
from clutch.models.survey import MODEL, NOTICE
from clutch.ports import Delta, DeltaKind, ModelRequest, OnDelta, ToolSpec

__all__ = ["MODEL", "NOTICE", "OfflineModel", "decide", "watchable_latency"]

CHUNKS_MAX = 12
SLOW = 4.0


def watchable_latency(request: ModelRequest) -> float:
    """Seconds a person can follow with the eye, a little different for each call and always the same."""
    seconds = 0.2 + zlib.crc32(request.key.encode()) % 200 / 1000
    return seconds * SLOW if _is_slow(request.transcript) else seconds


def _is_slow(transcript: Transcript) -> bool:
    return any(survey.is_slow(told.text) for told in _inputs(transcript) if told.source == "task")


class OfflineModel:
    """Models without a network. `latency` and `sleep` make it as slow as a real one, or as fast as a test."""

    def __init__(
        self,
        latency: Callable[[ModelRequest], float] = watchable_latency,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._latency = latency
        self._sleep = sleep

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        answer = decide(request.transcript, request.tools)
        chunks = _chunks(answer.text)
        pause = self._latency(request) / (len(chunks) + 1)
        await self._sleep(pause)
        for chunk in chunks:
            on_delta(Delta(DeltaKind.TEXT, chunk))
            await self._sleep(pause)
        return replace(answer, usage=_usage(request, answer))


def decide(transcript: Transcript, tools: Sequence[ToolSpec]) -> Answer:
    told = list(_inputs(transcript))
    jobs = [one for one in told if one.source in ("user", "task") and survey.is_job(one.text)]
    newest = told[-1] if told else Input("")
    names = frozenset(spec.name for spec in tools)
    if not jobs or (newest.source in ("user", "task") and newest is not jobs[-1]):
        return _without_a_job(transcript, newest)
    if newest.source in ("instruction", "announce") and _is_answered(transcript, jobs[-1], names):
        return _without_a_job(transcript, newest)
    if not {"list", "read", "search"} <= names:
        return survey.say("I cannot survey a folder: I have no tools to list, read and search files.")
    return survey.act(since(transcript, jobs[-1]), names)


def _inputs(transcript: Transcript) -> Iterator[Input]:
    return (message for message in transcript if isinstance(message, Input))


def _is_answered(transcript: Transcript, job: Input, names: frozenset[str]) -> bool:
    """What it would have said there is what it said."""
    begun = next(place for place, message in enumerate(transcript) if message is job)
    return any(
        isinstance(message, Answer)
        and survey.is_last_word(message)
        and message.text == survey.act(since(transcript[:place], job), names).text
        for place, message in enumerate(transcript)
        if place > begun
    )


def _without_a_job(transcript: Transcript, newest: Input) -> Answer:
    reports = list(Evidence(newest, _unanswered(transcript)).reports.values())
    if newest.source == "announce" and reports:
        return survey.say("Background work has ended." + "\n".join(survey.told(reports)))
    can = (
        "I am a script without understanding; I show that all around a model works. I can do one thing: "
        'say "Survey the folder", and I list it, start background children that search and read its files, '
        "and tell you what they found. For anything else configure a real model."
    )
    if newest.source == "task":
        return survey.say(f"{can}\nSUMMARY: nothing was done; the scripted model knows no such task")
    return survey.say(f'You said "{tidy(newest.text)}", which a script cannot answer. {can}')


def _unanswered(transcript: Transcript) -> tuple[Message, ...]:
    answers = [at for at, message in enumerate(transcript) if isinstance(message, Answer)]
    return tuple(transcript[answers[-1] + 1 :] if answers else transcript)


def _chunks(text: str) -> list[str]:
    size = max(40, -(-len(text) // CHUNKS_MAX))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _usage(request: ModelRequest, answer: Answer) -> Usage:
    """About four characters a token: what was sent and what was said, not a bill."""
    schemas = sum(len(spec.description) + len(json.dumps(dict(spec.parameters))) for spec in request.tools)
    sent = len(request.system) + schemas + sum(map(_length, request.transcript))
    return Usage(input=sent // 4, output=_length(answer) // 4)


def _length(message: Message) -> int:
    match message:
        case Input():
            return len(message.text)
        case Answer():
            return len(message.text) + sum(len(json.dumps(dict(call.args))) for call in message.calls)
        case Results():
            return sum(len(result.text) for result in message.results)
