"""Commands for operation: config, doctor, token, cost, export, gc and import, with their `--help` texts.

This module is loaded by every command, so that what only one of them needs is imported when it runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from clutch.cli import output as output_cli
from clutch.cli.options import AsJson, Config, JsonLines, State
from clutch.cli.output import answering, gateway, home_of, report, say
from clutch.cli.source import Source, messages, source
from clutch.core.text.format import counted, plain_json, size
from clutch.errors import InvalidInput, NotFound
from clutch.surfaces.http_client import Declined

if TYPE_CHECKING:
    from clutch.importers.openclaw import Imported, OpenClawFiles, Read

FOLDERS = ("tasks", "workspaces")  #: in the state directory, with one directory per task
PAGE = 200  #: tasks per request

configs = typer.Typer(help="Validate and inspect the configuration.", no_args_is_help=True)
beginning = typer.Typer()


@configs.command()
def check(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Config file. Default: clutch.json in the state directory."),
    ] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Validate a config and list every problem.

    Exit code 1 if there is one. Says what the running gateway has not loaded.

    Example: clutch config check"""
    from clutch.cli import config as config_files

    config_files.check(state, file, as_json=as_json)


@configs.command()
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key, or the beginning of several.")],
    config: Config = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show the value of a key, its default, source and meaning.

    Example: clutch config explain announce.queue.mode"""
    from clutch.cli import config as config_files

    config_files.explain(state, config, key, as_json=as_json)


@configs.command()
def schema() -> None:
    """Print the JSON schema of the config, for editors.

    Example: clutch config schema"""
    from clutch.cli import config as config_files

    config_files.schema()


@beginning.command()
def init(
    force: Annotated[bool, typer.Option("--force", help="Replace the config that is there.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="provider:model. Default: the first with a key in the environment, a local Ollama, or the demo model."
        ),
    ] = None,
    no_test: Annotated[
        bool, typer.Option("--no-test", help="Do not test the key with one short call.")
    ] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Write a first config, and test its model with one short call.

    Finds provider keys in the environment and a local Ollama.

    Example: clutch init"""
    from clutch.cli import config as config_files

    wanted = config_files.InitOptions(force, model, tests=not no_test)
    config_files.init(state, wanted, as_json=as_json)


upkeep = typer.Typer()


class ExportFormat(StrEnum):
    JSONL = "jsonl"
    MARKDOWN = "markdown"
    HTML = "html"


@upkeep.command()
def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Repair file modes and a stale gateway.json.")] = False,
    online: Annotated[
        bool, typer.Option("--online", help="Also connect to the configured providers.")
    ] = False,
    bundle: Annotated[
        Path | None, typer.Option(help="Also write a .tar.gz for support, without secrets.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            help="Examine this PostgreSQL server alone: postgresql://… Any server, also without Clutch."
        ),
    ] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Check the installation and the database, and name the fixes.

    Invariants of the live database, the gateway's loops, file modes, config, sandbox, clock and disk.

    Example: clutch doctor"""
    from clutch.cli import doctor as command

    command.doctor(state, fixes=fix, is_online=online, bundle=bundle, as_json=as_json, database=database)


@upkeep.command()
def token(
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Make a new token and sign out every client of the old one.")
    ] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Print the path of the gateway's token, or replace the token.

    The token itself is never printed.

    Example: clutch token --rotate"""
    from clutch.cli import serve

    serve.token(state, rotates=rotate, as_json=as_json)


@upkeep.command()
def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be archived; change nothing.")
    ] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Archive finished tasks now and remove their files.

    The gateway does this every minute by itself.

    Example: clutch gc --dry-run"""
    with answering("gc", as_json=as_json):
        home = home_of(state)
        client = gateway(state)
        found: dict[str, Any] = client.post("/v1/gc", {"dryRun": True})
        found["fileBytes"] = _on_disk(home, found["archived"])
        if not dry_run:
            found = {**client.post("/v1/gc", {"dryRun": False}), "fileBytes": found["fileBytes"]}
        report("gc", found, _words(found), as_json=as_json)


def _on_disk(home: Path, task_ids: list[str]) -> int:
    from clutch.core import ids

    numbers = {str(ids.parse_task_id(task_id)) for task_id in task_ids}
    found = (place for folder in FOLDERS for place in (home / folder).glob("*"))
    mine = (place for place in found if place.name.split(".")[0] in numbers)
    return sum(one.lstat().st_size for top in mine if top.is_dir() for one in top.rglob("*") if one.is_file())


def _words(found: dict[str, Any]) -> str:
    verb = "Would archive" if found["dryRun"] else "Archived"
    delete = "would delete" if found["dryRun"] else "deleted"
    archived, forgotten = len(found["archived"]), len(found["forgotten"])
    if not archived and not forgotten:
        return "Nothing to archive."
    return (
        f"{verb} {counted(archived, 'finished task')} with {size(found['fileBytes'])} of files; "
        f"{delete} {counted(forgotten, 'transcript')} ({size(found['transcriptBytes'])})."
        " Outcome, result, usage and timeline stay."
    )


# --------------------------------------------------------------------------------------------------
# `clutch export`: a task, a session or a tree, as JSON Lines for programs, as Markdown, or as a page to click through.
#
# `kind` says what a JSON line is: `task`, `message`, `result` or `session`. What looks like a secret is removed unless
# `--with-secrets` is given, because an export leaves the state directory.

Object = dict[str, Any]


@upkeep.command()
def export(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Task or session key.")],
    tree: Annotated[bool, typer.Option("--tree", help="Also its subagents.")] = False,
    form: Annotated[
        ExportFormat, typer.Option("--format", help="JSON Lines, Markdown, or a page with the whole tree.")
    ] = ExportFormat.JSONL,
    output: Annotated[
        Path | None, typer.Option(help="New file to write. Default: stdout; html: clutch-TARGET.html.")
    ] = None,
    with_secrets: Annotated[
        bool, typer.Option("--with-secrets", help="Keep text that looks like a key, a token or a password.")
    ] = False,
    state: State = None,
    as_json: JsonLines = False,
) -> None:
    """Export the transcript and the result of a task or session.

    Redacts what looks like a secret. Works without a gateway.

    Example: clutch export last --format markdown"""
    from clutch.core.redaction import redact_all

    is_markdown = form is ExportFormat.MARKDOWN
    with answering("export", as_json=as_json), source(state) as here:
        if as_json and is_markdown:
            raise InvalidInput("--json", "cannot be combined with --format markdown; choose one")
        if form is ExportFormat.HTML:
            return _page(here, target, output, with_secrets=with_secrets, as_json=as_json)
        parts = _parts(here, target, with_tree=tree)
        # A target that does not exist is reported before a file is created.
        first = next(parts)
        with _opened(output) as out:
            for found in (first, *parts):
                part = found if with_secrets else redact_all(found)
                text = output_cli.plain(_markdown(part)) if is_markdown else _line(part)
                print(text, file=out)
        if output is not None:
            say(f"Wrote {output}.")


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput(
            "--output", f"{output} cannot be created: {error.strerror}; name a new file"
        ) from error
    with os.fdopen(file, "w", encoding="utf-8") as out:
        yield out


def _parts(here: Source, target: str, *, with_tree: bool) -> Iterator[Object]:
    task = _task(here, target)
    if task is not None:
        yield from _of_task(here, task)
        if with_tree:
            for below in _below(here.tree(task["taskId"])["root"]["nodes"]):
                yield from _of_task(here, below)
        return
    said = _messages(lambda after: here.transcript(target, after), {"sessionKey": target})
    # Raises for a session that does not exist.
    first = next(said, None)
    yield {"kind": "session", "sessionKey": target}
    yield from said if first is None else (first, *said)
    if with_tree:
        for one in _of_root(here, target):
            yield from _of_task(here, one)


def _page(here: Source, target: str, output: Path | None, *, with_secrets: bool, as_json: bool) -> None:
    """Write the dashboard with these tasks inside. A page always has the whole tree below the target."""
    from clutch.cli import page_export

    task = _task(here, target)
    if task is None:
        next(_parts(here, target, with_tree=False))  # raises for a session that does not exist
    tops = [one for one in _of_root(here, target) if one["parentTaskId"] is None] if task is None else [task]
    title = target if task is None else task["label"] or task["taskId"]
    name = "session" if task is None else task["taskId"]
    file = output or Path(f"clutch-{name}.html")
    data = page_export.gathered(here, tops, title)
    count = page_export.write(data, file, with_secrets=with_secrets)
    body = {"kind": "page", "file": str(file), "bytes": count, "tasks": len(data["tasks"])}
    report(
        "export",
        body,
        f"Wrote {file} ({counted(len(data['tasks']), 'task')}, {size(count)}).",
        as_json=as_json,
    )


def _task(here: Source, target: str) -> Object | None:
    """Return the task; None where the target may be a main session."""
    try:
        return here.task(target)
    except NotFound:
        return None
    except Declined as error:
        if error.code != "not_found":
            raise
        return None


def _of_task(here: Source, task: Object) -> Iterator[Object]:
    name = {"taskId": task["taskId"]}
    yield {"kind": "task", **task}
    yield from _messages(lambda after: here.transcript(task["taskId"], after), name)
    if task["outcome"] is not None:
        yield {"kind": "result", **here.result(task["taskId"])}


def _messages(read: Callable[[int], Object], name: Object) -> Iterator[Object]:
    for line in messages(read):
        yield {**name, **line, "role": line["kind"], "kind": "message"}


def _below(nodes: list[Object]) -> Iterator[Object]:
    for node in nodes:
        yield node["task"]
        yield from _below(node["nodes"])


def _of_root(here: Source, target: str) -> Iterator[Object]:
    """Yield each task below a main session once: a task that ends meanwhile may be on two pages."""
    wanted = {"root": target, "phase": None, "recentMinutes": None, "undelivered": False, "limit": PAGE}
    page: Object = {"next": None}
    given: set[str] = set()
    while True:
        page = here.tasks(**wanted, cursor=page["next"])
        yield from (task for task in page["tasks"] if task["taskId"] not in given)
        given.update(task["taskId"] for task in page["tasks"])
        if page["next"] is None:
            return


def _line(part: Object) -> str:
    return plain_json(json.dumps({"schema": "clutch.export/1", "ok": True, **part}, ensure_ascii=False))


def _markdown(part: Object) -> str:
    match part["kind"]:
        case "session":
            return f"# {part['sessionKey']}\n"
        case "task":
            about = output_cli.one_line(part, output_cli.now())
            return f"\n# {part['label']}\n\n{about}\n"
        case "result":
            return f"\n**Result** ({part['outcome']})\n\n{part['text'] or ''}\n"
        case _:
            return f"- {output_cli.log_line({**part, 'kind': part['role']})}"


# --------------------------------------------------------------------------------------------------
# `clutch import`: the tasks of another system. Its files are only read.

imports = typer.Typer(help="Import tasks from another system.", no_args_is_help=True)


@imports.callback()
def _group() -> None:
    """Import tasks from another system."""


@imports.command("openclaw")
def openclaw(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="State directory of OpenClaw, e.g. ~/.openclaw.")
    ],
    state: State = None,
    database: Annotated[str | None, typer.Option(help="PostgreSQL instead of SQLite: postgresql://…")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be imported; write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import subagent runs of OpenClaw with results and transcripts.

    OpenClaw's files are only read. Undelivered results are delivered to the main agent in its next turn; runs that had
    not ended are lost. A second import changes nothing. On SQLite, stop the gateway first.

    Example: clutch import openclaw ~/.openclaw --dry-run"""
    import asyncio

    with answering("import", as_json=as_json):
        asyncio.run(_import(directory, home_of(state), database, is_rehearsal=dry_run, as_json=as_json))


async def _import(
    directory: Path, home: Path, database: str | None, *, is_rehearsal: bool, as_json: bool
) -> None:
    import asyncio

    from clutch.core.policy import Policy
    from clutch.engine.services import BlockIds
    from clutch.importers import openclaw

    source = await asyncio.to_thread(openclaw.read, directory)
    if is_rehearsal:
        async with _looking(home, database) as read:
            found = await openclaw.rehearse(read, Policy(), BlockIds(), source)
    else:
        from clutch.wiring import opened_store

        async with opened_store(home, database) as db:
            found = await openclaw.bring_in(db, Policy(), BlockIds(), source)
    counts = openclaw.counts(found)
    body = _body(source, found, counts, is_rehearsal=is_rehearsal)
    report("import", body, _text(source, counts, is_rehearsal=is_rehearsal), as_json=as_json)


@asynccontextmanager
async def _looking(home: Path, database: str | None) -> AsyncIterator[Read | None]:
    """Open the store for a rehearsal, which creates no state directory and reads beside the owner of one."""
    from clutch.offline_reader import DATABASE_FILE, looking_at

    if database is not None:
        from clutch.wiring import opened_store

        async with opened_store(home, database) as db:
            yield db.read
    elif (home / DATABASE_FILE).exists():
        with looking_at(home) as look:

            async def read(fn: Callable[..., Any], *args: Any) -> Any:
                return look(fn, *args)

            yield read
    else:
        yield None


def _text(source: OpenClawFiles, counts: dict[str, int], *, is_rehearsal: bool) -> str:
    verb = "would be imported" if is_rehearsal else "imported"
    ends = ", ".join(f"{counts[name]} {name}" for name in ("ok", "error", "timeout", "killed", "lost"))
    lines = [f"{counts['imported']} {verb} ({ends}); {counts['known']} known already."]
    if counts["toAnnounce"]:
        lines.append(
            f"{counts['toAnnounce']} pending delivery: the main agent receives them in its next turn."
        )
    lines += [f"{one.file}{f':{one.line}' if one.line else ''}: {one.what}" for one in source.problems]
    return "\n".join(lines)


def _body(
    source: OpenClawFiles, found: Sequence[Imported], counts: dict[str, int], *, is_rehearsal: bool
) -> dict[str, Any]:
    from clutch.core import ids
    from clutch.importers.openclaw import is_announced

    return {
        "dryRun": is_rehearsal,
        "source": str(source.directory),
        "counts": counts,
        "superseded": source.superseded,
        "tasks": [
            {
                "runId": one.record.key.partition(":")[2],
                "taskId": ids.task_id(one.task_id) if one.task_id else None,
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
