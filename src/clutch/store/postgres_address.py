"""The address of a PostgreSQL database, taken apart: its servers, what is set on each connection, and the way around a
pooler. Knows no driver.

    postgresql://user@one:5432,two:5432/name?sslmode=verify-full&schema=fleet&direct=postgresql%3A%2F%2Fone%2Fname

The driver sends every word of the query that it does not know as a startup parameter, which a pooler refuses or, with
`ignore_startup_parameters`, drops silently. So these words are taken out here and set after connecting."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from clutch.errors import StoreError

#: Read by the driver, with all words that begin with ssl.
_DRIVER_WORDS: Final = frozenset(
    ("host", "port", "dbname", "database", "user", "password", "passfile", "service", "krbsrvname", "gsslib")
)
#: Words of libpq for what Clutch decides itself: timeouts, keepalives, and a server that takes writes.
_OWN_WORDS: Final = (
    "target_session_attrs",
    "load_balance_hosts",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
)
_SCHEMES: Final = ("postgresql", "postgres")
_PORT: Final = 5432
_UNREADABLE: Final = (
    "`database` is not a valid address (not shown, it may hold a password): percent-encode special characters of the"
    " password (/ is %2F, @ is %40, # is %23), give ports from 1 to 65535, and write an IPv6 address in brackets"
)


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """`servers`: one URL for each host. `settings`: of the server, set on each connection. `direct`: the server itself,
    where `servers` is a pooler that shares connections."""

    servers: tuple[str, ...]
    settings: Mapping[str, str]
    schema: str | None = None
    direct: PostgresAddress | None = None

    @property
    def session(self) -> PostgresAddress:
        """Where a connection keeps its locks, settings and subscriptions."""
        return self.direct or self


def parse_address(url: str) -> PostgresAddress:
    """Raises StoreError. The message shows no part of the URL: it may hold a password."""
    parts, words = _taken_apart(url)
    direct, schema = words.pop("direct", None), words.pop("schema", None)
    driver = {name: value for name, value in words.items() if name in _DRIVER_WORDS or name.startswith("ssl")}
    settings = {
        name: value for name, value in words.items() if name not in driver and not name.startswith(_OWN_WORDS)
    }
    settings |= dict(_options(settings.pop("options", "")))
    if schema is not None:
        settings["search_path"] = '"' + schema.replace('"', '""') + '"'
    elif "search_path" in settings:
        schema = _first_schema(settings["search_path"])
    servers = tuple(_one_each(parts.netloc, parts.path, driver))
    if direct is None:
        return PostgresAddress(servers, settings, schema)
    straight = parse_address(direct)
    around = PostgresAddress(straight.servers, {**settings, **straight.settings}, straight.schema or schema)
    return PostgresAddress(servers, settings, schema, around)


def _taken_apart(url: str) -> tuple[SplitResult, dict[str, str]]:
    """Return the parts and the words of the query. Raises StoreError for what the driver would stumble over."""
    try:
        parts = urlsplit(url)
        words = dict(parse_qsl(parts.query))
        shlex.split(words.get("options", ""))
        _hosts(parts.netloc, words)
        # A password with / or # ends the part of the URL that has the user and the hosts.
        is_cut = bool(parts.fragment) or ("@" in parts.path and "@" not in parts.netloc)
    except ValueError:
        is_cut, parts, words = True, SplitResult(url.partition(":")[0], "", "", "", ""), {}
    if parts.scheme not in _SCHEMES:
        raise StoreError("`database` is not the address of a PostgreSQL: write postgresql://user@host/name")
    if is_cut:
        raise StoreError(_UNREADABLE)
    return parts, words


def _hosts(netloc: str, words: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return each host with its port, as the driver reads them: the port of the query is for hosts of the query.
    Raises ValueError."""
    hosts = netloc.rpartition("@")[2]
    given = [int(port) for port in words.get("port", "").split(",") if port]
    found = []
    for place, host in enumerate((hosts or words.get("host", "")).split(",")):
        one = urlsplit("" if host.startswith("/") else f"//{host}")
        own = _PORT if one.port is None else one.port
        port = given[place % len(given)] if given and not hosts else own
        found.append((host if host.startswith("/") else unquote(one.hostname or ""), port))
    if not all(0 < port < 2**16 for port in [*given, *(port for _, port in found)]):
        raise ValueError(_UNREADABLE)
    return found


def with_parts(url: str, *, direct: str | None = None, schema: str | None = None) -> str:
    """Return the URL with what stands beside it in the config."""
    parts = {name: value for name, value in (("direct", direct), ("schema", schema)) if value is not None}
    return f"{url}{'&' if '?' in url else '?'}{urlencode(parts)}" if parts else url


def database_name(url: str) -> str:
    """A name without login for what lies beside the database: the same for each spelling of its address, through a
    pooler and around it. It depends on hosts, ports, database and schema only."""
    address = parse_address(url)
    parts, words = _taken_apart(url)
    if (direct := words.get("direct")) is not None:
        return database_name(with_parts(direct, schema=address.session.schema))
    found = _hosts(parts.netloc, words)
    path = parts.path if parts.path.strip("/") else f"/{words.get('dbname') or words.get('database') or ''}"
    name, query = "None:None", {} if address.schema is None else {"schema": address.schema}
    if any(host.startswith("/") for host, _ in found):
        ports = {port for _, port in found}
        port = ",".join(str(port) for _, port in found[: 1 if len(ports) == 1 else None])
        query = (
            {"host": ",".join(host for host, _ in found)}
            | ({"port": port} if ports != {_PORT} else {})
            | query
        )
    elif len(found) > 1:
        name = ",".join(host if port == _PORT else f"{host}:{port}" for host, port in found)
    elif host := found[0][0]:
        name = f"{host}:{None if found[0][1] == _PORT else found[0][1]}"
    return f"{name}{path}?{urlencode(query, safe='/,')}"


def written_name(url: str) -> str:
    """The name of earlier versions, which differs for each spelling of the address."""
    parts, words = _taken_apart(url)
    if (direct := words.get("direct")) is not None:
        return written_name(with_parts(direct, schema=words.get("schema")))
    hosts = parts.netloc.rpartition("@")[2]
    host = hosts if "," in hosts else f"{parts.hostname}:{parts.port}"
    return f"{host}{parts.path}?{parts.query}"


def _one_each(netloc: str, path: str, words: Mapping[str, str]) -> Iterator[str]:
    """The hosts of the URL, or of its query, each by itself: one that is away must not use up the others' time."""
    login, at, hosts = netloc.rpartition("@")
    login = login.replace("@", "%40")  # the driver ends the login at the first one
    named = (hosts or words.get("host", "")).split(",")
    ports = words.get("port", "").split(",")
    if len(ports) not in (1, len(named)):
        raise StoreError(
            f"`database` names {len(named)} hosts and {len(ports)} ports: give one port, or one for each"
        )
    for host, port in zip(named, ports * (len(named) if len(ports) == 1 else 1), strict=True):
        own = {**words, "port": port} if port else dict(words)
        if not hosts and host:
            own["host"] = host
        yield f"postgresql://{login}{at}{host if hosts else ''}{path}?{urlencode(own, quote_via=quote, safe='/')}"


def _options(text: str) -> Iterator[tuple[str, str]]:
    """`-c name=value` and `--name=value`, as libpq passes them to the server."""
    for part in shlex.split(text.replace("-c ", "-c")):
        name, equals, value = part.removeprefix("-c").removeprefix("--").partition("=")
        if not equals:
            raise StoreError(f"`options` of the database is not understood at {part!r}: write -c name=value")
        yield name.replace("-", "_"), value


def _first_schema(search_path: str) -> str | None:
    first = search_path.partition(",")[0].strip()
    quoted = first.startswith('"')
    return None if first in ("", '"$user"', "$user") else first.strip('"') if quoted else first.lower()


# --------------------------------------------------------------------------------------------------
# What several fleets in one database must not share. The server keeps advisory locks and channels per database, so
# each schema has its own numbers below; those of the schema `public` are the ones of the first release.

_LIVES: Final = 0x_C1_07
_MIGRATION: Final = 0x_C1_07_C4


@dataclass(frozen=True, slots=True)
class LockSpace:
    """`lives`: first half of the two-part lock of each worker. `migration`: the lock around a change of the schema.
    `channel`: of the hints."""

    lives: int
    migration: int
    channel: str

    @staticmethod
    def of(schema: str) -> LockSpace:
        if schema == "public":
            return LockSpace(_LIVES, _MIGRATION, "clutch_hints")
        digest = hashlib.sha256(schema.encode()).digest()
        half = int.from_bytes(digest[:4], signed=True)
        return LockSpace(half, (half << 32) | _MIGRATION, f"clutch_hints_{digest[:4].hex()}")
