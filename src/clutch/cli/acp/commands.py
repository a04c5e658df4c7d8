"""`clutch acp`: serve an editor; `clutch acp list`: agents that can be subagents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from clutch.cli.options import AsJson, State
from clutch.cli.output import answering, gateway, home_of, report
from clutch.core.agents import MAIN
from clutch.core.text.format import visible
from clutch.errors import ClutchError, InvalidInput, extra
from clutch.surfaces.discovery import LOOPBACK

if TYPE_CHECKING:
    from clutch.wiring import AcpListing

BYTES_MAX: Final = 8 * 1024 * 1024  #: of a registry; the official one has a few hundred kilobytes
FETCH_S: Final = 15.0
DESCRIPTION_SHOWN: Final = 70
INSTALL_SHOWN: Final = 200

editors = typer.Typer()


@editors.callback(invoke_without_command=True)
def acp(
    context: typer.Context,
    state: State = None,
    agent: Annotated[str, typer.Option(help="Agent of new conversations.")] = MAIN,
    session: Annotated[
        str | None,
        typer.Option(
            help="Main session of every conversation, e.g. agent:main:main. Default: a new one each."
        ),
    ] = None,
) -> None:
    """Serve a main agent to an editor on stdin and stdout.

    Zed, JetBrains and others start it, over the Agent Client Protocol. Conversations and their subagents outlive the
    editor. `clutch acp list` lists the agents of others that can be subagents.

    Example: clutch acp --session agent:main:main"""
    if context.invoked_subcommand is not None:
        return
    with answering("acp", as_json=False):
        with extra("acp", "`clutch acp`"):
            import asyncio

            from clutch.cli.acp.editor_agent import EditorWish, check_pipes, serve

        check_pipes()
        gateway(state, is_new_work=True)
        asyncio.run(serve(EditorWish(home_of(state), agent, session)))


@editors.command("list")
def listed(
    registry: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="Also list the agents of this registry, a file or an https address of its index.",
        ),
    ] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """List external agents that can be subagents.

    It shows which are installed. Nothing is downloaded or installed, except the index that --registry names.

    Example: clutch acp list"""
    with answering("acp.list", as_json=as_json):
        from clutch.config import load
        from clutch.wiring import known_listings, registry_listings

        configured = load.load(home_of(state)).settings.acp
        known = known_listings(configured)
        offered = [] if registry is None else registry_listings(_document(registry))
        said = {"agents": [*map(_object, known)], "registry": [*map(_object, offered)]}
        report("acp.list", said, "\n".join(_lines(known, offered)), as_json=as_json)


def _document(place: str) -> bytes:
    """Read a file, or an index over HTTPS. Raises ClutchError."""
    try:
        if "://" not in place:
            with Path(place).expanduser().open("rb") as file:
                return _bounded(file.read(BYTES_MAX + 1))
        return _fetched(place)
    except OSError as error:
        raise ClutchError(f"the registry {place[:200]!r} cannot be read: {error}") from error


def _fetched(url: str) -> bytes:
    import http.client  # slow to load, and not needed for a file
    import urllib.request

    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise InvalidInput("--registry", "must be a file or an https:// address")
    try:
        with urllib.request.urlopen(url, timeout=FETCH_S) as answer:  # noqa: S310 - the scheme is checked above
            return _bounded(answer.read(BYTES_MAX + 1))
    except http.client.HTTPException as error:
        raise ClutchError(f"the registry {url[:200]!r} cannot be read: {error!r}") from error


def _bounded(document: bytes) -> bytes:
    if len(document) > BYTES_MAX:
        raise InvalidInput("--registry", f"must have at most {BYTES_MAX} bytes")
    return document


def _object(one: AcpListing) -> Mapping[str, Any]:
    return {
        "name": one.name,
        "version": one.version,
        "description": one.description,
        "command": list(one.command),
        "install": one.install,
        "program": one.program,
        "isConfigured": one.is_configured,
    }


def _where(one: AcpListing) -> str:
    if one.program is not None:
        return f"installed: {one.program}"
    return f"not installed: {visible(one.install, INSTALL_SHOWN)}" if one.install else "not installed"


def _lines(known: Iterable[AcpListing], offered: Iterable[AcpListing]) -> Iterator[str]:
    for one in known:
        use = "configured" if one.is_configured else "known"
        yield f"{f'acp:{one.name}':<20}  {use:<10}  {_where(one)}"
    for one in offered:
        about = visible(one.description, DESCRIPTION_SHOWN)
        yield f"{visible(one.name, 40):<20}  {visible(one.version or '', 10):<10}  {about}"
        yield f"{'':<20}  {'':<10}  {_where(one)}"
