"""Which token opens what: `token` everything, `token.read`, `token.read+write` … what their names say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from clutch.core.authority import OperatorCaller, Scope
from clutch.errors import UnsafeStateDirectory
from clutch.surfaces.address import TOKEN_FILE, read_token

PERSON = "person"  #: in timelines: whoever holds the owner's own token


def callers(home: Path) -> Mapping[str, OperatorCaller]:
    """Read anew each time it is asked: a token that was taken away or changed opens nothing any more.

    One that others could read opens nothing either; whoever tries to use it is told so by `read_token`."""
    found: dict[str, OperatorCaller] = {}
    for name in os.listdir(home):
        scopes = _scopes_named(name)
        if scopes is None:
            continue
        with suppress(FileNotFoundError, UnsafeStateDirectory):
            if token := read_token(home / name):
                found[token] = OperatorCaller(scopes, PERSON if name == TOKEN_FILE else name)
    return found


def _scopes_named(name: str) -> frozenset[Scope] | None:
    """None: not the name of a token, or of one with a scope that does not exist."""
    if name == TOKEN_FILE:
        return frozenset({Scope.ADMIN})
    kind, _, ending = name.partition(".")
    scopes = set(ending.split("+"))
    if kind != TOKEN_FILE or not scopes <= set(Scope):
        return None
    return frozenset(map(Scope, scopes))
