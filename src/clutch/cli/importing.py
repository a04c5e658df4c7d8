"""The work of `clutch import`: without a gateway, because it writes what no verb may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clutch.cli.asking import answering, home_of, print_object, say

if TYPE_CHECKING:
    from clutch.gateway.importing import Imported, Read, Source


def openclaw(
    directory: Path, state: Path | None, database: str | None, *, is_rehearsal: bool, as_json: bool
) -> None:
    with answering("import", as_json=as_json):
        asyncio.run(_import(directory, home_of(state), database, is_rehearsal=is_rehearsal, as_json=as_json))


async def _import(
    directory: Path, home: Path, database: str | None, *, is_rehearsal: bool, as_json: bool
) -> None:
    from clutch.core.policy import Policy
    from clutch.engine.ids import BlockIds
    from clutch.gateway import importing

    source = await asyncio.to_thread(importing.read, directory)
    if is_rehearsal:
        async with _looking(home, database) as read:
            found = await importing.rehearse(read, Policy(), BlockIds(), source)
    else:
        from clutch.wiring import opened_store

        async with opened_store(home, database) as door:
            found = await importing.bring_in(door, Policy(), BlockIds(), source)
    _tell(source, importing.counts(found), is_rehearsal=is_rehearsal)
    if as_json:
        print_object("import", _body(source, found, importing.counts(found), is_rehearsal=is_rehearsal))


@asynccontextmanager
async def _looking(home: Path, database: str | None) -> AsyncIterator[Read | None]:
    """A rehearsal makes no state directory, and looks into one beside whoever owns it."""
    from clutch.looking import DATABASE_FILE, looking_at

    if database is not None:
        from clutch.wiring import opened_store

        async with opened_store(home, database) as door:
            yield door.read
    elif (home / DATABASE_FILE).exists():
        with looking_at(home) as look:

            async def read(fn: Callable[..., Any], *args: Any) -> Any:
                return look(fn, *args)

            yield read
    else:
        yield None


def _tell(source: Source, counts: dict[str, int], *, is_rehearsal: bool) -> None:
    verb = "would be imported" if is_rehearsal else "imported"
    ends = ", ".join(f"{counts[name]} {name}" for name in ("ok", "error", "timeout", "killed", "lost"))
    say(f"{counts['imported']} {verb} ({ends}); {counts['known']} known already.")
    if counts["toAnnounce"]:
        say(
            f"{counts['toAnnounce']} of them were not told to anybody yet: the main agent hears of them next."
        )
    for one in source.problems:
        say(f"{one.file}{f':{one.line}' if one.line else ''}: {one.what}")


def _body(
    source: Source, found: Sequence[Imported], counts: dict[str, int], *, is_rehearsal: bool
) -> dict[str, Any]:
    from clutch.core import keys
    from clutch.gateway.importing import is_announced

    return {
        "dryRun": is_rehearsal,
        "source": str(source.directory),
        "counts": counts,
        "superseded": source.superseded,
        "tasks": [
            {
                "runId": one.record.key.partition(":")[2],
                "taskId": keys.task_id(one.task_id) if one.task_id else None,
                "sessionKey": one.record.session_key,
                "label": one.record.label,
                "outcome": one.record.outcome.value,
                "toAnnounce": is_announced(one.record),
                "isNew": one.is_new,
            }
            for one in found
        ],
        "problems": [
            {"file": one.file, "line": one.line or None, "what": one.what} for one in source.problems
        ],
    }
