"""`clutch import openclaw DIR`: find its files, read them and nothing else, and bring in what they tell.

The source is only ever read. A record or a line that makes no sense is reported and left out; where the registry or an
index cannot be read at all, nothing is brought in: a second import changes nothing, so half of one would be for good.
One record for each child session: its newest run in the registry, or, where the registry has forgotten it, what the
index knows.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from clutch.core import authority, keys, lineage
from clutch.core.authority import root_rights
from clutch.core.keys import KeyKind, SessionKey
from clutch.core.model import Outcome
from clutch.core.policy import Policy
from clutch.core.routes import COUNTER
from clutch.engine.ids import Ids
from clutch.errors import InvalidInput
from clutch.gateway import openclaw
from clutch.gateway.openclaw import Problem, Reading, Run, Session, Talk
from clutch.protocol import importing, workers
from clutch.protocol.importing import Main, Record
from clutch.store.door import Door

FILE_BYTES_MAX = 64 * 2**20  #: a transcript that is larger holds pictures, not words
BATCH = 25  #: records in one transaction
LOST = "its system was left while it ran"
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NOT_SHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")

Read: TypeAlias = Callable[..., Awaitable[Any]]  #: a transaction that only reads, and its arguments


@dataclass(frozen=True, slots=True)
class Child:
    """A child session of the source: the run that is kept of it, and where its transcript is."""

    run: Run
    session_key: str
    agent_id: str
    main: str
    parent: str | None  #: key of another child, as the source spells it
    levels: int
    transcript: Path | None


@dataclass(slots=True)
class Source:
    """What was found. `children` by the source's own keys, parents first."""

    directory: Path
    children: dict[str, Child] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    superseded: int = 0  #: runs whose session had a newer one


@dataclass(frozen=True, slots=True)
class Imported:
    record: Record
    task_id: int
    is_new: bool


# ---- reading -----------------------------------------------------------------------------------------------


def read(directory: Path) -> Source:
    """Raises InvalidInput: this is no state directory of OpenClaw, or a file of it that names the others is broken."""
    source = Source(directory)
    registry = directory / "subagents" / "runs.json"
    indexes = sorted(directory.glob("agents/*/sessions/sessions.json"))
    indexes += [one for one in [directory / "sessions" / "sessions.json"] if one.is_file()]
    if not registry.is_file() and not indexes:
        raise InvalidInput("DIR", _what_is_missing(directory))
    found: dict[str, tuple[Session, Path]] = {}
    for index in indexes:
        reading = Reading(str(index.relative_to(directory)))
        found |= {one.key: (one, index.parent) for one in openclaw.sessions(_text(index, reading), reading)}
        source.problems += _readable(reading)
    reading = Reading("subagents/runs.json")
    read_runs = openclaw.runs(_text(registry, reading), reading) if registry.is_file() else []
    source.problems += _readable(reading)
    _put_together(source, _newest(read_runs, source), found, reading.unread)
    return source


def _readable(reading: Reading) -> list[Problem]:
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
    if (directory / "state" / "openclaw.sqlite").is_file():
        return "keeps its runs in state/openclaw.sqlite, and only JSON files are read (subagents/runs.json)"
    return "holds neither subagents/runs.json nor agents/*/sessions/sessions.json: name OpenClaw's state directory"


def _text(path: Path, reading: Reading) -> str:
    """Empty where it cannot be read, and `reading` says why."""
    try:
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            reading.wrong(0, f"has {size} bytes; at most {FILE_BYTES_MAX} are read")
            return ""
        return path.read_bytes().decode(errors="replace")
    except OSError as error:
        reading.wrong(0, f"cannot be read: {error.strerror}")
        return ""


def _newest(runs: Sequence[Run], source: Source) -> dict[str, Run]:
    """A steered or repeated child has several runs of one session; the last one is what became of it."""
    newest = {run.key: run for run in sorted(runs, key=lambda run: run.created_at or 0.0)}
    source.superseded = len(runs) - len(newest)
    return newest


def _put_together(
    source: Source, runs: Mapping[str, Run], found: Mapping[str, tuple[Session, Path]], unread: Set[str]
) -> None:
    """`unread`: what the registry knows of these, the index does not."""
    forgotten = {
        key: _from_index(one)
        for key, (one, _) in found.items()
        if key not in runs and key not in unread and _is_child(key)
    }
    known = {**forgotten, **runs}
    born = sorted(known, key=lambda key: (known[key].created_at or 0.0, key))
    asked_by = {key: _asked_by(known[key], found) for key in born}
    parent_of = lineage.untangled({key: by for key, by in asked_by.items() if by in known})
    for key in sorted(born, key=lambda key: lineage.depth(key, parent_of)):
        session, folder = found.get(key, (None, None))
        named = _named(key, lineage.ancestors(key, parent_of)[-1:] or (key,), asked_by)
        if isinstance(named, str):
            source.problems.append(Problem(f"run {known[key].run_id[:80]}", 0, named))
            continue
        own, main = named
        source.children[key] = Child(
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


def _asked_by(run: Run, found: Mapping[str, tuple[Session, Path]]) -> str:
    session = found.get(run.key)
    return (session[0].spawned_by if session else None) or run.requester


def _from_index(session: Session) -> Run:
    """The registry forgets a run some time after it was told."""
    return Run(
        run_id=session.session_id or session.key,
        key=session.key,
        requester=session.spawned_by or "",
        task="",
        label=session.label,
        model=session.model,
        created_at=session.started_at or session.ended_at,
        started_at=session.started_at,
        ended_at=session.ended_at,
        outcome=session.outcome or Outcome.LOST,
        error=None,
        text=None,
        is_told=True,
    )


def _named(key: str, top: Sequence[str], asked_by: Mapping[str, str]) -> tuple[SessionKey, SessionKey] | str:
    """Its own key and that of the main session above, in our spelling; or why it can have none."""
    agent_id = _agent(key)
    above = _agent(asked_by[top[0]]) if asked_by[top[0]].startswith("agent:") else _agent(top[0])
    for one in (agent_id, above):
        if problem := keys.agent_id_problem(one):
            return problem
    parsed = keys.parse_session_key(key)
    if isinstance(parsed, SessionKey) and parsed.kind is KeyKind.SUBAGENT:
        return parsed, keys.main_key(above)
    digest = hashlib.sha256(f"openclaw:{key}".encode()).digest()
    return keys.subagent_key(agent_id, str(uuid.UUID(bytes=digest[:16], version=4))), keys.main_key(above)


def _agent(key: str) -> str:
    parts = key.split(":")
    return parts[1] if parts[0] == "agent" and len(parts) > 2 else "main"


def _transcript(folder: Path, session: Session) -> Path | None:
    """Only ever in the folder of its index, whatever the index says."""
    names = [Path(session.file).name] if session.file else []
    if _SESSION_ID.fullmatch(session.session_id):
        names.append(f"{session.session_id}.jsonl")
    return next((path for name in names if name and (path := folder / name).is_file()), None)


# ---- bringing in -------------------------------------------------------------------------------------------


async def bring_in(door: Door, policy: Policy, ids: Ids, source: Source) -> list[Imported]:
    """Everything that is not here yet. Can be interrupted and repeated."""
    ids.take_block(await door.alone(workers.next_number))
    mains = _mains(policy, ids, source)
    imported: list[Imported] = []
    for batch in _batches(policy, ids, source):
        wanted = {record.main for record in batch}
        taken = await door.alone(importing.take_in, policy, [mains[key] for key in sorted(wanted)], batch)
        imported += [Imported(one, taken[one.key], taken[one.key] == one.task_id) for one in batch]
    return imported


async def rehearse(read: Read | None, policy: Policy, ids: Ids, source: Source) -> list[Imported]:
    """What would be brought in; nothing is written. Without a store to read there is nothing here yet."""
    imported: list[Imported] = []
    for batch in _batches(policy, ids, source):
        known: dict[str, int] = {} if read is None else await read(importing.known, batch)
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


def is_announced(record: Record) -> bool:
    return not record.is_told and record.outcome is not Outcome.KILLED


def _batches(policy: Policy, ids: Ids, source: Source) -> Iterator[list[Record]]:
    """Transcripts are read when their batch comes: all of them together may not fit into memory."""
    children = list(source.children.values())
    for start in range(0, len(children), BATCH):
        yield [_record(policy, ids, source, child) for child in children[start : start + BATCH]]


def _record(policy: Policy, ids: Ids, source: Source, child: Child) -> Record:
    run, talk = child.run, _talk(source, child)
    task = run.task or next((said.text for said in talk.messages if hasattr(said, "text")), "")
    times = [at for at in (run.created_at, run.started_at, *talk.times) if at is not None]
    created_at = run.created_at or min(times, default=0.0)
    started_at = max(created_at, run.started_at or created_at)
    ended_at = max(started_at, run.ended_at or max(times, default=started_at))
    above = source.children.get(child.parent) if child.parent is not None else None
    return Record(
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
        text=run.text or talk.last_words,
        is_told=run.is_told and run.outcome is not None,
        transcript=talk.messages,
        times=[started_at if at is None else at for at in talk.times],
        prices=talk.prices,
    )


def _talk(source: Source, child: Child) -> Talk:
    if child.transcript is None:
        return Talk()
    reading = Reading(str(child.transcript.relative_to(source.directory)))
    text = _text(child.transcript, reading)
    talk = openclaw.talk(text, reading) if text else Talk()
    source.problems += reading.done()
    return talk


def _label(text: str, chars_max: int) -> str:
    return " ".join(_NOT_SHOWN.sub(" ", text).split())[:chars_max].strip()


def _mains(policy: Policy, ids: Ids, source: Source) -> dict[str, Main]:
    """As the gateway opens them when somebody writes to one."""
    mains: dict[str, Main] = {}
    for key in sorted({child.main for child in source.children.values()}):
        agent_id = keys.agent_of(key)
        rights = authority.to_text(root_rights(policy.grant(agent_id)))
        place = policy.workspace_of(agent_id) or "."
        mains[key] = Main(key, agent_id, ids.next(), rights, f"{COUNTER}:{key}", place)
    return mains
