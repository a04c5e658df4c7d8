"""Ask the gateway of a state directory, from another process: standard library only, one request at a time.

Address and token are read from the state directory each time. A refusal is raised as `Declined` with the error object
of the gateway; without a gateway it is `NoGateway`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from clutch.core.text.format import typed
from clutch.errors import ClutchError, InvalidInput, NoGateway
from clutch.surfaces import discovery
from clutch.surfaces.discovery import TOKEN_FILE, Address

if TYPE_CHECKING:
    import http.client

PATIENCE_S = 60.0
SILENCE_S = 45.0  #: of a stream that says something every 15 s


class Declined(ClutchError):
    """The gateway refused; `said` is its error object."""

    def __init__(self, status: int, said: Mapping[str, Any]) -> None:
        super().__init__(str(said.get("message", f"the gateway answered {status}")))
        self.status, self.said = status, said

    @property
    def code(self) -> str:
        return str(self.said.get("code", "internal"))


@dataclass(frozen=True, slots=True)
class GatewayClient:
    """`session`: requests are made from that session and see only what is below it."""

    address: Address
    token: str
    session: str | None = None
    remedy: str = "clutch doctor"  #: what to run when it does not answer

    def get(self, path: str, *, patience_s: float = PATIENCE_S, **query: object) -> Any:
        return self._ask("GET", _with_query(path, query), None, {}, patience_s)

    def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Any:
        return self._ask("POST", path, body or {}, {"Idempotency-Key": key} if key else {}, patience_s)

    def delete(self, path: str, **query: object) -> Any:
        return self._ask("DELETE", _with_query(path, query), None, {}, PATIENCE_S)

    def events(
        self, silence_s: float = SILENCE_S, /, **query: object
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """What happens from now on, by its stable name, until the gateway stops or this one is too slow."""
        path = _with_query("/v1/events", query)
        with self._line(silence_s) as line:
            line.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
            answer = line.getresponse()
            if answer.status >= 300:
                heard(answer.status, answer.read())
            yield "here", {}
            yield from _events(answer)

    @contextmanager
    def _line(self, patience_s: float) -> Iterator[http.client.HTTPConnection]:
        import http.client  # slow to load, and not needed without a gateway

        place = urlsplit(self.address.url)
        assert place.hostname is not None, "an address without a host is not read"
        line = http.client.HTTPConnection(place.hostname, place.port, timeout=patience_s)
        try:
            yield line
        except (OSError, http.client.HTTPException) as error:
            said = f"the gateway at {self.address.url} does not answer: {error}"
            raise NoGateway(said, self.remedy) from error
        finally:
            line.close()

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        patience_s: float,
    ) -> Any:
        sent = {"Authorization": f"Bearer {self.token}", **headers}
        if self.session is not None:
            sent["Clutch-Session"] = self.session
        if body is not None:
            sent["Content-Type"] = "application/json"
        with self._line(patience_s) as line:
            line.request(method, path, None if body is None else json.dumps(body), sent)
            answer = line.getresponse()
            return heard(answer.status, answer.read())


def connect(home: Path) -> GatewayClient:
    """Raises NoGateway, UnsafeStateDirectory."""
    found, remedy = discovery.find(home), typed("serve", state=discovery.named_state(home))
    if found is None:
        raise NoGateway(f"no gateway serves {home}; start one with `{remedy}`", remedy)
    try:
        looks = typed("doctor", state=discovery.named_state(home))
        return GatewayClient(found, discovery.read_private(home / TOKEN_FILE), remedy=looks)
    except FileNotFoundError as error:
        raise NoGateway(f"{home} has no token; stop its gateway and start it again", remedy) from error


def task_path(target: str, *rest: str) -> str:
    return _path("/v1/tasks", target, *rest)


def message_path(message: str, verb: str) -> str:
    return _path("/v1/messages", message, verb)


def item_path(target: str) -> str:
    return _path("/v1/inbox", target)


def schedule_path(name: str, *rest: str) -> str:
    return _path("/v1/schedules", name, *rest)


def session_path(target: str, *rest: str) -> str:
    return _path("/v1/sessions", target, *rest)


def _path(where: str, target: str, *rest: str) -> str:
    """Raises InvalidInput: an empty name would be another path."""
    if not target.strip():
        raise InvalidInput("target", "must not be blank")
    return "/".join((where, quote(target, safe=""), *rest))


def _with_query(path: str, query: Mapping[str, object]) -> str:
    wanted = {name: query_text(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(wanted)}" if wanted else path


def query_text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _events(lines: Iterable[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for raw in lines:
        field, _, value = raw.decode("utf-8", "replace").rstrip("\r\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data" and name:
            yield name, json.loads(value)


def heard(status: int, body: bytes) -> Any:
    said = _object(status, body)
    if status < 300:
        return said
    raise Declined(status, refusal_of(said))


def heard_spawn(status: int, body: bytes) -> Any:
    """A refused spawn is answered in the form of an accepted one."""
    said = _object(status, body)
    return said if isinstance(said, dict) and isinstance(said.get("error"), str) else heard(status, body)


def _object(status: int, body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise NoGateway(f"what answered ({status}) is no gateway", typed("doctor")) from error


def refusal_of(said: Any) -> Mapping[str, Any]:
    """Return the error object of a refusal. A refused spawn has a text for an error, all other answers an object."""
    if not isinstance(said, dict):
        return {}
    error = said.get("error", said)
    if isinstance(error, str):
        guessed = "forbidden" if said.get("status") == "forbidden" else "invalid_input"
        return {
            "code": said.get("code", guessed),
            "message": error,
            **{name: said[name] for name in ("limit", "field") if name in said},
        }
    return dict(error)
