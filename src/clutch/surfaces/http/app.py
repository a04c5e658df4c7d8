"""The app: guard, table of paths, and what is the same for every request.

Errors become objects, answers to writes are kept under their `Idempotency-Key`, and a browser is told to
keep nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from clutch.api.problems import Problem, problem_of
from clutch.api.spawn import check_key
from clutch.errors import ClutchError, InvalidInput
from clutch.logs import logger
from clutch.surfaces.http import actions, auth, completions, events, handlers, metrics
from clutch.surfaces.http.auth import CALLER, TOKEN, AuthMiddleware, refusal
from clutch.surfaces.http.routes import (
    HEADER,
    PRIVATE,
    AppState,
    Ask,
    HttpRoute,
    Replays,
    Reply,
    admitted,
    read_body,
    read_query,
)
from clutch.surfaces.http.tokens import Tokens

ENTRIES: tuple[HttpRoute, ...] = (
    *handlers.TASK_ENTRIES,
    *actions.ENTRIES,
    *events.ENTRIES,
    *handlers.SESSION_ENTRIES,
    *handlers.GATEWAY_ENTRIES,
    *handlers.SHUTDOWN_ENTRIES,
    *metrics.ENTRIES,
    *auth.ENTRIES,
    *completions.ENTRIES,
)
MCP = "/mcp"
INTERNAL = "something went wrong inside the gateway; its log says what"

log = logger(__name__)


def make_app(house: AppState, tokens: Tokens, mcp: ASGIApp, names: frozenset[str]) -> ASGIApp:
    """`names`: what a request may call this gateway."""
    replays = Replays(house)
    routes = [Route(one.path, _endpoint(one, house, replays), methods=[one.method]) for one in ENTRIES]
    app = Starlette(routes=[*routes, Route(MCP, mcp)], exception_handlers={HTTPException: _not_routed})
    app.router.redirect_slashes = False
    return AuthMiddleware(app, tokens, house.gateway.visits, names)


def _endpoint(
    entry: HttpRoute, house: AppState, replays: Replays
) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            response = await _respond(entry, house, replays, request)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except ClutchError as error:
            problem = problem_of(error)
            response = refusal(problem, entry.in_words, closes=problem.code == "too_large")
        except Exception:  # a bug of ours must not end the connection without a word
            log.exception("%s %s failed", entry.method, entry.path)
            response = refusal(Problem("internal", INTERNAL), entry.in_words)
        response.headers.update(PRIVATE)
        return response

    return respond


async def _respond(entry: HttpRoute, house: AppState, replays: Replays, request: Request) -> Response:
    session = request.headers.get(HEADER)
    caller = await admitted(house, entry, request.scope[CALLER], session)
    body, raw = await read_body(request, entry.body, entry.bytes_max)
    key = _key(request) if entry.is_write else None
    ask = Ask(
        house=house,
        caller=caller,
        path={name: unquote(value) for name, value in request.path_params.items()},
        query=read_query(request, entry.query),
        body=body,
        headers=request.headers,
        key=key,
        session=session,
        token=request.scope[TOKEN],
    )
    if key is None:
        return _rendered(await entry.handler(ask))
    asked = (entry.method.encode(), request.scope["raw_path"], request.scope["query_string"], raw)
    said = hashlib.sha256(b"\0".join(asked)).hexdigest()
    own = "\n".join((request.scope[CALLER].actor, session or "", key))  # none of them holds a line end
    return await replays.once(own, said, lambda: entry.handler(ask))


def _key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    try:
        check_key(key)
    except InvalidInput as error:
        raise InvalidInput("Idempotency-Key", error.rule) from error
    return key


def _rendered(reply: Reply | Response) -> Response:
    return reply if isinstance(reply, Response) else JSONResponse(reply.body, reply.status)


async def _not_routed(request: Request, error: Exception) -> Response:
    """Starlette names the methods of the first route only; a path may have several."""
    del error
    matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    allowed = ", ".join(sorted({method for route in matching for method in route.methods or ()}))
    if not allowed:
        return refusal(Problem("not_found", "there is nothing at this path"), closes=False)
    said = f"{request.method} is not a method of this path, which has {allowed}"
    response = refusal(Problem("method_not_allowed", said), closes=False)
    response.headers["allow"] = allowed
    return response
