"""`clutch schedule`: tasks that start by the clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from clutch.cli.options import AsJson, State, text_argument
from clutch.cli.output import answering, command_for, gateway, report
from clutch.cli.source import source
from clutch.core.text.format import visible
from clutch.errors import InvalidInput
from clutch.surfaces.http_client import schedule_path

schedules = typer.Typer(help="Start tasks by the clock.", no_args_is_help=True)

Object = Mapping[str, Any]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]
TEXT_CHARS_MAX = 400
SLOTS_SHOWN = 20  #: in a terminal; --json has all that are kept


@schedules.callback()
def _group() -> None:
    """Start tasks by the clock."""


@schedules.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule: a-z 0-9 _ -.")],
    text: Annotated[str, text_argument("What each run has to do, in full.")],
    cron: Annotated[
        str | None, typer.Option(help="Minute, hour, day, month, weekday: '30 2 * * 1-5'.")
    ] = None,
    every: Annotated[str | None, typer.Option(metavar="DURATION", help="Interval, e.g. 30m or 12h.")] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="One moment: 2026-12-24T18:00.")] = None,
    tz: Annotated[str, typer.Option(metavar="ZONE", help="Time zone of --cron and --at.")] = "UTC",
    jitter: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Longest delay; each schedule has its own.")
    ] = None,
    missed: Annotated[str, typer.Option(help="Slots that were missed: skip, once or all.")] = "once",
    catch_up: Annotated[int, typer.Option(help="With --missed all: how many of them run at most.")] = 10,
    overlap: Annotated[str, typer.Option(help="Previous run still works: skip, queue or replace.")] = "skip",
    max_runs: Annotated[int | None, typer.Option(help="Runs after which the schedule ends.")] = None,
    session: Annotated[str, typer.Option(help="Main session that spawns the runs.")] = "agent:main:main",
    label: Annotated[str | None, typer.Option(help="Label of the runs. Default: the name.")] = None,
    agent: Annotated[str | None, typer.Option(help="Agent that works on the runs.")] = None,
    model: Annotated[str | None, typer.Option(help="Model of the runs, as provider:model.")] = None,
    run_timeout: Annotated[float | None, typer.Option(min=0, help="Time limit of a run, in seconds.")] = None,
    notify_parent: Annotated[
        bool, typer.Option("--notify-parent", help="The main agent has a turn with each result.")
    ] = False,
    run_tokens: Annotated[int | None, typer.Option(help="Budget of each run, in tokens.")] = None,
    run_usd: Annotated[str | None, typer.Option(help="Budget of each run, in US dollars.")] = None,
    total_tokens: Annotated[int | None, typer.Option(help="Budget of all runs together, in tokens.")] = None,
    total_usd: Annotated[str | None, typer.Option(help="Budget of all runs together, in dollars.")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Add a schedule: each of its slots starts a task, exactly once.

    Give one of --cron, --every and --at. The same schedule again changes nothing.

    Example: clutch schedule add nightly "Check the links in docs/" --cron "30 2 * * *" --tz Europe/Berlin"""
    with answering("schedule.add", as_json=as_json):
        said = {
            "task": text, "cron": cron, "everySeconds": _seconds("every", every), "at": at, "timezone": tz,
            "jitterSeconds": _seconds("jitter", jitter), "missed": missed, "catchUp": catch_up, "overlap": overlap,
            "maxRuns": max_runs, "session": session, "label": label, "agentId": agent, "model": model,
            "runTimeoutSeconds": run_timeout, "notifyParent": notify_parent, "runTokens": run_tokens,
            "runUsd": run_usd, "totalTokens": total_tokens, "totalUsd": total_usd,
        }  # fmt: skip
        body = {key: value for key, value in said.items() if value is not None}
        made = gateway(state, is_new_work=True).post(schedule_path(name), body)
        report("schedule.add", made, "\n".join(_about(made)), as_json=as_json)


def _seconds(option: str, text: str | None) -> float | None:
    from clutch.config.types import parse_duration

    if text is None:
        return None
    found = parse_duration(text)
    if found is None:
        raise InvalidInput(option, f"must be a duration such as 30m or 1h30m, not {text[:32]!r}")
    return found


@schedules.command("list")
def list_(state: State = None, as_json: AsJson = False) -> None:
    """List the schedules and their next times.

    Example: clutch schedule list"""
    with answering("schedule.list", as_json=as_json), source(state) as here:
        found = here.schedules()
        lines = [line for one in found["schedules"] for line in _line(one)]
        first = command_for(state, "schedule", "add", "nightly", "…", "--cron", "30 2 * * *")
        report(
            "schedule.list", found, "\n".join(lines) or f"No schedules. Add one: `{first}`", as_json=as_json
        )


@schedules.command()
def show(name: Name, state: State = None, as_json: AsJson = False) -> None:
    """Show a schedule, its next times, and what became of its slots.

    Example: clutch schedule show nightly"""
    with answering("schedule.show", as_json=as_json), source(state) as here:
        found = here.schedules(name)
        report("schedule.show", found, "\n".join([*_about(found), *_history(found)]), as_json=as_json)


@schedules.command()
def run(name: Name, state: State = None, as_json: AsJson = False) -> None:
    """Start a run now, beside the slots.

    Example: clutch schedule run nightly"""
    with answering("schedule.run", as_json=as_json):
        said = gateway(state, is_new_work=True).post(schedule_path(name, "run"), {})
        report(
            "schedule.run",
            said,
            f"{said['taskId']} {visible(said['label'], TEXT_CHARS_MAX)}",
            as_json=as_json,
        )


def _change(verb: str, name: str, state: Path | None, *, as_json: bool) -> None:
    with answering(f"schedule.{verb}", as_json=as_json):
        said = gateway(state).post(schedule_path(name, verb), {})
        text = f"removed: {name}" if verb == "remove" else "\n".join(_line(said))
        report(f"schedule.{verb}", said, text, as_json=as_json)


@schedules.command()
def pause(name: Name, state: State = None, as_json: AsJson = False) -> None:
    """Pause a schedule: slots that pass until `resume` are skipped.

    Example: clutch schedule pause nightly"""
    _change("pause", name, state, as_json=as_json)


@schedules.command()
def resume(name: Name, state: State = None, as_json: AsJson = False) -> None:
    """Resume a paused schedule with the slots after now.

    Example: clutch schedule resume nightly"""
    _change("resume", name, state, as_json=as_json)


@schedules.command()
def remove(name: Name, state: State = None, as_json: AsJson = False) -> None:
    """Remove a schedule and its history; its runs stay.

    One that the config has is removed there.

    Example: clutch schedule remove nightly"""
    _change("remove", name, state, as_json=as_json)


# ---- as text -----------------------------------------------------------------------------------------


def _line(one: Object) -> Iterator[str]:
    upcoming = one["nextTimes"][0] if one["nextTimes"] else one["status"]
    yield f"{one['name']:<20} {one['status']:<7} {upcoming:<26} {one['when']}"


def _about(one: Object) -> Iterator[str]:
    owner = ", from the config" if one["owner"] == "config" else ""
    yield f"{one['name']}: {one['status']}, {one['when']}{owner}"
    yield f"Next      {', '.join(one['nextTimes']) or 'none'}"
    if one["waitingSlots"]:
        yield f"Waiting   {', '.join(one['waitingSlots'])}"
    catch_up = f" (at most {one['catchUp']})" if one["missed"] == "all" else ""
    yield f"Rules     missed slots: {one['missed']}{catch_up}; overlap: {one['overlap']}"
    limit = "" if one["maxRuns"] is None else f" of {one['maxRuns']}"
    yield f"Runs      {one['runs']}{limit}, as {visible(one['label'], TEXT_CHARS_MAX)} of {one['session']}"
    yield f"Task      {visible(one['task'], TEXT_CHARS_MAX)}"


def _history(one: Object) -> Iterator[str]:
    for slot in one["history"][:SLOTS_SHOWN]:
        if slot["state"] == "skipped":
            more = f" to {slot['until']} ({slot['slots']} slots)" if slot["slots"] > 1 else ""
            yield f"{slot['slot']}{more}  skipped: {visible(slot['detail'], TEXT_CHARS_MAX)}"
        else:
            by_hand = ", by hand" if slot["state"] == "manual" else ""
            yield f"{slot['slot']}  {slot['taskId']} {slot['outcome'] or 'not ended or not kept'}{by_hand}"
