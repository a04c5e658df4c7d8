"""What the library and the clients below it raise, as our own failures. Importing this imports the library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aiohttp
import httpx2
from pydantic_ai import exceptions as library

from clutch.models.failures import MESSAGE_MAX, classify, failure
from clutch.models.settings import Provider
from clutch.ports import ModelError, Trouble

#: First match decides; for errors without a status, of providers that do not speak HTTP or inside a stream.
_CATEGORIES: tuple[tuple[type[Exception], Trouble], ...] = (
    (library.ModelContextWindowExceededError, Trouble.CONTEXT),
    (library.ModelAuthenticationError, Trouble.AUTH),
    (library.ModelQuotaExceededError, Trouble.AUTH),
    (library.ModelRequestRejectedError, Trouble.BAD_REQUEST),
    (library.ModelRateLimitError, Trouble.RATE_LIMIT),
    (library.ModelUnavailableError, Trouble.OVERLOADED),
    (library.ModelServerError, Trouble.OVERLOADED),
    (library.ModelConnectionError, Trouble.NETWORK),
    (library.UserError, Trouble.BAD_REQUEST),
    (httpx2.TransportError, Trouble.NETWORK),
    (OSError, Trouble.NETWORK),
)
_TIMEOUTS = (library.ModelTimeoutError, httpx2.TimeoutException, TimeoutError)
#: The client reports any lost connection as one that could not be opened; these really could not.
_NEVER_OPENED = (aiohttp.ClientConnectorError, httpx2.ConnectError, ConnectionRefusedError)


def explained(error: Exception, provider: Provider, now: float) -> ModelError:
    if isinstance(error, ModelError):
        return error
    if isinstance(error, library.ModelHTTPError):
        return _of_status(error, now)
    trouble = next((trouble for kind, trouble in _CATEGORIES if isinstance(error, kind)), None)
    if trouble is Trouble.NETWORK:
        return _of_network(error, provider)
    if isinstance(error, library.ModelAPIError) and error.in_stream:
        trouble = classify(0, _wording(error))
    if type(error).__module__.startswith("botocore"):  # it raises before it asks: credentials, addresses
        trouble = Trouble.AUTH if "Credential" in type(error).__name__ else Trouble.BAD_REQUEST
    retry_after = getattr(error, "retry_after", None)
    return ModelError(
        trouble or Trouble.MALFORMED,
        (str(error) or type(error).__name__)[:MESSAGE_MAX],
        None if retry_after is None else now + retry_after,
    )


def _of_status(error: library.ModelHTTPError, now: float) -> ModelError:
    status = 0 if error.in_stream else error.status_code
    return failure(status, _wording(error), _message(error), error.headers or {}, now)


def _of_network(error: Exception, provider: Provider) -> ModelError:
    causes = list(_causes(error))
    is_sent = not any(isinstance(cause, _NEVER_OPENED) for cause in causes)
    if is_sent and any(isinstance(cause, _TIMEOUTS) for cause in causes) and not _is_lost(causes):
        return ModelError(
            Trouble.NETWORK, f"{provider.name} was silent for {provider.idle_s:g} s (idleTimeout)"
        )
    reason = str(causes[-1]) or type(causes[-1]).__name__
    return ModelError(Trouble.NETWORK, f"{provider.name}: {reason}"[:MESSAGE_MAX], is_sent=is_sent)


def _is_lost(causes: list[BaseException]) -> bool:
    """The connection went away; the client calls that a timeout, too."""
    lost = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
    return any(isinstance(cause, lost) for cause in causes)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _wording(error: library.ModelAPIError) -> str:
    return f"{error.provider_error_code or ''} {error.provider_error_type or ''} {error.body}"


def _message(error: library.ModelHTTPError) -> str:
    """The provider's own sentence, out of whatever it is wrapped in."""
    body: Any = error.body
    while isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]
    said = body.get("message") if isinstance(body, dict) else body
    hint = f"; did you mean {error.suggested_model_id!r}?" if error.suggested_model_id else ""
    return f"{said or 'no message'}{hint}"
