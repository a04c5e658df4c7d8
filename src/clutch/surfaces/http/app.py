"""The table of all paths, and the ASGI app that serves them behind `AuthMiddleware`."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from clutch.api.problems import Problem
from clutch.surfaces.http import chats, completions, devices, events, handlers, health, metrics, responses
from clutch.surfaces.http.auth import AuthMiddleware, Tokens, refusal
from clutch.surfaces.http.routes import AppState, HttpRoute, Replays, endpoint

ENTRIES: tuple[HttpRoute, ...] = (
    *handlers.ENTRIES,
    *handlers.ACTION_ENTRIES,
    *chats.ENTRIES,
    *devices.ENTRIES,
    *events.ENTRIES,
    *metrics.ENTRIES,
    *health.ENTRIES,
    *completions.ENTRIES,
    *responses.ENTRIES,
)
MCP = "/mcp"


def make_app(app: AppState, tokens: Tokens, mcp: ASGIApp, names: frozenset[str]) -> ASGIApp:
    """`names`: what a request may call this gateway."""
    replays = Replays(app)
    routes = [Route(one.path, endpoint(one, app, replays), methods=[one.method]) for one in ENTRIES]
    served = Starlette(routes=[*routes, Route(MCP, mcp)], exception_handlers={HTTPException: _not_routed})
    served.router.redirect_slashes = False
    return AuthMiddleware(served, tokens, app.gateway.visits, names)


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
