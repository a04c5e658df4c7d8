"""As OpenAI's clients read it."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from clutch.surfaces.http.answers.base import Answer


class Theirs(Answer):
    model_config = ConfigDict(alias_generator=None)


class Model(Theirs):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(Theirs):
    object: Literal["list"]
    data: list[Model]


class Spoken(Theirs):
    role: Literal["assistant"]
    content: str


class Choice(Theirs):
    index: int
    message: Spoken
    finish_reason: Literal["stop"]


class CachedTokens(Theirs):
    cached_tokens: int


class CompletionUsage(Theirs):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Completion(Theirs):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage | None
