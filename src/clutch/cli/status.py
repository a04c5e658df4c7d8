"""`clutch status`: what runs, with which config and model, what it has cost today, and what to type next.

It reads the gateway, or the last saved state where no gateway runs; a state directory that was never used is empty."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from clutch import __version__
from clutch.cli import output
from clutch.cli.options import AsJson, State
from clutch.cli.output import answering, command_for, home_of, print_object, print_text, unloaded
from clutch.cli.show import COUNTED, ListOptions
from clutch.cli.source import DEMO_TASK, Source, source
from clutch.core.text.format import counted, duration, money, size, tokens
from clutch.errors import ClutchError, ConfigInvalid
from clutch.surfaces import discovery
from clutch.surfaces.discovery import CONFIG_FILE, PROBLEM

Object = dict[str, Any]

FILES_MAX = 100_000  #: looked at for the disk use; a workspace may have more
NOTHING_USED: Mapping[str, Any] = {**dict.fromkeys(COUNTED, 0), "usd": "0"}

NODE_HEADINGS = ("NODE", "VERSION", "UP", "LEASE", "SESSIONS", "SEEN", "CLOCK", "STATE")

statuses = typer.Typer()


@statuses.command()
def status(state: State = None, as_json: AsJson = False) -> None:
    """Show what runs, what it costs, and what to type next.

    Gateway, version, state directory, model, config, spend, inbox, tasks and disk. Works without a gateway, and before
    first use.

    Example: clutch status"""
    with answering("status", as_json=as_json), source(state) as here:
        found = _status(here, state)
        if as_json:
            print_object("status", found)
            return
        print_text("\n".join(f"{name:<9} {text}" for name, text in _lines(found)))


@statuses.command()
def nodes(
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Read this PostgreSQL instead of asking a gateway.", show_default=False
        ),
    ] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """List the gateways that share the database.

    Name, version, age, lease, running sessions, last heartbeat, offset of the machine's clock, and whether it drains.

    Example: clutch nodes"""
    with answering("nodes", as_json=as_json), source(state, database) as here:
        said = here.nodes()
        if as_json:
            print_object("nodes", said)
            return
        rows = [NODE_HEADINGS, *(_node(one, output.at(said["at"]) or 0.0) for one in said["nodes"])]
        wide = [max(map(output.columns, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print_text("  ".join(map(output.fitted, row, wide)).rstrip())


def _node(one: Object, now: float) -> tuple[str, ...]:
    def since(moment: str | None, sign: int = 1) -> str:
        return "-" if moment is None else duration(sign * (now - (output.at(moment) or now)))

    offset_s, state = one["clockOffsetSeconds"], "draining" if one["isDraining"] else "working"
    return (
        one["name"] + (" (this gateway)" if one["isHere"] else ""),
        one["version"],
        since(one["startedAt"]),
        "over" if one["isStale"] else since(one["leaseUntil"], -1),
        str(one["sessions"]),
        since(one["seenAt"]),
        "-" if offset_s is None else f"{offset_s:+.3f} s",
        "gone" if one["isStale"] else state,
    )


def _status(here: Source, state: Path | None) -> Object:
    home = home_of(state)
    health: Object = {} if here.client is None else here.client.get("/v1/health")
    page = here.tasks(**ListOptions(limit=1).to_query())
    inbox = here.inbox()
    config = _config(home)
    found = {
        "at": output.moment_now(),
        "version": __version__,
        "state": str(home),
        "gateway": _gateway(home, health),
        "model": _model(health, config.pop("model")),
        "config": config,
        "spentToday": _spent_today(here),
        "inbox": len(inbox["items"]),
        "replies": inbox["replies"],
        "tasks": {
            name: page["summary"][name] for name in ("running", "queued", "waiting", "undelivered", "unsent")
        },
        "disk": _disk(home),
        "problems": [one for one in health.get("problems", ()) if one["subject"] != PROBLEM],
    }
    return {**found, "next": list(_next(found, state, is_fresh=here.is_fresh))}


def _gateway(home: Path, health: Mapping[str, Any]) -> Object | None:
    """Return the gateway that serves the directory; None where none runs."""
    found = discovery.find(home)
    if found is None:
        return None
    return {
        "url": found.url,
        "pid": found.pid,
        "version": found.version,
        "startedAt": found.started_at,
        "background": found.is_background,
        "status": health.get("status", "blocked"),
        "database": health.get("database"),
        "workspace": found.workspace,
    }


def _config(home: Path) -> Object:
    """Return the config file, whether the gateway has loaded it, and the model it names."""
    running = discovery.find(home)
    problem = None if running is None else unloaded(home, running)
    running = discovery.find(home)  # again: `unloaded` waits until a fresh change is loaded
    loaded = None if running is None else running.config
    path = Path(loaded.file) if loaded is not None else home / CONFIG_FILE
    said: Object = {
        "file": str(path) if path.exists() else None,
        "loaded": None,
        "problem": problem,
        "model": None,
    }
    if loaded is not None:
        missing = [] if problem is None else list(loaded.waiting)
        return {**said, "loaded": problem is None, "notLoadedKeys": missing}
    from clutch.config import load
    from clutch.core.agents import MAIN

    try:
        settings = load.load(home).settings
    except ConfigInvalid as error:
        return {**said, "problem": "; ".join(error.problems)}
    except ClutchError as error:
        return {**said, "problem": str(error)}
    return {**said, "model": settings.policy.model_of(MAIN)}


def _model(health: Mapping[str, Any], configured: str | None) -> Object:
    """Return the model of the main agent. Null: a program that embeds Clutch brings its own."""
    from clutch.core.agents import OFFLINE

    name = health.get("model", configured)
    return {"name": name, "isDemo": name == OFFLINE}


def _spent_today(here: Source) -> Object:
    today = datetime.now(UTC).date().isoformat()
    used = next((one for one in here.usage("day", 24.0, 0)["usage"] if one["name"] == today), NOTHING_USED)
    return {"day": today, **{name: used[name] for name in (*COUNTED, "usd")}}


def _disk(home: Path) -> Object:
    """Return the bytes of the state directory and the room left on its disk. `isPartial`: it has too many files."""
    there = next((one for one in (home, *home.absolute().parents) if one.is_dir()), Path("/"))
    used, files = 0, 0
    for folder, _, names in os.walk(home):
        for name in names:
            files += 1
            # A gateway removes files meanwhile.
            with suppress(FileNotFoundError):
                used += os.lstat(os.path.join(folder, name)).st_size
        if files > FILES_MAX:
            break
    return {"used": used, "isPartial": files > FILES_MAX, "free": shutil.disk_usage(there).free}


def _next(found: Mapping[str, Any], state: Path | None, *, is_fresh: bool) -> Iterator[str]:
    """Yield the commands that lead on, the most urgent first."""
    tasks = found["tasks"]
    if found["config"]["problem"] is not None:
        yield command_for(state, "config", "check")
    if found["inbox"]:
        yield command_for(state, "inbox")
    if tasks["undelivered"] or tasks["unsent"]:
        yield command_for(state, "dead")
    if found["replies"]:
        yield command_for(state, "logs", "main")
    if found["model"]["isDemo"]:
        yield command_for(state, "init")
    if tasks["running"] or tasks["queued"] or tasks["waiting"]:
        yield command_for(state, "top")
    elif is_fresh or found["gateway"] is None:
        yield command_for(state, "run", "--wait", DEMO_TASK if found["model"]["isDemo"] else "Say hello")
    else:
        yield command_for(state, "open")


# ---- as text ---------------------------------------------------------------------------------------------


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    disk, tasks = found["disk"], found["tasks"]
    yield "Gateway", _gateway_text(found["gateway"])
    yield "Version", _version_text(found)
    more = "more than " if disk["isPartial"] else ""
    yield (
        "State",
        f"{found['state']} ({more}{size(disk['used'])} used, {size(disk['free'])} free on this disk)",
    )
    if found["gateway"] is not None and found["gateway"]["workspace"] is not None:
        yield "Folder", f"{found['gateway']['workspace']} (where agents work)"
    yield "Model", _model_text(found["model"])
    yield "Config", _config_text(found["config"])
    yield "Spend", _spend_text(found["spentToday"])
    shown = [f"{tasks[name]} {name}" for name in ("running", "queued", "waiting") if tasks[name]]
    yield "Tasks", " · ".join(shown) or "none active"
    yield (
        "Inbox",
        f"{counted(found['inbox'], 'item')} to decide, {counted(found['replies'], 'reply', 'replies')} to read",
    )
    unsent = f", {counted(tasks['unsent'], 'message')} not sent" if tasks["unsent"] else ""
    yield "Results", f"{tasks['undelivered']} undelivered{unsent}"
    for one in found["problems"]:
        yield "Problem" if one["isError"] else "Note", f"{one['detail']} -> {one['remedy']}"
    for place, line in enumerate(found["next"]):
        yield "" if place else "Next", line


def _gateway_text(gateway: Mapping[str, Any] | None) -> str:
    if gateway is None:
        return "not running; it starts with the next command that needs it"
    age = output.now() - (output.at(gateway["startedAt"]) or output.now())
    since = f"since {output.clock(gateway['startedAt'])} ({duration(age)})"
    how = "" if gateway["status"] == "ok" else f", {gateway['status']}"
    return f"running at {gateway['url']}, pid {gateway['pid']}, {since}{how}"


def _version_text(found: Mapping[str, Any]) -> str:
    gateway = found["gateway"]
    if gateway is None or gateway["version"] == found["version"]:
        return str(found["version"])
    return f"{found['version']}; the gateway is {gateway['version']}: restart it to use this version"


def _model_text(model: Mapping[str, Any]) -> str:
    if model["isDemo"]:
        return f"{model['name']}: WARNING: demo model (no API key), not an LLM; choose a model with `init`"
    return model["name"] or "chosen by the program that runs the gateway, or not known"


def _config_text(config: Mapping[str, Any]) -> str:
    file = config["file"] or "no file, every setting has its default"
    if config["problem"] is not None:
        return f"{file}: {config['problem']}"
    return f"{file}, loaded" if config["loaded"] and config["file"] else file


def _spend_text(spent: Mapping[str, Any]) -> str:
    cost = "price not known" if spent["usd"] is None else money(Decimal(spent["usd"]))
    used = tokens(spent["input"] + spent["output"])
    return f"today (UTC): {cost}, {counted(spent['calls'], 'model call')}, {used} tokens"
