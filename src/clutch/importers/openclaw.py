"""`clutch import openclaw DIR`: read the files of OpenClaw and store their runs as tasks.

The source is only read. A record or line that cannot be read is reported and left out. Where the registry or an index
cannot be read at all, nothing is imported: a second import adds nothing to a session, so an import in part would be
permanent. Each child session becomes one task: its newest run in the registry, or its entry in the index where the
registry has removed it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
import tempfile
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from clutch.core import authority
from clutch.core import ids as ids_rules
from clutch.core.authority import root_rights
from clutch.core.delivery import LOCAL_CHANNEL
from clutch.core.ids import KeyKind, SessionKey
from clutch.core.model import Outcome
from clutch.core.policy import Policy
from clutch.engine.services import Ids
from clutch.errors import InvalidInput
from clutch.importers import records
from clutch.importers.records import FileProblems, ImportProblem, OpenClawSession, OpenClawTranscript, Run
from clutch.store.transaction import Database
from clutch.transactions import import_tasks, workers
from clutch.transactions.import_tasks import ImportedTask
from clutch.transactions.sessions import NewMain

#: Where the versions of OpenClaw kept the runs; a directory that was upgraded may have several.
REGISTRIES = (
    "subagent-registry.json",
    "subagents/subagent-registry.json",
    "subagents/runs.json",
    "state/openclaw.sqlite",
)
KNOWN_VERSIONS = "OpenClaw 2026.6 to 2026.10"
FILE_BYTES_MAX = 64 * 2**20  #: a larger transcript holds pictures, not text
BATCH = 25  #: records in one transaction
LOST = "its system was left while it ran"
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NOT_SHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")

Read: TypeAlias = Callable[..., Awaitable[Any]]  #: a transaction that only reads, and its arguments


@dataclass(frozen=True, slots=True)
class OpenClawChild:
    """A child session of the source: the run that is imported, and where its transcript is."""

    run: Run
    session_key: str
    agent_id: str
    main: str
    parent: str | None  #: key of another child, as the source spells it
    levels: int
    transcript: Path | None


@dataclass(slots=True)
class OpenClawFiles:
    """The files that were read. `children`: by the source's own keys, parents first."""

    directory: Path
    children: dict[str, OpenClawChild] = field(default_factory=dict)
    problems: list[ImportProblem] = field(default_factory=list)
    superseded: int = 0  #: runs whose session had a newer one


@dataclass(frozen=True, slots=True)
class Imported:
    record: ImportedTask
    task_id: int
    is_new: bool


# ---- reading -----------------------------------------------------------------------------------------------


def read(directory: Path) -> OpenClawFiles:
    """Raises InvalidInput where this is no state directory of OpenClaw, or a file that names the others is broken."""
    source = OpenClawFiles(directory)
    registries = [path for name in REGISTRIES if (path := directory / name).is_file()]
    indexes = sorted(directory.glob("agents/*/sessions/sessions.json"))
    indexes += [one for one in [directory / "sessions" / "sessions.json"] if one.is_file()]
    if not registries and not indexes:
        raise InvalidInput("DIR", _what_is_missing(directory))
    found: dict[str, tuple[OpenClawSession, Path]] = {}
    for index in indexes:
        reading = FileProblems(str(index.relative_to(directory)))
        found |= {
            one.run.key: (one, index.parent) for one in records.sessions(_text(index, reading), reading)
        }
        source.problems += _readable(reading)
    read_runs: list[Run] = []
    unread: set[str] = set()
    for registry in registries:
        reading = FileProblems(str(registry.relative_to(directory)))
        read_runs += _runs(registry, reading)
        source.problems += _readable(reading)
        unread |= reading.unread
    _put_together(source, _newest(read_runs, source), found, unread)
    return source


def _runs(registry: Path, reading: FileProblems) -> list[Run]:
    if registry.suffix == ".json":
        return records.runs(_text(registry, reading), reading)
    rows = _table(registry, reading)
    return [] if rows is None else records.table_runs(rows, reading)


def _table(database: Path, reading: FileProblems) -> list[dict[str, Any]] | None:
    """Return the rows of `subagent_runs`, None where there is no such table or it cannot be read."""
    # A copy is opened: SQLite writes beside a database in WAL mode even where it only reads.
    with tempfile.TemporaryDirectory(prefix="clutch-import-") as folder:
        try:
            for name in (database.name, f"{database.name}-wal"):
                if (file := database.with_name(name)).is_file():
                    shutil.copyfile(file, Path(folder, name))
            with closing(sqlite3.connect(Path(folder, database.name))) as tables:
                return _run_rows(tables, reading)
        except (OSError, sqlite3.Error) as error:
            reading.not_at_all(f"cannot be read: {error}")
            return None


def _run_rows(tables: sqlite3.Connection, reading: FileProblems) -> list[dict[str, Any]] | None:
    columns = [str(row[1]) for row in tables.execute("PRAGMA table_info(subagent_runs)")]
    if not columns:
        return None  # a version without this table
    if not {*columns} >= records.RUN_COLUMNS or records.LAYOUT_COLUMNS.isdisjoint(columns):
        ((version,),) = tables.execute("PRAGMA user_version").fetchall()
        reading.not_at_all(
            f"has a table of runs in a layout that is not known (schema version {version}): {KNOWN_VERSIONS} are read"
        )
        return None
    rows = tables.execute("SELECT * FROM subagent_runs ORDER BY created_at, run_id")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _readable(reading: FileProblems) -> list[ImportProblem]:
    problems = reading.done()
    if reading.is_unreadable:
        first = problems[0]
        where = f"{first.file}:{first.line}" if first.line else first.file
        raise InvalidInput(
            "DIR",
            f"{where} {first.what}; nothing was imported: repair the file, or move it away to go without it",
        )
    return problems


def _what_is_missing(directory: Path) -> str:
    names = ", ".join(REGISTRIES)
    return f"{directory} holds none of {names} and agents/*/sessions/sessions.json: name OpenClaw's state directory"


def _text(path: Path, reading: FileProblems) -> str:
    """Return the text of a file, empty where it cannot be read; then `reading` has the problem."""
    try:
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            reading.wrong(0, f"has {size} bytes; at most {FILE_BYTES_MAX} are read")
            return ""
        return path.read_bytes().decode(errors="replace")
    except OSError as error:
        reading.wrong(0, f"cannot be read: {error.strerror}")
        return ""


def _newest(runs: Sequence[Run], source: OpenClawFiles) -> dict[str, Run]:
    """Return the newest run of each session: a steered or repeated child has several."""
    newest = {run.key: run for run in sorted(runs, key=lambda run: run.created_at or 0.0)}
    source.superseded = len(runs) - len(newest)
    return newest


def _put_together(
    source: OpenClawFiles,
    runs: Mapping[str, Run],
    found: Mapping[str, tuple[OpenClawSession, Path]],
    unread: Set[str],
) -> None:
    """`unread`: sessions of registry records that could not be read; their index entry is not enough."""
    forgotten = {
        key: one.run
        for key, (one, _) in found.items()
        if key not in runs and key not in unread and _is_child(key)
    }
    known = {**forgotten, **runs}
    born = sorted(known, key=lambda key: (known[key].created_at or 0.0, key))
    asked_by = {key: _asked_by(known[key], found) for key in born}
    parent_of = ids_rules.untangled({key: by for key, by in asked_by.items() if by in known})
    for key in sorted(born, key=lambda key: ids_rules.depth(key, parent_of)):
        session, folder = found.get(key, (None, None))
        named = _named(key, ids_rules.ancestors(key, parent_of)[-1:] or (key,), asked_by)
        if isinstance(named, str):
            source.problems.append(ImportProblem(f"run {known[key].run_id[:80]}", 0, named))
            continue
        own, main = named
        source.children[key] = OpenClawChild(
            run=known[key],
            session_key=str(own),
            agent_id=own.agent_id,
            main=str(main),
            parent=parent_of.get(key),
            levels=session.depth if session is not None else 0,
            transcript=None if session is None or folder is None else _transcript(folder, session),
        )


def _is_child(key: str) -> bool:
    return ":subagent:" in key


def _asked_by(run: Run, found: Mapping[str, tuple[OpenClawSession, Path]]) -> str:
    session = found.get(run.key)
    return (session[0].run.requester if session else None) or run.requester


def _named(key: str, top: Sequence[str], asked_by: Mapping[str, str]) -> tuple[SessionKey, SessionKey] | str:
    """Return a child's own key and that of its main session in our spelling, or why it can have none."""
    agent_id = _agent(key)
    above = _agent(asked_by[top[0]]) if asked_by[top[0]].startswith("agent:") else _agent(top[0])
    for one in (agent_id, above):
        if problem := ids_rules.agent_id_problem(one):
            return problem
    parsed = ids_rules.parse_session_key(key)
    if isinstance(parsed, SessionKey) and parsed.kind is KeyKind.SUBAGENT:
        return parsed, ids_rules.main_key(above)
    # A key that is not ours is replaced by a digest of it, so that a second import finds the same session.
    digest = hashlib.sha256(f"openclaw:{key}".encode()).digest()
    own = ids_rules.subagent_key(agent_id, str(uuid.UUID(bytes=digest[:16], version=4)))
    return own, ids_rules.main_key(above)


def _agent(key: str) -> str:
    parts = key.split(":")
    return parts[1] if parts[0] == "agent" and len(parts) > 2 else "main"


def _transcript(folder: Path, session: OpenClawSession) -> Path | None:
    # The index is not trusted: whatever path it names, only its own folder is read.
    names = [Path(session.file).name] if session.file else []
    if _SESSION_ID.fullmatch(session.session_id):
        names.append(f"{session.session_id}.jsonl")
    return next((path for name in names if name and (path := folder / name).is_file()), None)


# ---- import ------------------------------------------------------------------------------------------------


async def bring_in(db: Database, policy: Policy, ids: Ids, source: OpenClawFiles) -> list[Imported]:
    """Import every task that is not in the store. Can be interrupted and repeated."""
    ids.take_block(await db.alone(workers.next_number))
    mains = _mains(policy, ids, source)
    imported: list[Imported] = []
    for batch in _batches(policy, ids, source):
        wanted = {record.main for record in batch}
        taken = await db.alone(import_tasks.take_in, policy, [mains[key] for key in sorted(wanted)], batch)
        imported += [Imported(one, taken[one.key], taken[one.key] == one.task_id) for one in batch]
    return imported


async def rehearse(read: Read | None, policy: Policy, ids: Ids, source: OpenClawFiles) -> list[Imported]:
    """Return what would be imported; nothing is written. `read` None: there is no store, so every task is new."""
    imported: list[Imported] = []
    for batch in _batches(policy, ids, source):
        known: dict[str, int] = {} if read is None else await read(import_tasks.known, batch)
        imported += [Imported(one, known.get(one.key, 0), one.key not in known) for one in batch]
    return imported


def counts(imported: Sequence[Imported]) -> dict[str, int]:
    new = [one.record for one in imported if one.is_new]
    outcomes = Counter(record.outcome.value for record in new)
    return {
        "imported": len(new),
        "known": len(imported) - len(new),
        "toAnnounce": sum(is_announced(record) for record in new),
        **{outcome.value: outcomes[outcome.value] for outcome in Outcome},
    }


def is_announced(record: ImportedTask) -> bool:
    return not record.is_told and record.outcome is not Outcome.KILLED


def _batches(policy: Policy, ids: Ids, source: OpenClawFiles) -> Iterator[list[ImportedTask]]:
    """Transcripts are read batch by batch: all of them together may not fit into memory."""
    children = list(source.children.values())
    for start in range(0, len(children), BATCH):
        yield [_record(policy, ids, source, child) for child in children[start : start + BATCH]]


def _record(policy: Policy, ids: Ids, source: OpenClawFiles, child: OpenClawChild) -> ImportedTask:
    run, transcript = child.run, _read_transcript(source, child)
    task = run.task or next((one.text for one in transcript.messages if hasattr(one, "text")), "")
    times = [at for at in (run.created_at, run.started_at, *transcript.times) if at is not None]
    created_at = run.created_at or min(times, default=0.0)
    started_at = max(created_at, run.started_at or created_at)
    ended_at = max(started_at, run.ended_at or max(times, default=started_at))
    above = source.children.get(child.parent) if child.parent is not None else None
    return ImportedTask(
        key=f"openclaw:{run.run_id}",
        task_id=ids.next(),
        run_id=ids.next(),
        session_key=child.session_key,
        agent_id=child.agent_id,
        main=child.main,
        parent=None if above is None else above.session_key,
        levels=child.levels,
        label=_label(run.label or "", policy.limits.label_max) or _label(task, policy.limits.label_from_task),
        task=task,
        model=(run.model or "").replace("/", ":", 1),
        created_at=created_at,
        started_at=started_at,
        ended_at=ended_at,
        outcome=run.outcome or Outcome.LOST,
        error=run.error or (LOST if run.outcome is None else str(run.outcome)),
        text=run.text or transcript.final_text,
        is_told=run.is_delivered and run.outcome is not None,
        transcript=transcript.messages,
        times=[started_at if at is None else at for at in transcript.times],
        prices=transcript.prices,
    )


def _read_transcript(source: OpenClawFiles, child: OpenClawChild) -> OpenClawTranscript:
    if child.transcript is None:
        return OpenClawTranscript()
    reading = FileProblems(str(child.transcript.relative_to(source.directory)))
    text = _text(child.transcript, reading)
    found = records.transcript(text, reading) if text else OpenClawTranscript()
    source.problems += reading.done()
    return found


def _label(text: str, chars_max: int) -> str:
    return " ".join(_NOT_SHOWN.sub(" ", text).split())[:chars_max].strip()


def _mains(policy: Policy, ids: Ids, source: OpenClawFiles) -> dict[str, NewMain]:
    """Make the main sessions as the gateway opens them for a first message."""
    mains: dict[str, NewMain] = {}
    for key in sorted({child.main for child in source.children.values()}):
        agent_id = ids_rules.agent_of(key)
        rights = authority.to_text(root_rights(policy.grant(agent_id)))
        place = policy.workspace_of(agent_id) or "."
        mains[key] = NewMain(ids.next(), key, agent_id, rights, f"{LOCAL_CHANNEL}:{key}", place)
    return mains
