"""The JSON objects of forecasts: what tasks like one would cost, and where a budget is heading."""

from __future__ import annotations

from typing_extensions import TypedDict

from clutch.api.schema import BasisName


class TokenRange(TypedDict):
    median: int
    p90: int


class UsdRange(TypedDict):
    median: str
    p90: str


class TokensAndUsdLeft(TypedDict):
    """null: no limit."""

    tokens: int | None
    usd: str | None


class SpawnForecast(TypedDict):
    """What `count` tasks like this one cost, each with everything below it. A range is null where it is not known."""

    basis: BasisName | None  #: what the finished tasks have in common with it; null: too few have finished
    samples: int  #: finished tasks
    count: int
    tokens: TokenRange | None
    usd: UsdRange | None
    budgetLeft: TokensAndUsdLeft
    text: str


class HeadingObject(TypedDict):
    """What a budget will have spent, by one measure, when the open tasks that draw on it have ended."""

    tasks: int  #: running or queued
    median: str | None  #: null: not known
    p90: str | None
    text: str
