"""What providers say when they cannot answer, and when they want to be asked again."""

from __future__ import annotations

import pytest

from clutch.models.provider import TrialResult, classify, mismatch, retry_at, trial_result
from clutch.ports import ModelError, Trouble

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "30"}, 30.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "Thu, 01 Jan 2026 00:02:00 GMT"}, 120.0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "inf"}, None),
        ({"x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"x-ratelimit-reset-tokens": "120ms"}, 0.12),
        ({"x-ratelimit-reset-tokens": "2m59.56s"}, 179.56),
        ({"x-ratelimit-reset-tokens": "1h0m1s"}, 3601.0),
        ({"x-ratelimit-reset-tokens": "1d"}, 86400.0),
        ({"x-ratelimit-reset": str(int(NOW + 60))}, 60.0),
        ({"x-ratelimit-reset": str(int(NOW + 60) * 1000)}, 60.0),
        ({"anthropic-ratelimit-tokens-reset": "2026-01-01T00:01:00Z"}, 60.0),
        ({"anthropic-ratelimit-tokens-reset": "9999999-99-99"}, None),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "9s"}, 9.0),
        (
            {
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-tokens": "9s",
                "x-ratelimit-remaining-tokens": "500",
            },
            1.0,
        ),
    ],
)
def test_the_moment_to_come_back_is_read_from_what_there_is(
    headers: dict[str, str], expected: float | None
) -> None:
    at = retry_at(headers, NOW)
    assert at == (None if expected is None else pytest.approx(NOW + expected, abs=0.001))


@pytest.mark.parametrize(
    ("status", "wording", "trouble"),
    [
        (400, "context_length_exceeded", Trouble.CONTEXT),
        (400, "This model's maximum context length is 4096 tokens", Trouble.CONTEXT),
        (400, "the request exceeds the available context size, try increasing it", Trouble.CONTEXT),
        (400, "prompt is too long: 210512 tokens > 200000 maximum", Trouble.CONTEXT),
        (400, "The input token count (1200000) exceeds the maximum", Trouble.CONTEXT),
        (400, "Unknown parameter", Trouble.BAD_REQUEST),
        (402, "Insufficient credits", Trouble.AUTH),
        (422, "Field required", Trouble.BAD_REQUEST),
        (429, "insufficient_quota You exceeded your current quota", Trouble.AUTH),
        (429, "rate_limit_exceeded", Trouble.RATE_LIMIT),
        (408, "", Trouble.NETWORK),
        (502, "<html>", Trouble.OVERLOADED),
        (524, "", Trouble.OVERLOADED),
        (0, "overloaded_error Overloaded", Trouble.OVERLOADED),
        (0, "None server_error The server had an error", Trouble.OVERLOADED),
        (0, "rate_limit_exceeded", Trouble.RATE_LIMIT),
        (0, "authentication_error", Trouble.AUTH),
        (0, "something else", Trouble.BAD_REQUEST),
    ],
)
def test_each_complaint_has_its_word(status: int, wording: str, trouble: Trouble) -> None:
    assert classify(status, wording) is trouble


def test_a_provider_that_reports_no_model_cannot_be_caught_lying() -> None:
    assert mismatch("gpt-x", "") is None
    wrong = mismatch("gpt-x", "gpt-y")
    assert wrong is not None
    assert wrong.trouble is Trouble.BAD_REQUEST
    assert "allowModelMismatch" in str(wrong)


@pytest.mark.parametrize(
    ("trouble", "message", "result"),
    [
        (Trouble.AUTH, "no such key (status 401)", TrialResult.REJECTED),
        (Trouble.AUTH, "insufficient_quota (status 429)", TrialResult.REJECTED),
        (Trouble.NETWORK, "connection refused", TrialResult.UNREACHABLE),
        (Trouble.BAD_REQUEST, "not found (status 404)", TrialResult.NO_MODEL),
        (Trouble.BAD_REQUEST, "The model `gpt-9` does not exist (status 400)", TrialResult.NO_MODEL),
        (Trouble.BAD_REQUEST, 'model "qwen9" not found, try pulling it first', TrialResult.NO_MODEL),
        (Trouble.BAD_REQUEST, "max_tokens is too small (status 400)", TrialResult.FAILED),
        (Trouble.RATE_LIMIT, "slow down (status 429)", TrialResult.FAILED),
        (Trouble.OVERLOADED, "try later (status 529)", TrialResult.FAILED),
    ],
)
def test_a_failed_call_says_what_is_wrong_with_a_key(
    trouble: Trouble, message: str, result: TrialResult
) -> None:
    assert trial_result(ModelError(trouble, message)) is result
