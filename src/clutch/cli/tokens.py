"""`clutch token`: where it is kept; and another in its place, which shows out whoever is inside by the old one."""

from __future__ import annotations

from pathlib import Path

from clutch.cli.asking import answering, command_for, home_of, print_object, say
from clutch.errors import NoGateway
from clutch.surfaces.address import TOKEN_FILE, read_token, rotate_token


def token(state: Path | None, *, rotates: bool, as_json: bool) -> None:
    with answering("token", as_json=as_json):
        path = home_of(state) / TOKEN_FILE
        try:
            read_token(path)  # one that others could read is said so
        except FileNotFoundError as error:
            if not rotates:
                remedy = command_for(state, "token", "--rotate")
                raise NoGateway(f"{path.parent} has no token; its first gateway makes one", remedy) from error
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if rotates:
            rotate_token(path.parent)
        status = "rotated" if rotates else "kept"
        if as_json:
            print_object("token", {"status": status, "path": str(path)})
        else:
            say(f"{status}: {path}")
