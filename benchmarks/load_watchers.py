"""Whoever watches under `load`: many streams of events over plain sockets, in a process that does nothing else.

Counts what comes and prints, as it happens, the number of a root whenever one of its children has ended; `ready` when
all are inside. Until its stdin is closed; then one line of JSON: how many events there were, how many streams ended.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from clutch.surfaces.discovery import read_private

ENDINGS: Final = (b"event: lifecycle:end", b"event: lifecycle:error")
SAID: Final = b": here\n\n"  #: the first words of a stream
CHUNK: Final = 64 * 1024


@dataclass(slots=True)
class Stream:
    """`reports`: the first of each root says which of its children have ended."""

    root: int
    reports: bool
    held: bytes = b""  #: the beginning of what has not come to its end

    def heard(self, data: bytes) -> list[bytes]:
        *whole, self.held = (self.held + data).split(b"\n\n")
        return [event for event in whole if b"event: " in event]


@dataclass(slots=True)
class Seen:
    events: int = 0
    dropped: int = 0
    roots: list[int] = field(default_factory=list)


def key(root: int) -> str:
    return f"agent:main:chat:load-{root}"


def join(place: tuple[str, int], token: str, root: int) -> socket.socket:
    """Back when the gateway has begun to talk."""
    stream = socket.create_connection(place, timeout=60)
    path = f"/v1/events?root={quote(key(root))}"
    head = f"GET {path} HTTP/1.1\r\nHost: {place[0]}:{place[1]}\r\nAuthorization: Bearer {token}\r\n\r\n"
    stream.sendall(head.encode())
    said = b""
    while SAID not in said:
        came = stream.recv(CHUNK)
        if not came:
            raise ConnectionError(f"a watcher was turned away: {said[:200]!r}")
        said += came
    stream.setblocking(False)
    return stream


def watch(url: str, token: str, watchers: int, roots: int) -> Seen:
    seen, at = Seen(), urlsplit(url)
    place = (at.hostname or "", at.port or 0)
    with selectors.DefaultSelector() as selector:
        for number in range(watchers):
            stream = join(place, token, number % roots)
            selector.register(stream, selectors.EVENT_READ, Stream(number % roots, number < roots))
        print("ready", flush=True)
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while True:
            for ready, _ in selector.select():
                if ready.data is None:
                    return seen
                _hear(seen, selector, ready)
            if seen.roots:
                print(*seen.roots, sep="\n", flush=True)
                seen.roots.clear()


def _hear(seen: Seen, selector: selectors.BaseSelector, ready: selectors.SelectorKey) -> None:
    stream: Stream = ready.data
    data = os.read(ready.fd, CHUNK)
    if not data:
        selector.unregister(ready.fileobj)
        seen.dropped += 1
        return
    events = stream.heard(data)
    seen.events += len(events)
    if stream.reports:
        seen.roots += [stream.root for event in events if any(end in event for end in ENDINGS)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--watchers", type=int, required=True)
    parser.add_argument("--roots", type=int, required=True)
    given = parser.parse_args()
    seen = watch(given.url, read_private(given.state / "token"), given.watchers, given.roots)
    print(json.dumps({"events": seen.events, "dropped": seen.dropped}), flush=True)
