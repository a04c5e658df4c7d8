"""What every adapter makes of a provider that fails: a typed error, and when to come back."""

from __future__ import annotations

import email.utils
import time
from datetime import UTC, datetime

import pytest

from clutch.ports import DeltaKind, Trouble
from clutch.testing.providers import (
    Cut,
    Failure,
    Fault,
    Format,
    Providers,
    Raw,
    Reply,
    Silence,
    StreamError,
    Text,
    ToolCall,
)
from tests.models.contract.conftest import Talk

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("fault", "trouble"),
    [
        (Fault.AUTH, Trouble.AUTH),
        (Fault.FORBIDDEN, Trouble.AUTH),
        (Fault.BAD_REQUEST, Trouble.BAD_REQUEST),
        (Fault.NOT_FOUND, Trouble.BAD_REQUEST),
        (Fault.CONTEXT, Trouble.CONTEXT),
        (Fault.TOO_LARGE, Trouble.CONTEXT),
        (Fault.RATE_LIMIT, Trouble.RATE_LIMIT),
        (Fault.SERVER, Trouble.OVERLOADED),
        (Fault.UNAVAILABLE, Trouble.OVERLOADED),
        (Fault.OVERLOADED, Trouble.OVERLOADED),
    ],
)
async def test_each_failure_has_its_word(talk: Talk, fault: Fault, trouble: Trouble) -> None:
    error = await talk.fails(Failure(fault))
    assert error.trouble is trouble
    assert (error.is_sent, error.is_begun) == (True, False)
    assert "sk-secret" not in str(error)


async def test_a_failed_call_is_not_repeated_by_the_adapter(talk: Talk) -> None:
    """Retries belong to the throttle, which sees all runs; a client that retries by itself hides them."""
    for fault in (Fault.OVERLOADED, Fault.RATE_LIMIT, Fault.SERVER):
        talk.server.log.calls.clear()
        await talk.fails(Failure(fault))
        assert len(talk.server.log.calls) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_rate_limit_says_when_to_come_back(talk: Talk, form: str) -> None:
    due = time.time() + 90
    said = "90" if form == "seconds" else email.utils.formatdate(due, usegmt=True)
    error = await talk.fails(Failure(Fault.RATE_LIMIT, headers={"Retry-After": said}))
    assert error.trouble is Trouble.RATE_LIMIT
    assert error.retry_at == pytest.approx(due, abs=5)


async def test_reset_headers_say_when_to_come_back(talk: Talk) -> None:
    due = time.time() + 90
    if talk.adapter.format is Format.MESSAGES:
        reset = datetime.fromtimestamp(due, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        headers = {"anthropic-ratelimit-requests-reset": reset, "anthropic-ratelimit-requests-remaining": "0"}
    else:
        headers = {"x-ratelimit-reset-requests": "1m30s", "x-ratelimit-remaining-requests": "0"}
    error = await talk.fails(Failure(Fault.RATE_LIMIT, headers=headers))
    assert error.retry_at == pytest.approx(due, abs=5)


async def test_rate_limit_without_a_time_has_none(talk: Talk) -> None:
    assert (await talk.fails(Failure(Fault.RATE_LIMIT))).retry_at is None


async def test_a_stream_that_breaks_off_is_a_network_failure(talk: Talk) -> None:
    error = await talk.fails(Reply([Text("half"), Cut()], drip_s=0.01))
    assert (error.trouble, error.is_begun) == (Trouble.NETWORK, True)
    assert talk.streamed(DeltaKind.TEXT) == "half"


async def test_a_call_that_breaks_off_is_never_an_answer(talk: Talk) -> None:
    """The arguments could happen to be valid as far as they came."""
    error = await talk.fails(Reply([ToolCall("list", ("{}",)), Cut()], drip_s=0.01))
    assert error.trouble is Trouble.NETWORK


async def test_a_stream_that_ends_without_saying_why_is_malformed(talk: Talk) -> None:
    error = await talk.fails(Reply([Text("half"), Cut(is_clean=True)]))
    assert (error.trouble, error.is_begun) == (Trouble.MALFORMED, True)


@pytest.mark.parametrize("garbage", [b"{not json", b"\xff\xfe\xfa"])
async def test_garbage_in_the_stream_is_malformed(talk: Talk, garbage: bytes) -> None:
    """Anthropic's events have names, and one without is skipped by everybody."""
    name = b"event: content_block_delta\n" if talk.adapter.format is Format.MESSAGES else b""
    error = await talk.fails(Reply([Text("half"), Raw(name + b"data: " + garbage + b"\n\n")]))
    assert (error.trouble, error.is_begun) == (Trouble.MALFORMED, True)


async def test_broken_arguments_are_malformed(talk: Talk) -> None:
    """Nobody can say what was meant, so nothing is run."""
    for broken in ('{"path": "a"', '["a"]', "rm -rf"):
        error = await talk.fails(Reply([ToolCall("read", (broken,))]))
        assert (error.trouble, error.is_begun) == (Trouble.MALFORMED, True), broken
        assert "read" in str(error)


@pytest.mark.parametrize(
    ("fault", "trouble"),
    [
        (Fault.OVERLOADED, Trouble.OVERLOADED),
        (Fault.SERVER, Trouble.OVERLOADED),
        (Fault.RATE_LIMIT, Trouble.RATE_LIMIT),
        (Fault.CONTEXT, Trouble.CONTEXT),
    ],
)
async def test_an_error_inside_the_stream_has_its_word(talk: Talk, fault: Fault, trouble: Trouble) -> None:
    error = await talk.fails(Reply([Text("half"), StreamError(fault)]))
    assert (error.trouble, error.is_begun) == (trouble, True)


@pytest.mark.parametrize("behaviour", [Silence(), Reply([Text("half"), Silence()], drip_s=0.01)])
async def test_silence_is_cut_by_the_idle_timeout(talk: Talk, behaviour: Silence | Reply) -> None:
    error = await talk.fails(behaviour, models=talk.models(idle_timeout_s=0.3))
    assert (error.trouble, error.is_begun) == (Trouble.NETWORK, isinstance(behaviour, Reply))
    assert "silent" in str(error)
    await talk.last.ended.wait()


async def test_another_model_than_asked_for_is_an_error(talk: Talk) -> None:
    error = await talk.fails(Reply([Text("ok")], model="tiny-model"))
    assert (error.trouble, error.is_begun) == (Trouble.BAD_REQUEST, True)
    assert "tiny-model" in str(error)


async def test_another_model_is_taken_where_that_is_allowed(talk: Talk) -> None:
    models = talk.models(allow_model_mismatch=True)
    answer = await talk.ask(Reply([Text("ok")], model="tiny-model"), models=models)
    assert (answer.text, answer.model) == ("ok", "tiny-model")


async def test_nobody_there_is_a_network_failure(talk: Talk) -> None:
    async with Providers(lambda _: Reply()) as gone:
        url = talk.adapter.url(gone)
    error = await talk.fails(models=talk.models(base_url=url))
    assert (error.trouble, error.is_sent, error.is_begun) == (Trouble.NETWORK, False, False)


async def test_a_failure_leaves_the_adapter_usable(talk: Talk) -> None:
    models = talk.models()
    for behaviour in (Failure(Fault.OVERLOADED), Reply([Text("half"), Cut()])):
        await talk.fails(behaviour, models=models)
    assert (await talk.ask(Reply([Text("ok")]), models=models)).text == "ok"
