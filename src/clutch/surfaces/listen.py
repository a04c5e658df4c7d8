"""Where a gateway listens, and what the user must set before another machine can connect.

It always listens on 127.0.0.1, where commands and programs of this machine find it. Another address needs three things:
a setting in the config, the host names of the gateway there, and a token that was created before. Nothing here loads a
library."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from clutch import __version__
from clutch.core.agents import MAIN
from clutch.core.text.format import typed
from clutch.core.validation import check, require
from clutch.errors import GatewayInUse, InvalidInput
from clutch.surfaces import discovery, watchdog
from clutch.surfaces.discovery import LOOPBACK, TOKEN_FILE, Address, Claim, Loaded, named_state, read_private

if TYPE_CHECKING:
    from clutch.api.gateway import Gateway

HERE = "127.0.0.1"
BACKLOG = 128
PORT_FILE = "port"  #: of the state directory: where its gateway listened last
PORT, PORTS_TRIED = 25882, 50  #: C-L-U-T-C on the keys of a telephone, below the ports that systems hand out
PORT_MAX = 65535
_NAME = re.compile(r"[a-z0-9.:-]{1,253}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """`gateway.*`, as far as it is about the socket."""

    #: Address of this machine to listen on; 0.0.0.0 = all. Beyond loopback needs allowRemote.
    host: str = HERE
    #: Port of the gateway. 0 = any free one. Default: 25882, or the next free one if that is taken.
    port: int | None = None
    #: Accept connections of other machines, unencrypted: only in a trusted network or behind a TLS proxy.
    allow_remote: bool = False
    #: Host names by which the gateway may be reached, besides those of loopback.
    allowed_hosts: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check(self)
        require("Listening.port", f"must be between 0 and {PORT_MAX}", is_kept=(self.port or 0) <= PORT_MAX)
        try:
            ip_address(self.host)
        except ValueError as error:
            rule = "must be an address such as 127.0.0.1 or 0.0.0.0, not a name"
            raise InvalidInput("Listening.host", rule) from error
        for name in self.allowed_hosts:
            rule = "each is a name or an address in small letters, without a port and without *"
            require("Listening.allowed_hosts", rule, is_kept=bool(_NAME.fullmatch(name)))

    def at(self, host: str | None, port: int | None) -> ListenSettings:
        """Return the settings with another host or port; None: unchanged."""
        return replace(
            self, host=self.host if host is None else host, port=self.port if port is None else port
        )

    @property
    def is_remote(self) -> bool:
        return not ip_address(self.host).is_loopback

    @property
    def names(self) -> frozenset[str]:
        """The host names that requests may use, those of a proxy in front included."""
        return LOOPBACK | self.allowed_hosts

    def lacks(self) -> InvalidInput | None:
        """Return the error for a missing setting; None: all are there."""
        if self.is_remote and not self.allow_remote:
            rule = "can be reached from other machines; if that is meant, say gateway.allowRemote: true in the config"
            return InvalidInput("gateway.host", f"{self.host} {rule}")
        if self.is_remote and not self.allowed_hosts:
            rule = 'must name what it is called by there, for example ["clutch.example.org"]'
            return InvalidInput("gateway.allowedHosts", rule)
        return None

    def check_agreed(self, home: Path) -> None:
        """Raises InvalidInput naming what is missing, UnsafeStateDirectory."""
        if (lacking := self.lacks()) is not None:
            raise lacking
        if self.is_remote and not _has_token(home):
            makes = typed("token", "--rotate", state=named_state(home))
            raise InvalidInput(
                "gateway.host", f"{self.host} wants a token that is there already: `{makes}` makes one"
            )


def _has_token(home: Path) -> bool:
    try:
        return bool(read_private(home / TOKEN_FILE))
    except FileNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class GatewayReach:
    """Where a gateway that runs can be reached. `hosts`: `gateway.allowedHosts`. `addresses`: where it listens."""

    hosts: tuple[str, ...]
    addresses: tuple[str, ...]
    port: int

    @property
    def is_remote(self) -> bool:
        return any(not ip_address(one).is_loopback for one in self.addresses)


def reach_of(names: frozenset[str], sockets: Sequence[socket.socket]) -> GatewayReach:
    bound = [one.getsockname() for one in sockets]
    return GatewayReach(tuple(sorted(names - LOOPBACK)), tuple(one[0] for one in bound), bound[0][1])


def phone_url(reach: GatewayReach, named: str | None, here: str | None) -> str | None:
    """Return the address at which a phone reaches the gateway; None: there is none. `named`: what the user says that it
    is. `here`: the address of this machine in its network. Raises InvalidInput."""
    if named is not None:
        return _checked_url(reach, named)
    if reach.is_remote and reach.hosts:
        # A name may be that of a proxy; an address is certainly this machine.
        own = [one for one in (*reach.addresses, here) if one in reach.hosts]
        return f"http://{_bracketed((own or reach.hosts)[0])}:{reach.port}"
    # Only a proxy or a tunnel on this machine can use these names, and what it offers to phones is TLS.
    return f"https://{_bracketed(reach.hosts[0])}" if reach.hosts else None


def _checked_url(reach: GatewayReach, named: str) -> str:
    rule = "must be an address such as https://clutch.example.org, without a path"
    try:
        place = urlsplit(named)
        is_whole = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError as error:
        raise InvalidInput("--url", rule) from error
    require("--url", rule, is_kept=is_whole and place.path in ("", "/") and place.username is None)
    require("--url", rule, is_kept=not place.query and not place.fragment)
    if place.hostname not in reach.hosts:
        rule = (
            f"{place.hostname} is not in gateway.allowedHosts, so the gateway would refuse it: add it there"
        )
        raise InvalidInput("--url", rule)
    return f"{place.scheme}://{place.netloc}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextmanager
def listeners(where: ListenSettings, last_port: int | None = None) -> Iterator[list[socket.socket]]:
    """Listen on all addresses with the same port, 127.0.0.1 included. Raises InvalidInput."""
    with ExitStack() as stack:
        wanted = ip_address(where.host)
        hosts = [where.host] if wanted.is_unspecified or where.host == HERE else [HERE, where.host]
        opened: list[socket.socket] = []
        for host in hosts:
            ports = [opened[0].getsockname()[1]] if opened else _ports(where, last_port)
            opened.append(stack.enter_context(_bound(host, ports)))
        yield opened


def _ports(where: ListenSettings, last_port: int | None) -> Sequence[int]:
    """Return the ports to try, in order. An open page finds the gateway again after a restart at the port that it had,
    also where that was not the default, because another gateway was there first."""
    if where.port is not None:
        return [where.port]
    return [*([] if last_port is None else [last_port]), *range(PORT, PORT + PORTS_TRIED), 0]


def _last_port(home: Path) -> int | None:
    try:
        port = int((home / PORT_FILE).read_text())
    except (OSError, ValueError):
        return None
    return port if 0 < port <= PORT_MAX else None


def _keep_port(home: Path, port: int) -> None:
    with suppress(OSError):  # on a full disk the next gateway begins with the default
        (home / PORT_FILE).write_text(str(port))


def _bound(host: str, ports: Sequence[int]) -> socket.socket:
    """Listen on the first of these ports that is free."""
    *others, last = ports
    for port in others:
        try:
            return _opened(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                break
    try:
        return _opened(host, last)
    except OSError as error:
        raise InvalidInput("port", f"{host}:{last} cannot be listened on: {error.strerror}") from error


def _opened(host: str, port: int) -> socket.socket:
    is_six = ip_address(host).version == 6
    family = socket.AF_INET6 if is_six else socket.AF_INET
    # Named in full: asyncio lets small writes go at once (no 40 ms for the second) only where it sees that it is TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_six:  # "::" is 127.0.0.1, too
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        listener.setblocking(False)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


# --------------------------------------------------------------------------------------------------
# The listening socket of a gateway, from the moment its engine works until it stops.
#
# Binding takes microseconds and happens at once; the HTTP libraries are loaded at the first connection, off the event
# loop. A program without clients does not load them.

LOOPBACK_ONLY = ListenSettings()


@asynccontextmanager
async def serving(
    gateway: Gateway, home: Path, where: ListenSettings = LOOPBACK_ONLY, config: Loaded | None = None
) -> AsyncIterator[Claim]:
    """Serve while the block runs; yields the claim with the published address. Raises GatewayInUse, InvalidInput,
    UnsafeStateDirectory."""
    where.check_agreed(home)
    held = await asyncio.to_thread(discovery.claim, home)
    if held is None:
        remedy = typed("ps", state=discovery.named_state(home))
        raise GatewayInUse(f"{home} is served by another gateway already", remedy)
    try:
        discovery.ensure_token(home)
        with watchdog.watching(home), listeners(where, _last_port(home)) as sockets:
            if where.port is None:
                _keep_port(home, sockets[0].getsockname()[1])
            async with asyncio.TaskGroup() as group:
                answering = group.create_task(_answer(gateway, home, where.names, sockets))
                _publish(held, sockets[0], gateway, config)
                yield held
                answering.cancel()
    finally:
        held.release()


def _publish(held: Claim, listener: socket.socket, gateway: Gateway, config: Loaded | None) -> None:
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    url = f"http://{HERE}:{listener.getsockname()[1]}"
    is_background = gateway.leaving is not None and gateway.leaving.is_background
    workspace = str(Path(gateway.services.policy.workspace_of(MAIN) or ".").resolve())
    held.publish(Address(url, os.getpid(), __version__, started_at, is_background, config, workspace))


async def _answer(gateway: Gateway, home: Path, names: frozenset[str], sockets: list[socket.socket]) -> None:
    await _knock(sockets)
    answer = await asyncio.to_thread(_load)
    if gateway.leaving is not None:  # a gateway of its own; a program that embeds Clutch decides for itself
        gc.freeze()  # code is never garbage, and a collection that walks all of it stops every request meanwhile
    await answer(gateway, home, names, sockets)


def _load() -> Callable[[Gateway, Path, frozenset[str], list[socket.socket]], Awaitable[None]]:
    from clutch.surfaces.http.server import answer

    return answer


async def _knock(sockets: list[socket.socket]) -> None:
    """Wait for the first connection. It waits in the backlog until the libraries are loaded."""
    loop, knocked = asyncio.get_running_loop(), asyncio.Event()
    for one in sockets:
        loop.add_reader(one, knocked.set)
    try:
        await knocked.wait()
    finally:
        for one in sockets:
            loop.remove_reader(one)
