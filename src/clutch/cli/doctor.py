"""`clutch doctor`: check the installation and the database, and say what to do about each problem.

The invariants are SQL queries on the live database; no worker waits for them."""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import socket
import stat
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import typer

from clutch import __version__
from clutch.cli import output
from clutch.cli.output import Exit, answering, home_of, print_object, print_text, say, unloaded
from clutch.cli.source import source
from clutch.config import explain, load
from clutch.config.explain import masked
from clutch.core.agents import MAIN
from clutch.core.redaction import redact
from clutch.core.text.format import duration, size, typed
from clutch.core.views import is_late
from clutch.errors import (
    ClutchError,
    ConfigInvalid,
    InvalidInput,
    NoGateway,
    StoreUnreadable,
    TooSlow,
    UnsafeStateDirectory,
)
from clutch.surfaces import discovery
from clutch.surfaces.discovery import CONFIG_FILE, GATEWAY_FILE, LOOPBACK, PROBLEM, TOKEN_FILE, blocked
from clutch.surfaces.http_client import connect

# --------------------------------------------------------------------------------------------------
# Checks outside the database: the state directory, its files, the gateway, clock and disk.
#
# Only `mend` changes anything, and only what can be repaired without harm.

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
FREE_BYTES_MIN = 512 * 1024 * 1024  #: a full disk stops every write
AHEAD_S = 5.0  #: clocks are adjusted in small steps
REACH_S = 3.0  #: for a connection to a provider
#: Other files belong to tools and tasks and have modes of their own.
PRIVATE_FILES = ("token*", GATEWAY_FILE, "clutch.db*", "clutch.json", "lock", "chat-history")


@dataclass(frozen=True, slots=True)
class Check:
    id: str
    is_ok: bool
    detail: str
    remedy: str | None = None  #: of a check that is ok: a warning

    @property
    def word(self) -> str:
        return "FAIL" if not self.is_ok else "warn" if self.remedy else "ok"

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "ok": self.is_ok, "detail": self.detail, "remedy": self.remedy}


def of_directory(home: Path) -> Iterator[Check]:
    """Check who can read or change the state directory."""
    found = home.lstat()
    if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        yield Check(
            "state-directory", False, f"{home} is not a directory that you own", "name another: --state"
        )
        return
    is_private = stat.S_IMODE(found.st_mode) == DIRECTORY_MODE
    yield Check("state-directory", is_private, _mode(home, found), None if is_private else _fix(home))
    exposed = [path for path in _private(home) if path.lstat().st_mode & 0o077]
    words = ", ".join(f"{path.name} {stat.S_IMODE(path.lstat().st_mode):04o}" for path in exposed)
    told = f"readable by others: {words}" if exposed else "token, database and settings are private"
    yield Check("permissions", not exposed, told, _fix(home) if exposed else None)


def _fix(home: Path) -> str:
    return command(home, "doctor", "--fix")


def command(home: Path, *words: str) -> str:
    """Return a command line that works in every terminal of this user."""
    return typed(*words, state=discovery.named_state(home))


def _private(home: Path) -> list[Path]:
    found = {path for pattern in PRIVATE_FILES for path in home.glob(pattern)}
    return sorted(path for path in found if stat.S_ISREG(path.lstat().st_mode))


def _mode(path: Path, found: os.stat_result) -> str:
    return f"{path} has mode {stat.S_IMODE(found.st_mode):04o}"


def of_gateway(home: Path) -> Check:
    """Check the gateway. No gateway is ok; a file that names a dead one is not."""
    try:
        found = discovery.find(home)
    except UnsafeStateDirectory as error:
        return Check("gateway", False, str(error), _fix(home))
    if found is not None:
        return Check("gateway", True, f"{found.url}, pid {found.pid}, version {found.version}")
    if (home / GATEWAY_FILE).exists():
        return Check("gateway", False, f"{GATEWAY_FILE} names a gateway that no longer runs", _fix(home))
    return Check("gateway", True, "not running")


def of_loaded(home: Path) -> Iterator[Check]:
    """Check whether the gateway has loaded the config file."""
    running = discovery.find(home)
    if running is not None and running.config is not None:
        words = unloaded(home, running)
        told = words or f"the gateway has loaded {running.config.file}"
        yield Check(PROBLEM, words is None, told, words and begin_again(home))


def of_disk(home: Path) -> Check:
    free = shutil.disk_usage(home).free
    is_ok = free >= FREE_BYTES_MIN
    remedy = None if is_ok else f"make room: {command(home, 'gc', '--dry-run')}"
    return Check("disk", is_ok, f"{size(free)} free", remedy)


def of_clock(newest: float | None) -> Check:
    """Check the clock against `newest`, the time of the newest timeline entry."""
    ahead = (newest or 0.0) - output.now()
    if ahead > AHEAD_S:
        told = f"the newest timeline entry is {duration(ahead)} in the future"
        return Check("clock", False, told, "set the clock of this machine, then wait as long")
    return Check("clock", True, "runs forward")


def of_pulses(home: Path, pulses: Mapping[str, Any]) -> Iterator[Check]:
    """Check when the gateway's sweeper, heartbeat and outbox senders last ran."""
    for name, beat in sorted(pulses.items()):
        at = output.at(beat["at"]) or 0.0
        late, is_ok = max(0.0, output.now() - at), not is_late(at, beat["everySeconds"], output.now())
        told = f"last ran {duration(late)} ago; due every {duration(beat['everySeconds'])}"
        yield Check(name, is_ok, told, None if is_ok else begin_again(home))


def of_problems(problems: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    """Report the gateway's own problems, without its config (`of_loaded`)."""
    for one in problems:
        if one["subject"] == PROBLEM:
            continue
        yield Check(one["subject"], not one["isError"], one["detail"], one["remedy"])


def of_import_path(workspaces: Sequence[str]) -> Check:
    """Check PYTHONPATH: every Python searches it for modules before the standard library."""
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    roots = [Path(place).resolve() for place in workspaces]
    exposed = [entry for entry in named if any(Path(entry).resolve().is_relative_to(root) for root in roots)]
    if not exposed:
        return Check("import-path", True, "PYTHONPATH names no workspace")
    told = f"PYTHONPATH names {', '.join(exposed)}, where agents write: a new Python would load their modules"
    return Check("import-path", True, told, "unset PYTHONPATH, or give the agents another workspace")


def begin_again(home: Path) -> str:
    return f"stop the gateway and start it again: {command(home, 'serve')}"


class Endpoint(Protocol):
    """A model provider in the config."""

    @property
    def name(self) -> str: ...

    @property
    def base_url(self) -> str: ...

    def key(self, environment: Mapping[str, str]) -> str: ...


def of_provider(provider: Endpoint, *, is_online: bool) -> Check:
    """Check a provider's key and connection; beyond this machine only with --online."""
    about = f"provider {provider.name}"
    try:
        provider.key(os.environ)
    except InvalidInput as error:
        return Check(about, False, error.rule, "set it in the environment of the gateway")
    place = urlsplit(provider.base_url)
    if not place.hostname or (place.hostname not in LOOPBACK and not is_online):
        return Check(about, True, "key found; not connected without --online")
    port = place.port or (443 if place.scheme == "https" else 80)
    try:
        socket.create_connection((place.hostname, port), timeout=REACH_S).close()
    except OSError as error:
        return Check(
            about,
            False,
            f"no answer from {place.hostname}:{port}: {error}",
            "start it, or change models.providers.NAME.baseUrl",
        )
    return Check(about, True, f"answers at {place.hostname}:{port}")


def mend(home: Path) -> list[str]:
    """Repair modes and a stale gateway file, and return what was repaired.

    Raises UnsafeStateDirectory for a directory of another user."""
    from clutch.wiring import make_private

    done = []
    was = stat.S_IMODE(home.lstat().st_mode)
    make_private(home)
    if was != DIRECTORY_MODE:
        done.append(f"{home} is private now")
    for path in _private(home):
        if path.lstat().st_mode & 0o077:
            _make_private(path)
            done.append(f"{path.name} is private now{_was_open(path)}")
    if discovery.find(home) is None and (home / GATEWAY_FILE).exists():
        held = discovery.claim(home)
        if held is not None:
            held.release()
            done.append(f"{GATEWAY_FILE} of a gateway that no longer runs was removed")
    return done


def _make_private(path: Path) -> None:
    """Change the mode through a descriptor: the name may be replaced meanwhile."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(file, FILE_MODE)
    finally:
        os.close(file)


def _was_open(path: Path) -> str:
    if not path.name.startswith("token"):
        return ""
    how = command(path.parent, "token", "--rotate") if path.name == TOKEN_FILE else "write another into it"
    return f"; other users may have read it before: {how}"


HEALTH_S = 10.0  #: for the health request


@dataclass(frozen=True, slots=True)
class DoctorReport:
    checks: list[Check]
    asked: set[str] = field(default_factory=set)  #: names of invariants
    broken: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        return not self.broken and all(check.is_ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        lost = {one["invariant"] for one in self.broken}
        counted = {"held": len(self.asked - lost), "total": len(self.asked), "broken": self.broken}
        return {"checks": [check.to_json() for check in self.checks], "invariants": counted}


def doctor(
    state: Path | None,
    *,
    fixes: bool,
    is_online: bool,
    bundle: Path | None,
    as_json: bool,
    database: str | None = None,
) -> None:
    with answering("doctor", as_json=as_json):
        home = home_of(state)
        for done in mend(home) if fixes and home.is_dir() else ():
            say(f"fixed: {done}") if as_json else print_text(f"fixed: {done}")
        report = examine(home, is_online=is_online, database=database)
        if bundle is not None:
            write(bundle, home, report.to_json())
            say(f"Wrote {bundle}. Read it before you send it.")
        if as_json:
            print_object("doctor", report.to_json(), is_ok=report.is_ok)
        else:
            _tell(report)
        if not report.is_ok:
            raise typer.Exit(Exit.ERROR)


def _tell(report: DoctorReport) -> None:
    for check in report.checks:
        detail = check.detail.replace("\n", "\n      ")
        print_text(f"{check.word:<5} {check.id}: {detail}")
        if check.remedy:
            print_text(f"      -> {check.remedy}")
    said = report.to_json()["invariants"]
    if not said["total"]:  # no database, or one that does not answer
        return
    print_text(f"{'FAIL ' if said['broken'] else 'ok   '} invariants: {said['held']} of {said['total']} hold")
    for one in said["broken"]:
        print_text(f"      {one['invariant']} {one['promise']}: {'; '.join(one['examples'])}")


def examine(home: Path, *, is_online: bool = False, database: str | None = None) -> DoctorReport:
    """Run all checks; with `database` those of that PostgreSQL server alone, whatever this machine has."""
    from clutch.offline_reader import DATABASE_FILE
    from clutch.wiring import sandbox_offer

    if database is not None:
        server = DoctorReport([])
        _examine_server(database, server, is_served=False)
        return server
    offer = sandbox_offer()
    sandbox = Check("sandbox", offer.is_ok, offer.detail, offer.remedy)
    if not home.exists():
        return DoctorReport([Check("state-directory", True, f"{home} is not there yet"), sandbox])
    loops = _of_running(home)
    report = DoctorReport(
        [*of_directory(home), of_gateway(home), *loops, *of_loaded(home), of_disk(home), sandbox]
    )
    told, configured = _of_config(home, is_online=is_online)
    # The gateway reports a failed MCP server with its error.
    known = {check.id for check in loops}
    report.checks.extend(check for check in told if check.id not in known)
    if configured:
        _examine_server(configured, report, is_served=bool(loops))
    elif (home / DATABASE_FILE).exists():
        _examine_tables(home, report, is_served=bool(loops))
    return report


def _of_config(home: Path, *, is_online: bool) -> tuple[list[Check], str | None]:
    """Return the checks of the config, and the database it names."""
    from clutch.config import load

    try:
        found = load.load(home)
    except ClutchError as error:
        return [Check("config", False, str(error), command(home, "config", "check"))], None
    from clutch.wiring import config_problems, server_notices

    told = "none; every setting has its default" if found.path is None else f"{found.path} is valid"
    problems = config_problems(found.settings, home)
    remedy = command(home, "config", "check") if problems else None
    config = Check("config", not problems, "\n".join(problems) or told, remedy)
    asked = (of_provider(one, is_online=is_online) for one in found.settings.providers)
    policy = found.settings.policy
    places = [policy.workspace_of(agent) or "." for agent in (MAIN, *policy.agents)]
    servers = (
        Check(one.subject, not one.is_error, one.detail, one.remedy or None)
        for one in server_notices(found.settings.tools.mcp_servers)
    )
    every = [config, *asked, *servers, of_import_path(places)]
    return every, None if problems else found.settings.database_address


def _of_running(home: Path) -> list[Check]:
    """Return the checks of the running gateway; none where no gateway runs."""
    if (why := blocked(home)) is not None:
        return [
            Check("event-loop", False, why, "run slow code of a tool in a thread: await asyncio.to_thread(…)")
        ]
    try:
        health = connect(home).get("/v1/health", patience_s=HEALTH_S)
    except NoGateway:
        return []
    except ClutchError as error:
        return [Check("gateway-answers", False, str(error), begin_again(home))]
    return [*of_pulses(home, health["pulses"]), *of_problems(health["problems"])]


def _examine_tables(home: Path, report: DoctorReport, *, is_served: bool) -> None:
    from clutch.offline_reader import integrity, looking_at, newest, sqlite_version

    report.checks.append(Check("sqlite", True, f"version {sqlite_version()}"))
    try:
        with looking_at(home) as look:
            trouble = look(integrity)
            words = "; ".join(trouble) or "the file is whole"
            remedy = "restore a backup; keep this file" if trouble else None
            report.checks.append(Check("integrity", not trouble, words, remedy))
            report.checks.append(of_clock(look(newest)))
            report.checks.extend(_of_move(look, str(home)))
            _ask_promises(look, report, is_served=is_served)
    except ClutchError as error:
        remedy = "restore a backup; keep this file" if isinstance(error, StoreUnreadable) else None
        report.checks.append(Check("database", False, str(error), remedy))


def _examine_server(dsn: str, report: DoctorReport, *, is_served: bool) -> None:
    """Check a PostgreSQL server and the tables on it, beside its workers. Slow queries are cancelled."""
    from clutch.core.move import address_text
    from clutch.core.server_exam import findings
    from clutch.offline_reader import looking_at_server, newest, server_facts

    try:
        facts = server_facts(dsn)
        report.checks.extend(Check(one.id, one.is_ok, one.detail, one.remedy) for one in findings(facts))
        if not facts.has_tables:
            report.checks.append(Check("database", True, "answers; no gateway has created its tables yet"))
            return
        with looking_at_server(dsn) as look:
            report.checks.append(of_clock(look(newest)))
            report.checks.extend(_of_move(look, address_text(dsn)))
            unasked = _ask_promises(look, report, is_served=is_served, is_sqlite=False)
            told = f"answers; {unasked} invariants took too long to check" if unasked else "answers"
            report.checks.append(Check("database", True, told))
    except ClutchError as error:
        report.checks.append(Check("database", False, str(error), "start the server, or correct its address"))


def _of_move(look: Callable[..., Any], place: str) -> Iterator[Check]:
    """Report a database that is moved, or was: no gateway starts on it."""
    from clutch.core.move import refusal
    from clutch.transactions.read.move import move_record

    if (why := refusal(look(move_record), place)) is not None:
        yield Check("move", False, why)


def _ask_promises(
    look: Callable[..., Any], report: DoctorReport, *, is_served: bool, is_sqlite: bool = True
) -> int:
    """Check the invariants, and return how many took too long."""
    from clutch.transactions import invariants

    unasked = 0
    for query in invariants.standing(is_served=is_served, is_sqlite=is_sqlite):
        try:
            found = invariants.checked(query, look(invariants.broken, query))
        except TooSlow:
            found = invariants.checked(query, None)
        unasked += not found.is_checked
        if found.is_checked:
            report.asked.add(query.invariant)
        if found.examples:
            broken = {"invariant": query.invariant, "promise": query.promise}
            report.broken.append({**broken, "examples": list(found.examples)})
    return unasked


# --------------------------------------------------------------------------------------------------
# `clutch doctor --bundle FILE`: one archive for a person who helps, without secrets.
#
# It has versions, the report, the settings and the states of tasks, but no transcript, result, token or label. What
# looks like a secret is removed from the rest.

LIMIT = 200
#: Texts and names by users and models.
LEFT_OUT = (
    "label",
    "error",
    "errorText",
    "doingNow",
    "currentTool",
    "evidence",
    "sessionKey",
    "requesterKey",
    "rootKey",
)


def write(path: Path, home: Path, report: dict[str, Any]) -> None:
    """Write the archive. Raises InvalidInput where the file cannot be created."""
    parts = {
        "doctor.json": _json(report),
        "versions.json": _json(_versions()),
        "tasks.jsonl": "".join(_json(task) for task in _tasks(home)),
    }
    if (home / CONFIG_FILE).is_file():
        parts[CONFIG_FILE] = _json(_said(home))
    with os.fdopen(_made(path), "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, text in parts.items():
            _add(archive, name, redact(text).text)


def _made(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput(
            "--bundle", f"{path} cannot be created: {error.strerror}; name a new file"
        ) from error


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    body = text.encode()
    about = tarfile.TarInfo(f"clutch-doctor/{name}")
    about.size, about.mode = len(body), 0o600
    archive.addfile(about, io.BytesIO(body))


def _said(home: Path) -> dict[str, Any]:
    """Return the config by key, without secret values and comments."""
    try:
        return {key: masked(key, value) for key, value in explain.said(load.load(home)).items()}
    except ConfigInvalid as error:
        return {"problems": error.problems}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def _versions() -> dict[str, Any]:
    packages = {one.name: one.version for one in distributions()}
    return {
        "clutch": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items())),
    }


def _tasks(home: Path) -> list[dict[str, Any]]:
    wanted = {"root": None, "phase": None, "limit": LIMIT, "recentMinutes": None, "undelivered": False}
    try:
        with source(home) as here:
            page = here.tasks(**wanted)
    except ClutchError:
        return []
    return [{name: value for name, value in task.items() if name not in LEFT_OUT} for task in page["tasks"]]
