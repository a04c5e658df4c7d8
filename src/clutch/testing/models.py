"""A model for tests: it answers from a script and records every request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from clutch.core.messages import Answer, Input, Results, Usage
from clutch.ports import Delta, DeltaKind, ModelError, ModelRequest, OnDelta

#: A text is a final answer; a ModelError is raised.
Scripted: TypeAlias = Answer | str | ModelError
Script: TypeAlias = Sequence[Scripted] | Callable[[ModelRequest], Scripted]

SCRIPTED_MODEL = "scripted"


def prompt_of(request: ModelRequest) -> str:
    """Return the newest text that was put to the model: a task, a user's message, an instruction, a child's result."""
    return next((message.text for message in reversed(request.transcript) if isinstance(message, Input)), "")


def results_of(request: ModelRequest) -> list[str]:
    """Return the results of the tool calls that the model has just made; empty if it has made none."""
    match request.transcript:
        case [*_, Results(results=results)]:
            return [result.text for result in results]
        case _:
            return []


class ScriptExhausted(AssertionError):
    """The model was asked more often than its script has answers."""


class ScriptedModel:
    """Answers from a list, in the order it is asked, or from a function of the request.

    With several sessions the order of calls is up to the engine: use a function then; it answers
    `prompt_of(request)` or, after a tool call, `results_of(request)`.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[ModelRequest] = []

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        """Record the request and return the next answer of its script."""
        self.requests.append(request)
        said = self._next(request)
        if isinstance(said, ModelError):
            raise said
        answer = Answer(said, model=SCRIPTED_MODEL, usage=Usage(1, 1)) if isinstance(said, str) else said
        if answer.text:
            on_delta(Delta(DeltaKind.TEXT, answer.text))
        return answer

    def _next(self, request: ModelRequest) -> Scripted:
        if callable(self._script):
            return self._script(request)
        asked = len(self.requests)
        if asked > len(self._script):
            raise ScriptExhausted(f"call {asked} of a script with {len(self._script)} answers: {request.key}")
        return self._script[asked - 1]
