"""`clutch agents`: the agents that subagents can be, and the files that define agents and skills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from clutch.cli.options import AsJson, Config, State
from clutch.cli.output import answering, command_for, home_of, report
from clutch.cli.source import Source, source
from clutch.core.text.format import visible
from clutch.errors import NotFound

Object = dict[str, Any]
DESCRIPTION_SHOWN = 80  # beside name and model on a usual terminal

roles = typer.Typer(help="List agents and skills, and check their files.", no_args_is_help=True)


@roles.command("list")
def listed(state: State = None, as_json: AsJson = False) -> None:
    """List the agents, and the files of agents and skills with their states.

    A file of a workspace has no effect until you approve it: clutch inbox.

    Example: clutch agents list"""
    with answering("agents.list", as_json=as_json), source(state) as here:
        said = _agents(here, state)
        report("agents.list", said, "\n".join(_lines(said, state)), as_json=as_json)


@roles.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An agent, or a skill.")],
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show one agent or skill, its rights and instructions.

    Also where it is defined, and what is wrong with its file.

    Example: clutch agents show reviewer"""
    with answering("agents.show", as_json=as_json), source(state) as here:
        said = _agents(here, state)
        agents = [one for one in said["agents"] if one["agentId"] == name]
        files = [one for one in said["files"] if one["name"] == name]
        if not agents and not files:
            known = sorted(
                {*(one["agentId"] for one in said["agents"]), *(one["name"] for one in said["files"])}
            )
            raise NotFound(f"there is no agent or skill {name[:64]!r}", known)
        found = {"agent": agents[0] if agents else None, "files": files}
        report("agents.show", found, "\n".join(_details(agents, files, state)), as_json=as_json)


@roles.command()
def check(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...", help="Agent files, or SKILL.md of skills. Without one: all that are read."
        ),
    ] = None,
    config: Config = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Check agent files and skills, without a gateway. Exits with 1 where a file is not used.

    Example: clutch agents check .claude/agents/reviewer.md"""
    from clutch.wiring import definitions

    with answering("agents.check", as_json=as_json):
        home = home_of(state)
        found = [definitions.parsed(one) for one in paths] if paths else definitions.found(home, config)
        wrong = [one for one in found if one.problem is not None]
        notices = [(one.path, it) for one in found for it in (one.problem, *one.notes) if it is not None]
        told = [{"file": path, "line": it.line, "text": it.text} for path, it in notices]
        text = "\n".join(
            [f"{path}:{it.line}: {it.text}" for path, it in notices]
            + [f"{len(found)} files, {len(wrong)} invalid"]
        )
        body = {"files": len(found), "invalid": len(wrong), "notices": told}
        report("agents.check", body, text, as_json=as_json, is_ok=not wrong)
        if wrong:
            raise typer.Exit(1)


def _agents(here: Source, state: Path | None) -> Object:
    if here.client is not None:
        said: Object = here.client.get("/v1/agents")
        return said
    from clutch.wiring import definitions

    return dict(definitions.listed(home_of(state), here.decisions()))


def _lines(said: Object, state: Path | None) -> Iterator[str]:
    for one in said["agents"]:
        yield f"{one['agentId']} · {one['model']} · {one['source']}{_about(one)}"
    for one in said["files"]:
        if one["kind"] == "skill" or one["state"] != "active":
            yield f"{one['kind']} {one['name']} · {one['state']} · {_place(one)}{_about(one)}"
            yield from _notices(one)
    if any(one["state"] == "proposed" for one in said["files"]):
        yield f"Proposed files have no effect. Read and decide: {command_for(state, 'inbox')}"


def _about(one: Mapping[str, Any]) -> str:
    return f" · {visible(one['description'], DESCRIPTION_SHOWN)}" if one["description"] else ""


def _place(one: Mapping[str, Any]) -> str:
    return (
        f"{one['file']}, {one['question']}"
        if one["question"] and one["state"] == "proposed"
        else str(one["file"])
    )


def _notices(one: Mapping[str, Any]) -> Iterator[str]:
    for notice in (*one["problems"], *one["notes"]):
        yield f"  {one['file']}:{notice['line']}: {notice['text']}"


def _details(agents: list[Object], files: list[Object], state: Path | None) -> Iterator[str]:
    for one in agents:
        for name in (
            "agentId",
            "source",
            "file",
            "description",
            "model",
            "thinking",
            "workspace",
            "maxTurns",
        ):
            if one[name]:
                yield f"{name:<12} {one[name]}"
        for name in ("toolsAllowed", "toolsDenied", "skills"):
            if one[name] is not None:
                yield f"{name:<12} {', '.join(one[name]) or 'none'}"
        if one["instructions"]:
            yield f"\n{one['instructions']}"
    for one in files:
        yield f"{one['kind']} file · {one['state']} · {_place(one)}{_about(one)}"
        yield from _notices(one)
        if one["state"] == "proposed" and one["question"]:
            yield f"  It has no effect. Read and decide: {command_for(state, 'approve', one['question'])}"
