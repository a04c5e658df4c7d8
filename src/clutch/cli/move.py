"""Commands that take everything to another place: move, backup and restore.

This module is loaded by every command, so that what only one of them needs is imported when it runs."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from clutch.cli.options import AsJson, State
from clutch.cli.output import answering, command_for, home_of, print_object, print_text, report, say
from clutch.core.text.format import counted, size, typed
from clutch.errors import InvalidInput, NoGateway, NotFound
from clutch.surfaces.discovery import CONFIG_FILE
from clutch.surfaces.http_client import connect

if TYPE_CHECKING:
    from clutch.wiring.move import MoveEnd, MoveReport

T = TypeVar("T")

moves = typer.Typer()

Database = Annotated[
    str | None,
    typer.Option(
        help="PostgreSQL address. Default: `database` of the config, else the file in the state directory.",
        show_default=False,
    ),
]
POSTGRES = ("postgresql://", "postgres://")


@moves.command()
def move(
    to: Annotated[
        str | None,
        typer.Option(help="postgresql://… or a state directory. It must be empty.", show_default=False),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Stay: open the source again, before the move is complete.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would move; change nothing.")] = False,
    database: Database = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Move all tasks to PostgreSQL, or to another state directory.

    Ids are kept, and unfinished tasks resume at the target. Stop the gateway first. If the command is interrupted, run
    it again: it continues.

    Example: clutch move --to postgresql://db.example/clutch"""
    with answering("move", as_json=as_json):
        from clutch.wiring import move as moving

        home = home_of(state)
        if cancel:
            _run(moving.cancel(_end(home, database, "")))
            return report("move", {"cancelled": True}, "Cancelled: the gateway can start.", as_json=as_json)
        if not to:
            raise InvalidInput("--to", "name the target: postgresql://… or a state directory")
        source, target = _end(home, database, to), _target(home, to)
        _refuse_missing(source)
        is_named = target.database is None and _configured(target.home) is not None
        done = moving.rehearse(source) if dry_run else _run(moving.move(source, target, say))
        body = _body(done, source, target) | {"dryRun": dry_run}
        report("move", body, _text(done, source, target, is_rehearsal=dry_run), as_json=as_json)
        if not dry_run:
            _say_next(done, target, state, is_named=is_named)


def _run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio

    return asyncio.run(work)


def _end(home: Path, database: str | None, to: str) -> MoveEnd:
    """The source: what the gateway of this state directory uses. A config that names the target already is early."""
    from clutch.wiring.move import MoveEnd

    configured = database or _configured(home)
    return MoveEnd(home, None if configured == to else configured)


def _target(home: Path, to: str) -> MoveEnd:
    """Any other address is a mistake, not a directory of that name. It may hold a password, so it is not shown."""
    from clutch.wiring.move import MoveEnd

    if to.startswith(POSTGRES):
        return MoveEnd(home, to)
    if "://" in to or "password=" in to or to.startswith("postgres"):
        rule = (
            "it is not a PostgreSQL address: write postgresql://user@host/name, or a directory as ./postgres"
        )
        raise InvalidInput("--to", rule)
    return MoveEnd(Path(to))


def _configured(home: Path) -> str | None:
    if not (home / CONFIG_FILE).exists():
        return None
    from clutch.config import load

    return load.load(home).settings.database_address


def _refuse_missing(source: MoveEnd) -> None:
    from clutch.offline_reader import DATABASE_FILE

    if source.database is None and not (source.home / DATABASE_FILE).exists():
        raise NotFound(
            f"{source.home} has no database; name another state directory with --state, or a server with --database"
        )


def _body(done: MoveReport, source: MoveEnd, target: MoveEnd) -> dict[str, Any]:
    return {
        "moveId": done.move_id or None,
        "source": source.address,
        "target": target.address,
        "rows": done.rows,
        "files": done.files.files,
        "fileBytes": done.files.bytes,
        "filesIn": str(target.home.absolute()),
        "worktrees": done.files.worktrees,
        "seconds": round(done.seconds, 3),
    }


def _text(done: MoveReport, source: MoveEnd, target: MoveEnd, *, is_rehearsal: bool) -> str:
    verb = "Would move" if is_rehearsal else "Moved"
    rows = f"{counted(sum(done.rows.values()), 'row')}, {counted(done.rows.get('tasks', 0), 'task')}"
    return f"{verb} {source.address} to {target.address}: {rows}, {counted(done.files.files, 'file')}."


def _say_next(done: MoveReport, target: MoveEnd, state: Path | None, *, is_named: bool) -> None:
    """`is_named`: the config in the target directory names another database, which its gateway would use."""
    for place in done.files.worktrees:
        say(f"{place} is a copy of a git worktree: run `git worktree repair {place}` in its repository.")
    if target.database is None:
        first = f"remove `database` from {target.home / CONFIG_FILE}, then " if is_named else ""
        return say(f"Next: {first}`{typed('serve', '--state', str(target.home))}`.")
    if done.files.files:
        say(
            f"{counted(done.files.files, 'file')} of tasks ({size(done.files.bytes)}) stay on this machine, below"
            f" {target.home}; gateways on other machines do not have them."
        )
    say(
        f"Next: set `database` in clutch.json to the address of the target, then `{command_for(state, 'serve')}`."
    )


@moves.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new file to write.")],
    database: Database = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Copy the database to a file while work continues.

    A PostgreSQL database becomes a SQLite file. Not in it: clutch.json, the token and the files of tasks.

    Example: clutch backup monday.db"""
    with answering("backup", as_json=as_json):
        home = home_of(state)
        address = database or _configured(home)
        if address is None and _is_postgres(home):
            raise InvalidInput(
                "--database", f"{home} uses PostgreSQL; give its address: --database postgresql://…"
            )
        try:
            count = _copy(home, address, file)
        except OSError as error:
            raise InvalidInput(
                "FILE", f"{file} cannot be written: {error.strerror}; name another file"
            ) from error
        if as_json:
            return print_object("backup", {"file": str(file), "bytes": count})
        print_text(f"Wrote {file} ({size(count)}).")
        say(f"To restore it: `{typed('restore', str(file), '--state', 'DIR')}`.")


def _copy(home: Path, address: str | None, file: Path) -> int:
    if address is not None:
        from clutch.wiring.move import back_up_server

        return back_up_server(address, file)
    from clutch.offline_reader import DATABASE_FILE, copy

    if not (home / DATABASE_FILE).exists():
        raise NotFound(f"{home} has no database to back up; name another state directory with --state")
    return copy(home, file)


def _is_postgres(home: Path) -> bool:
    """Whether a running gateway of the state directory works on PostgreSQL."""
    try:
        return bool(connect(home).get("/v1/health")["database"] == "postgresql")
    except NoGateway:
        return False


@moves.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `clutch backup` wrote.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace the database that is there; it is kept aside.")
    ] = False,
    database: Database = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Restore a backup; its unfinished tasks resume.

    The backup is verified first. PostgreSQL must be empty.

    Example: clutch restore monday.db --state ~/restored"""
    with answering("restore", as_json=as_json):
        home = home_of(state)
        address = database or _configured(home)
        if address is None and _is_postgres(home):
            raise InvalidInput(
                "--database", f"{home} uses PostgreSQL; give its address: --database postgresql://…"
            )
        if force and address is not None:
            raise InvalidInput(
                "--force", "a PostgreSQL database is not replaced: name an empty one, without --force"
            )
        body = (
            _to_directory(file, home, is_forced=force) if address is None else _to_server(file, home, address)
        )
        if as_json:
            return print_object("restore", body)
        print_text(
            f"Restored {file} to {body['state']} ({size(body['bytes'])}): {counted(body['tasks'], 'task')}, "
            f"{body['unfinished']} unfinished."
        )
        if body["kept"] is not None:
            print_text(f"The previous database is kept as {body['kept']}.")
        say("Unfinished tasks resume when a gateway starts; stop the original first, or both do the work.")
        say(f"Next: `{command_for(state, 'status')}`, then `{command_for(state, 'serve')}`.")


def _to_directory(file: Path, home: Path, *, is_forced: bool) -> dict[str, Any]:
    from datetime import UTC, datetime

    from clutch.wiring import restore as restoring

    done = restoring.restore(file, home, is_forced=is_forced, stamp=f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    kept = None if done.kept is None else str(done.kept)
    about = {"file": str(file), "state": str(home), "bytes": done.bytes, "schema": done.content.schema}
    return {**about, "tasks": done.content.tasks, "unfinished": done.content.unfinished, "kept": kept}


def _to_server(file: Path, home: Path, address: str) -> dict[str, Any]:
    from clutch.wiring import move as moving
    from clutch.wiring import restore as restoring

    content, target = restoring.examine(file), moving.MoveEnd(home, address)
    _run(moving.move(moving.MoveEnd(home, backup=file), target, say))
    about = {
        "file": str(file),
        "state": target.address,
        "bytes": file.stat().st_size,
        "schema": content.schema,
    }
    return {**about, "tasks": content.tasks, "unfinished": content.unfinished, "kept": None}
