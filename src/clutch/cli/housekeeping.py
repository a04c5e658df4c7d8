"""`clutch backup` and `clutch gc`: a copy of the database while it is in use, and what may go now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clutch.cli.asking import answering, gateway, home_of, print_object, say
from clutch.core import keys
from clutch.core.shown import size
from clutch.errors import InvalidInput, NoGateway, NotFound
from clutch.surfaces.client import connect

FOLDERS = ("tasks", "workspaces")  #: of the state directory: one directory per task


def backup(state: Path | None, file: Path, *, as_json: bool) -> None:
    with answering("backup", as_json=as_json):
        from clutch.looking import DATABASE_FILE, copy

        home = home_of(state)
        if _is_postgres(home):
            raise InvalidInput("FILE", "the database is PostgreSQL; copy it with `pg_dump`")
        if not (home / DATABASE_FILE).exists():
            raise NotFound(f"{home} holds no database")
        try:
            count = copy(home, file)
        except OSError as error:
            raise InvalidInput("FILE", f"{file} cannot be written: {error.strerror}") from error
        if as_json:
            print_object("backup", {"file": str(file), "bytes": count})
        else:
            say(
                f"written: {file} ({size(count)}). To go back: put it into a new state directory as clutch.db"
            )


def _is_postgres(home: Path) -> bool:
    try:
        return bool(connect(home).get("/v1/health")["database"] == "postgresql")
    except NoGateway:
        return False


def gc(state: Path | None, *, is_dry: bool, as_json: bool) -> None:
    with answering("gc", as_json=as_json):
        home = home_of(state)
        client = gateway(state)
        found: dict[str, Any] = client.post("/v1/gc", {"dryRun": True})
        found["fileBytes"] = _on_disk(home, found["archived"])
        if not is_dry:
            found = {**client.post("/v1/gc", {"dryRun": False}), "fileBytes": found["fileBytes"]}
        print_object("gc", found) if as_json else say(_words(found))


def _on_disk(home: Path, task_ids: list[str]) -> int:
    numbers = {str(keys.parse_task_id(task_id)) for task_id in task_ids}
    found = (place for folder in FOLDERS for place in (home / folder).glob("*"))
    mine = (place for place in found if place.name.split(".")[0] in numbers)
    return sum(one.lstat().st_size for top in mine if top.is_dir() for one in top.rglob("*") if one.is_file())


def _words(found: dict[str, Any]) -> str:
    verb = "would be" if found["dryRun"] else "were"
    archived, forgotten = len(found["archived"]), len(found["forgotten"])
    if not archived and not forgotten:
        return "nothing to take away"
    return (
        f"{archived} finished tasks {verb} archived, with {size(found['fileBytes'])} of files;\n"
        f"the words of {forgotten} {verb} deleted ({size(found['transcriptBytes'])})."
        " Outcome, result, use and timeline stay."
    )
