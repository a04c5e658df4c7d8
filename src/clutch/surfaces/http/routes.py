"""From an HTTP request to its answer: what a handler is given, one line of the table of paths, and what is the same for
every path. Errors become objects, and the answers to writes are kept under their `Idempotency-Key`. The OpenAPI
document is made from the same table."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    ParamSpec,
    TypeAlias,
    TypedDict,
    get_args,
    get_type_hints,
)
from urllib.parse import unquote
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core.core_schema import TypedDictSchema
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypeVar, Unpack

from clutch import __version__
from clutch.api import objects, reads
from clutch.api.actions import ActionBody, ActionCall, Actions, ApiAction, check_key
from clutch.api.feed import Feed
from clutch.api.health import InvariantReport
from clutch.api.overview import Overviews
from clutch.api.problems import STATUS, Problem, problem_of
from clutch.api.reads import standpoint
from clutch.api.schema import ProblemAnswer
from clutch.core.authority import OperatorCaller, Scope
from clutch.core.ids import ROW_NUMBER_MAX
from clutch.errors import ClutchError, InvalidInput
from clutch.logs import logger
from clutch.store.transaction import TxFunction
from clutch.surfaces.http.auth import CALLER, DEVICE, TOKEN, refusal
from clutch.surfaces.http.browser import PRIVATE, Browsers
from clutch.surfaces.listen import GatewayReach
from clutch.transactions import idempotency
from clutch.transactions.read.lists import PAGE_MAX
from clutch.transactions.read.targets import Standpoint

if TYPE_CHECKING:
    from clutch.api.gateway import Gateway

# --------------------------------------------------------------------------------------------------
# What a caller may send, strictly: an unknown field, a text where a number belongs, or half a JSON is an error.
#
# Sizes are checked while reading: a large body is refused before it is held in memory.

BODY_BYTES_MAX = 1024 * 1024
#: What pydantic calls an unknown field of a model, and of a dataclass.
UNKNOWN_FIELD = frozenset({"extra_forbidden", "unexpected_keyword_argument"})

M = TypeVar("M", bound=BaseModel | ActionBody)


class Body(BaseModel):
    """A JSON body: types are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Query(BaseModel):
    """Query parameters: text that is converted to the type of its field."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PageQuery(Query):
    """A piece of a transcript."""

    after: Annotated[int, Field(ge=0, le=ROW_NUMBER_MAX)] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_MAX)] = PAGE_MAX


async def read_body(request: Request, model: type[M], bytes_max: int = BODY_BYTES_MAX) -> tuple[M, bytes]:
    """Return the body and its bytes. An empty body is an empty object."""
    raw = await _read(request, bytes_max)
    if raw and request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Problem("invalid_input", "Content-Type: must be application/json", field="Content-Type")
    return checked_body(raw, model), raw


def checked_body(raw: bytes, model: type[M]) -> M:
    try:
        found: M = _adapter(model).validate_json(raw or b"{}")
    except ValidationError as error:
        raise _named(error) from error
    return found


def read_query(request: Request, model: type[M]) -> M:
    given = request.query_params
    repeated = [name for name in given if len(given.getlist(name)) > 1]
    if repeated:
        raise Problem("invalid_input", "a parameter is given twice", field=repeated[0])
    return checked_query(given, model)


def checked_query(given: Mapping[str, Any], model: type[M]) -> M:
    try:
        found: M = _adapter(model).validate_python(dict(given))
    except ValidationError as error:
        raise _named(error) from error
    return found


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}  # one for each model: making one takes milliseconds


def _adapter(model: type[Any]) -> TypeAdapter[Any]:
    if model not in _ADAPTERS:
        _ADAPTERS[model] = TypeAdapter(model)
    return _ADAPTERS[model]


async def _read(request: Request, bytes_max: int) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > bytes_max:
        raise _too_large(bytes_max)
    read = bytearray()
    async for piece in request.stream():
        read += piece
        if len(read) > bytes_max:
            raise _too_large(bytes_max)
    return bytes(read)


def _too_large(bytes_max: int) -> Problem:
    return Problem(
        "too_large", f"the body has more than {bytes_max} bytes", rule=f"at most {bytes_max} bytes"
    )


def _named(error: ValidationError) -> Problem:
    """Return the first error with the name of its field, never with the value that was sent."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"])) or "body"
    match first["type"]:
        case "missing" | "missing_argument":
            rule = "is required"
        case unknown if unknown in UNKNOWN_FIELD:
            rule = "is not a field here"
        case _:
            rule = re.sub(r"^\w+ should", "must", first["msg"])
    return Problem("invalid_input", f"{field}: {rule}", field=field, rule=rule)


WIRE = "clutch.wire"  #: in the scope: the connection itself, where there is one


T = TypeVar("T")
P = ParamSpec("P")
B = TypeVar("B", bound=Body | ActionBody, default=ActionBody)
Q = TypeVar("Q", bound=Query, default=Query)
A = TypeVar("A", bound=ActionBody)


@dataclass(frozen=True, slots=True)
class AppState:
    """What all handlers share. `closing`: set when the gateway stops; requests that wait and streams end then."""

    gateway: Gateway
    feed: Feed
    closing: asyncio.Event
    browsers: Browsers
    overviews: Overviews
    invariants: InvariantReport
    reach: GatewayReach
    tokens: Callable[[], Iterable[str]]  #: the valid ones, each time it is asked
    state: str | None = None  #: as printed commands name the state directory; None: they need not

    @property
    def actions(self) -> Actions:
        return Actions(self.gateway.services)

    async def read(self, fn: TxFunction[P, T], *args: P.args, **named: P.kwargs) -> T:
        return await self.gateway.services.db.read(fn, *args, **named)

    async def write(self, fn: TxFunction[P, T], *args: P.args, **named: P.kwargs) -> T:
        return await self.gateway.services.db.alone(fn, *args, **named)


@dataclass(frozen=True, slots=True)
class Ask(Generic[B, Q]):
    app: AppState
    caller: OperatorCaller
    path: Mapping[str, str]  #: decoded
    query: Q
    body: B
    headers: Mapping[str, str]
    key: str | None  #: `Idempotency-Key`: what is done under it is done once
    session: str | None = None  #: the key of the session the caller speaks from, if it said one
    token: str = field(default="", repr=False)  #: the token of the caller
    device: str | None = None  #: the id of the browser that is signed in; None: another client

    @property
    def target(self) -> str:
        return self.path["target"]

    @property
    def who(self) -> Standpoint:
        return standpoint(self.caller)


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """`status`: 0 = that of the route."""

    body: T
    status: int = 0


Handler: TypeAlias = Callable[[Ask[Any, Any]], Awaitable[Reply[Any] | Response]]


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """`scope`: what it takes to get as far as the handler; the guard of the verbs asks again for the target.

    `answer`: what its answers look like, if they are JSON; `refusal`: what it says no with, beside errors. `tool`: its
    name for MCP clients, described in the first line of the handler; `resource`: what they read there instead. Who
    speaks from a session has these paths and no others."""

    method: str
    path: str
    scope: Scope
    handler: Handler
    body: type[Body | ActionBody] = ActionBody
    query: type[Query] = Query
    bytes_max: int = BODY_BYTES_MAX
    answer: Any = None  #: a class of `api/objects.py`
    tool: str | None = None
    resource: str | None = None
    refusal: Any = None
    status: int = 200
    dry_status: int | None = None  #: where nothing was created
    media: str = "application/json"
    error_json: Callable[[Problem], Mapping[str, Any]] = Problem.to_json  #: an error, as its clients read it

    @property
    def is_write(self) -> bool:
        return self.method != "GET"

    async def answered(self, ask: Ask[Any, Any]) -> Reply[Any] | Response:
        """Run the handler. A reply without a status of its own gets that of the route."""
        reply = await self.handler(ask)
        return reply if isinstance(reply, Response) or reply.status else replace(reply, status=self.status)

    @property
    def about(self) -> str:
        """Return what the path does: the first paragraph of its handler's docstring."""
        return " ".join(inspect.cleandoc(self.handler.__doc__ or "").partition("\n\n")[0].split())


class RouteOptions(TypedDict, total=False):
    """Fields of an `HttpRoute` that the annotations of its handler do not say."""

    bytes_max: int
    answer: Any
    tool: str
    resource: str
    refusal: Any
    status: int
    dry_status: int
    media: str
    error_json: Callable[[Problem], Mapping[str, Any]]


def route(
    method: str, path: str, scope: Scope | None = None, **options: Unpack[RouteOptions]
) -> Callable[[Handler], HttpRoute]:
    """Make a route of a handler, whose annotations name the body, the query and the object of the answer.

    Without a scope, reading needs `read` and everything else `write`."""

    def made(handler: Handler) -> HttpRoute:
        hints = get_type_hints(handler)
        given = get_args(hints["ask"])
        body = given[0] if given else ActionBody
        query = given[1] if len(given) > 1 else Query
        options.setdefault("answer", next(iter(get_args(hints["return"])), None))
        needed = scope or (Scope.READ if method == "GET" else Scope.WRITE)
        return HttpRoute(method, path, needed, handler, body, query, **options)

    return made


# --------------------------------------------------------------------------------------------------
# `Idempotency-Key`: the same key and body get the same answer, kept in the store; another body is a conflict.
#
# Only the answer of a request that changed something is kept; a refusal changed nothing, so a repeated request is a new
# one. Of two requests with one key at the same moment, the second waits for the answer of the first. When a gateway
# dies between the action and keeping its answer, the repeated action finds what was done under its key. Two gateways
# on one database may get the same request at the same moment: the answer that was kept first is the answer of both.

REPLAY = {"idempotent-replay": "true"}


class Replays:
    def __init__(self, app: AppState) -> None:
        self._app = app
        self._under_way: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def once(
        self, key: str, said: str, act: Callable[[], Awaitable[Reply[Any] | Response]]
    ) -> Response:
        """Act once for a key, which contains the caller. `said`: a digest of the request."""
        async with self._under_way.setdefault(key, asyncio.Lock()):
            kept = await self._app.read(idempotency.kept_reply, key)
            if kept is not None:
                return _again(kept, said)
            reply = await act()
            if isinstance(reply, Response):
                return reply
            if reply.status < 300:
                mine = idempotency.Kept(said, reply.status, json.dumps(reply.body))
                kept = await self._app.write(idempotency.keep, key, said, mine.status, mine.body)
                if kept != mine:
                    return _again(kept, said)
            return JSONResponse(reply.body, reply.status)


def _again(kept: idempotency.Kept, said: str) -> Response:
    if kept.request != said:
        raise Problem(
            "idempotency_conflict",
            "this Idempotency-Key was used for another request",
            field="Idempotency-Key",
            remedy="use a new key for a new request",
        )
    return JSONResponse(json.loads(kept.body), kept.status, REPLAY)


# --------------------------------------------------------------------------------------------------
# A caller with a session (`Clutch-Session: agent:main:chat:NAME`) sees and changes only what is below that session.
#
# An MCP client, or any program that must not touch the tasks of others, sends the header with each request. It may use
# the paths that are tools, and everything outside of its tree is unknown to it.

HEADER = "clutch-session"


async def admitted(
    app: AppState, entry: HttpRoute, caller: OperatorCaller, session: str | None
) -> OperatorCaller:
    """Return the caller, restricted to the session it names. Raises Problem for a missing scope, InvalidInput for what
    is no main session, NotFound for a new session of a caller that may only read."""
    if not caller.scopes & {entry.scope, Scope.ADMIN}:
        raise Problem("forbidden", f"this token does not have the scope {entry.scope}", rule="scope")
    if session is None:
        return caller
    if entry.tool is None and entry.resource is None:
        raise Problem("forbidden", "who speaks from a session cannot ask for this", rule="session")
    if caller.scopes & {Scope.WRITE, Scope.ADMIN}:
        number, _ = await app.gateway.session(session)
    else:
        number = await app.read(reads.session_number, reads.standpoint(caller), session)
    return replace(caller, actor=session, within=number)


# --------------------------------------------------------------------------------------------------
# From a request to its answer: the same for every path.

INTERNAL = "something went wrong inside the gateway; its log says what"

log = logger(__name__)


def endpoint(entry: HttpRoute, app: AppState, replays: Replays) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            response = await _respond(entry, app, replays, request)
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone
        except ClutchError as error:
            problem = problem_of(error)
            response = refusal(problem, entry.error_json, closes=problem.code == "too_large")
        except Exception:  # a bug of ours must not end the connection without an answer
            log.exception("Request %s %s failed (status 500)", entry.method, entry.path)
            response = refusal(Problem("internal", INTERNAL), entry.error_json)
        response.headers.update(PRIVATE)
        return response

    return respond


async def _respond(entry: HttpRoute, app: AppState, replays: Replays, request: Request) -> Response:
    session = request.headers.get(HEADER)
    caller = await admitted(app, entry, request.scope[CALLER], session)
    body, raw = await read_body(request, entry.body, entry.bytes_max)
    key = _key(request) if entry.is_write else None
    ask = Ask(
        app=app,
        caller=caller,
        path={name: unquote(value) for name, value in request.path_params.items()},
        query=read_query(request, entry.query),
        body=body,
        headers=request.headers,
        key=key,
        session=session,
        token=request.scope[TOKEN],
        device=request.scope[DEVICE],
    )
    if key is None:
        return _rendered(await entry.answered(ask))
    asked = (entry.method.encode(), request.scope["raw_path"], request.scope["query_string"], raw)
    said = hashlib.sha256(b"\0".join(asked)).hexdigest()
    own = "\n".join((request.scope[CALLER].actor, session or "", key))  # none of them holds a line end
    return await replays.once(own, said, lambda: entry.answered(ask))


def _key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    try:
        check_key(key)
    except InvalidInput as error:
        raise InvalidInput("Idempotency-Key", error.rule) from error
    return key


def _rendered(reply: Reply[Any] | Response) -> Response:
    return reply if isinstance(reply, Response) else JSONResponse(reply.body, reply.status)


def action_route(action: ApiAction[A]) -> HttpRoute:
    """Return the route of an action, with its description for OpenAPI and MCP."""

    async def act(ask: Ask[A]) -> Reply[Any]:
        (target,) = ask.path.values()
        call = ActionCall(ask.caller, target, ask.body, ask.key)
        return Reply(await action.run(ask.app.actions, call))

    act.__doc__ = action.run.__doc__
    # `api/actions.py` names the class for mypy only: a gateway that serves no HTTP does not load the objects.
    answer = vars(objects)[inspect.get_annotations(action.run)["return"].removeprefix("objects.")]
    tool = action.name if action.is_tool else None
    return HttpRoute(
        "POST", action.path, action.scope, act, action.body, answer=answer, tool=tool, status=action.status
    )


# --------------------------------------------------------------------------------------------------
# The OpenAPI document, made from the table of paths, the models of requests and the objects of `api/objects.py`


Json = dict[str, Any]
Known = Mapping[Any, Json]  #: by the model, how it is referred to

REF = "#/components/schemas/{model}"
KEY_PARAMETER: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
    "description": "the same key and body get the same answer",
}


class PublishedSchemas(GenerateJsonSchema):
    """Schemas under the names that clients know: without the `Object` at the end of a class of ours."""

    def normalize_name(self, name: str) -> str:
        return super().normalize_name(name).removesuffix("Object")

    def typed_dict_schema(self, schema: TypedDictSchema) -> JsonSchemaValue:
        made = super().typed_dict_schema(schema)
        return made | {"title": made["title"].removesuffix("Object")}


def schema_of(model: Any, mode: JsonSchemaMode) -> Json:
    return TypeAdapter(model).json_schema(mode=mode, schema_generator=PublishedSchemas)


def document(entries: Iterable[HttpRoute]) -> Json:
    entries = list(entries)
    used = sorted({model for entry in entries for model in _models(entry)}, key=lambda model: model.__name__)
    adapters: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]] = [
        (model, "validation", TypeAdapter(model)) for model in used
    ]
    refs, defined = TypeAdapter.json_schemas(adapters, ref_template=REF, schema_generator=PublishedSchemas)
    known: Known = {model: ref for (model, _), ref in refs.items()}
    paths: Json = {}
    for entry in entries:
        paths.setdefault(entry.path, {})[entry.method.lower()] = _operation(entry, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Clutch", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": defined.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _models(entry: HttpRoute) -> Iterator[Any]:
    yield ProblemAnswer
    yield from (model for model in (entry.answer, entry.refusal) if model is not None)
    if entry.body is not ActionBody:
        yield entry.body


def _operation(entry: HttpRoute, known: Known) -> Json:
    operation: Json = {
        "operationId": f"{entry.method.lower()}{re.sub(r'[^a-zA-Z]+', '_', entry.path)}".strip("_"),
        "description": f"{entry.about} Scope: {entry.scope}.",
        "x-scope": entry.scope.value,
        "parameters": [*_parameters(entry)],
        "responses": _responses(entry, known),
    }
    if entry.body is not ActionBody:
        is_needed = bool(schema_of(entry.body, "validation").get("required"))
        content = {"application/json": {"schema": known[entry.body]}}
        operation["requestBody"] = {"required": is_needed, "content": content}
    return operation


def _parameters(entry: HttpRoute) -> Iterator[Json]:
    for name in re.findall(r"{(\w+)}", entry.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    asked = entry.query.model_json_schema(ref_template="#/$defs/{model}")
    for name, given in asked.get("properties", {}).items():
        yield {"name": name, "in": "query", "schema": _inlined(given, asked.get("$defs", {}))}
    if entry.is_write:
        yield KEY_PARAMETER


def _inlined(given: Any, defined: Json) -> Any:
    """Parameters have no place for definitions of their own."""
    if isinstance(given, list):
        return [_inlined(one, defined) for one in given]
    if not isinstance(given, dict):
        return given
    if "$ref" in given:
        return _inlined(defined[given["$ref"].rpartition("/")[2]], defined)
    return {name: _inlined(value, defined) for name, value in given.items()}


def _responses(entry: HttpRoute, known: Known) -> Json:
    schema = {"type": "string"} if entry.answer is None else known[entry.answer]
    problem = known[ProblemAnswer]
    if entry.refusal is not None:
        problem = {"anyOf": [problem, known[entry.refusal]]}
    said: Json = {
        str(status): {"description": meaning, "content": {entry.media: {"schema": schema}}}
        for status, meaning in ((entry.status, "done"), (entry.dry_status, "nothing was created: a dry run"))
        if status is not None
    }
    for code, status in STATUS.items():
        known_as = said.setdefault(str(status), {"description": code})
        known_as["description"] = " or ".join(dict.fromkeys([*known_as["description"].split(" or "), code]))
        known_as["content"] = {"application/json": {"schema": problem}}
    return said
