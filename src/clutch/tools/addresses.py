"""Which addresses a tool may reach, and URLs parsed so that no other parser reads them differently.

A web page can tell a model which URL to fetch next. So a URL is parsed once, by one narrow rule, and built again from
its parts; a host is an ordinary name or an address in its usual spelling. The address decides: it must be public, or on
the operator's list of exceptions. Nothing is resolved or connected here.

Python's `ipaddress` calls some addresses global that lead to private ones (NAT64, 6to4), and multicast. So for IPv6
only ordinary unicast is allowed, and for IPv4 the networks that are not public are listed here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import quote, urljoin, urlsplit

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

URL_CHARS_MAX = 4096
PORTS = {"http": 80, "https": 443}
# fmt: off
NOT_PUBLIC: tuple[Network, ...] = tuple(map(ip_network, (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
    "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    "168.63.129.16/32",  # looks public; Azure gives every machine its platform there
    "2001::/23",  # protocol assignments, among them Teredo, which carries an IPv4 address
    "2001:db8::/32", "3fff::/20",  # documentation
    "2002::/16",  # 6to4: carries an IPv4 address
)))
# fmt: on
ORDINARY_IPV6 = IPv6Network("2000::/3")  # leaves out loopback, mapped, NAT64, local, multicast
ISATAP = frozenset({0x00005EFE, 0x02005EFE})  # the next 32 bits are an IPv4 address

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_SAFE = "/%:@!$&'()*+,;=~-._?"  # stay as they are in a path or a query
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")


class Unreachable(Exception):
    """This URL is not fetched; the message is for the model."""


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """The target of one request. `host`: a lower-case ASCII name, or an address in its usual spelling."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def is_public(address: Address) -> bool:
    if not address.is_global or any(
        address in network for network in NOT_PUBLIC if network.version == address.version
    ):
        return False
    if isinstance(address, IPv4Address):
        return True
    return address in ORDINARY_IPV6 and (int(address) >> 32) & 0xFFFFFFFF not in ISATAP


@dataclass(frozen=True, slots=True)
class _Exception:
    host: str | None
    network: Network | None
    port: int | None

    def covers(self, host: str, address: Address, port: int) -> bool:
        if self.port not in (None, port):
            return False
        if self.network is None:
            return host == self.host
        return self.network.version == address.version and address in self.network


@dataclass(frozen=True, slots=True)
class Reach:
    """Public addresses at the usual ports, and the exceptions."""

    exceptions: tuple[_Exception, ...] = ()

    def refuses(self, target: FetchTarget, address: Address) -> str | None:
        """Return why the address may not be reached, None where it may."""
        if any(each.covers(target.host, address, target.port) for each in self.exceptions):
            return None
        if not is_public(address):
            return f"{target.host} is not a public address; a person can allow it with allowPrivate"
        if target.port not in PORTS.values():
            return (
                f"port {target.port} is not allowed, only 80 and 443; a person can allow it with allowPrivate"
            )
        return None


def reach_of(allow_private: Iterable[str]) -> Reach:
    """Entries are `host`, `address` or `network/bits`, for all ports or with `:port` (`[::1]:8080`).

    Raises ValueError naming the entry."""
    return Reach(tuple(_exception(entry) for entry in allow_private))


def _exception(entry: str) -> _Exception:
    place, port = _place_and_port(entry)
    try:
        return _Exception(None, ip_network(place), port)
    except ValueError:
        host = place.lower().removesuffix(".")
        if not _NAME.fullmatch(host) or _NUMBER.fullmatch(host.rpartition(".")[2]):
            raise ValueError(f"allowPrivate: {entry!r} is no host, address or network") from None
        return _Exception(host, None, port)


def _place_and_port(entry: str) -> tuple[str, int | None]:
    found = re.fullmatch(r"\[([^\]]+)\](?::([0-9]{1,5}))?", entry) or re.fullmatch(
        r"([^:]+):([0-9]{1,5})", entry
    )
    if found is None:
        return entry, None
    port = int(found[2]) if found[2] else None
    if port is not None and not 0 < port < 65536:
        raise ValueError(f"allowPrivate: {entry!r} has no valid port")
    return found[1], port


def target_of(url: str, base: str | None = None) -> FetchTarget:
    """Raises Unreachable naming the rule. `base`: the URL that redirects here."""
    if len(url) > URL_CHARS_MAX:
        raise Unreachable(f"url: has {len(url)} characters, at most {URL_CHARS_MAX} are allowed")
    if not url.isprintable() or any(char.isspace() or char == "\\" for char in url):
        raise Unreachable("url: must not contain white space, control characters or backslashes")
    try:
        parts = urlsplit(url if base is None else urljoin(base, url))
    except ValueError as error:
        raise Unreachable(f"url: is not a URL: {error}") from error
    if parts.scheme not in PORTS:
        raise Unreachable("url: must begin with http:// or https://")
    if "@" in parts.netloc:
        raise Unreachable("url: must not contain a user name or password")
    found = _AUTHORITY.fullmatch(parts.netloc)
    if found is None or (found[2] and not 0 < int(found[2]) < 65536):
        raise Unreachable("url: has no usual host and port")
    port = int(found[2]) if found[2] else PORTS[parts.scheme]
    path = quote(parts.path or "/", safe=_SAFE) + (
        f"?{quote(parts.query, safe=_SAFE)}" if parts.query else ""
    )
    return FetchTarget(parts.scheme, host_of(found[1]), port, path)


def host_of(written: str) -> str:
    """Return the usual spelling of a host. Raises Unreachable for one that other parsers may read as an address."""
    if written.startswith("["):
        try:
            return str(IPv6Address(written[1:-1]))
        except ValueError as error:
            raise Unreachable("url: has no valid IPv6 address in its brackets") from error
    host = (written if written.isascii() else _ascii(written)).lower().removesuffix(".")
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise Unreachable("url: has a host that is no usual name")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        try:
            return str(IPv4Address(host))
        except ValueError as error:
            raise Unreachable(
                "url: has an IPv4 address in an unusual spelling; write it as 1.2.3.4"
            ) from error
    return host


def _ascii(host: str) -> str:
    import idna  # a large table, and most hosts are ASCII

    try:
        return idna.encode(host, uts46=True).decode()
    except (idna.IDNAError, UnicodeError) as error:
        raise Unreachable("url: has a host that is no usual name") from error


def addresses_of(found: Sequence[str]) -> list[Address]:
    """Parse the answer of a resolver. Addresses with a scope such as `%eth0` are never public."""
    try:
        return [ip_address(each) for each in found]
    except ValueError as error:
        raise Unreachable("url: its host has an address that cannot be read") from error
