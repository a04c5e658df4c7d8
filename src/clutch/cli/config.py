"""`clutch config …` and `clutch init`. A background gateway is restarted after `init`."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clutch.cli import serve
from clutch.cli.output import (
    Exit,
    answering,
    command_for,
    home_of,
    is_interactive,
    print_object,
    print_text,
    report,
    say,
    unloaded,
)
from clutch.cli.source import DEMO_TASK
from clutch.config import explain as explain_config
from clutch.config import explain as schemas
from clutch.config import load
from clutch.config.explain import Explained, StarterModel
from clutch.config.load import Config
from clutch.core.agents import OFFLINE
from clutch.core.text.format import counted
from clutch.errors import ConfigInvalid, InvalidInput, StoreError
from clutch.surfaces import discovery
from clutch.surfaces.discovery import CONFIG_FILE

if TYPE_CHECKING:
    from clutch.wiring import ModelTrial


def check(state: Path | None, file: Path | None, *, as_json: bool) -> None:
    with answering("config.check", as_json=as_json):
        try:
            config = load.load(home_of(state), file)
            _check_starts(config, home_of(state), file)
        except ConfigInvalid as error:
            body = {"file": error.field, "problems": error.problems}
            report("config.check", body, "\n".join(error.problems), as_json=as_json, is_ok=False)
            raise typer.Exit(Exit.ERROR) from error
        _tell_right(config, state, as_json=as_json)


def _check_starts(config: Config, home: Path, file: Path | None) -> None:
    """Check what `serve` checks at its start. Raises ConfigInvalid."""
    from clutch.config.sources import ConfigSource
    from clutch.wiring import config_problems

    ConfigSource(home, file).load()

    if problems := config_problems(config.settings, home):
        path = str(config.path or home / CONFIG_FILE)
        raise ConfigInvalid(path, [f"{path}: {problem}" for problem in problems])


def _tell_right(config: Config, state: Path | None, *, as_json: bool) -> None:
    from clutch.wiring import config_warnings

    warnings = [*config_warnings(config.settings), *_kept_workspaces(config, state)]
    lines = [f"Note: {warning}" for warning in warnings]
    if config.path is None:
        file = home_of(state) / CONFIG_FILE
        lines.append(f"No {file}: every setting has its default. `{command_for(state, 'init')}` writes one.")
    else:
        lines.append(f"{config.path}: OK, {counted(len(config.lines), 'key')} set.")
    is_loaded, missing = _loaded(config, state)
    lines += [missing] if missing is not None else [is_loaded] if is_loaded else []
    body: dict[str, Any] = {
        "file": None if config.path is None else str(config.path),
        "keys": len(config.lines),
    }
    body |= {"warnings": warnings, "notLoaded": missing}
    report("config.check", body, "\n".join(lines), as_json=as_json)


def _kept_workspaces(config: Config, state: Path | None) -> Iterator[str]:
    """Yield the main sessions that keep another workspace than the config names now."""
    from clutch.offline_reader import looking_at
    from clutch.transactions.read.transcripts import main_workspaces

    home = home_of(state)
    if not discovery.has_store(home):
        return
    try:
        with looking_at(home) as look:
            kept = look(main_workspaces)
    except StoreError:
        return  # `doctor` reports a database that cannot be read
    for key, agent_id, workspace in kept:
        named = config.settings.policy.workspace_of(agent_id)
        if named is not None and named != workspace:
            remedy = command_for(state, "delete", key)
            yield f"workspace {named} is for new sessions; {key} keeps {workspace} (to begin anew: `{remedy}`)"


def _loaded(config: Config, state: Path | None) -> tuple[str, str | None]:
    """Return that the running gateway has loaded this file, and what of it is missing; `("", None)` without one."""
    home = home_of(state)
    running = discovery.find(home)
    if running is None or running.config is None or config.path is None:
        return "", None
    if Path(running.config.file) != config.path.absolute():
        return "", None
    return f"The gateway (pid {running.pid}) has loaded it.", unloaded(home, running)


def explain(state: Path | None, file: Path | None, key: str, *, as_json: bool) -> None:
    with answering("config.explain", as_json=as_json):
        config = load.load(home_of(state), file)
        found = explain_config.explain(config, key)
        if as_json:
            print_object("config.explain", {"keys": [_to_json(one, config) for one in found]})
        elif len(found) == 1:
            print_text(_in_full(found[0], config))
        else:
            print_text(
                "\n".join(f"{one.key} = {_written(one.value)}  ({_source(one, config)})" for one in found)
            )


def _to_json(one: Explained, config: Config) -> dict[str, Any]:
    return {
        "key": one.key,
        "value": one.value,
        "default": one.default,
        "required": one.is_required,
        "source": _source(one, config),
        "mayBe": one.may_be,
        "reason": one.reason,
        "needsRestart": not one.is_live,
        "newSessionsOnly": one.is_for_new,
    }


def _in_full(one: Explained, config: Config) -> str:
    lines = [
        f"{one.key} = {_written(one.value)}",
        f"  from      {_source(one, config)}",
        f"  default   {'none: it must be said' if one.is_required else _written(one.default)}",
        f"  may be    {one.may_be}",
        *(f"            {word}: {meaning}" for word, meaning in one.choices if meaning),
        *([f"  meaning   {one.reason}"] if one.reason else []),
        f"  changed   {'while it runs' if one.is_live else 'at the next start of the gateway'}"
        f"{'; sessions that exist keep theirs' if one.is_for_new else ''}",
    ]
    return "\n".join(lines)


def _source(one: Explained, config: Config) -> str:
    return "default" if one.line is None else f"{config.path}:{one.line}"


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def schema() -> None:
    print(json.dumps(schemas.schema(), indent=2, ensure_ascii=False))


# ---- the first config ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitOptions:
    """The options of `clutch init`. `model`: None asks, or takes the likeliest."""

    is_forced: bool
    model: str | None
    tests: bool


#: What to do about a model that does not answer.
FIXES = {
    "rejected": "The provider rejected the key. Set a valid {key}, then `{again}`.",
    "no such model": "The provider has no such model. Name another: `{again} --model PROVIDER:MODEL`.",
    "unreachable": "The provider cannot be reached. Check the network and its address, then `{again}`.",
    "failed": "The provider refused the call. Try again later, or name another model: `{again} --model NAME`.",
}


def init(state: Path | None, wanted: InitOptions, *, as_json: bool) -> None:
    with answering("init", as_json=as_json):
        path = home_of(state) / CONFIG_FILE
        if os.path.lexists(path) and not wanted.is_forced:
            raise InvalidInput(str(path), "exists; --force replaces it")
        found = explain_config.choices(os.environ)
        chosen = _chosen(found, wanted.model, asks=not as_json)
        _write(path, explain_config.starter(chosen, found))
        trial = _trial(path, chosen.model) if wanted.tests and chosen.model != OFFLINE else None
        restarted = serve.restart(state)
        is_ok = trial is None or trial.result.value == "ok"
        lines = [
            f"Wrote {path}: model {chosen.model} ({chosen.because}).",
            *_trial_lines(state, chosen.model, trial),
        ]
        said = {"file": str(path), "model": chosen.model, "found": [one.model for one in found]}
        tested = None if trial is None else {"result": trial.result.value, "detail": trial.detail}
        body = {**said, "gateway": restarted, "test": tested}
        report("init", body, "\n".join(lines), as_json=as_json, is_ok=is_ok)
        if not is_ok:
            raise typer.Exit(Exit.ERROR)


def _trial(path: Path, model: str) -> ModelTrial:
    """Ask the model of the new config for one short answer."""
    import asyncio

    from clutch.wiring import try_model

    say(f"Testing {model} with one short call …")
    return asyncio.run(try_model(load.load(path.parent).settings, model))


def _trial_lines(state: Path | None, model: str, trial: ModelTrial | None) -> list[str]:
    """Return what the call has shown, and a command that works now."""
    first = command_for(state, "run", "--wait", DEMO_TASK if model == OFFLINE else "Say hello")
    if trial is None:
        return [f"Next: `{first}`."]
    if trial.result.value == "ok":
        return [f"Tested {model}: OK, {trial.detail}.", f"Next: `{first}`."]
    key = explain_config.key_variable(model) or "key"
    fix = FIXES[trial.result.value].format(key=key, again=command_for(state, "init", "--force"))
    demo = command_for(state, "run", "--wait", DEMO_TASK, "--model", OFFLINE)
    return [
        f"Tested {model}: {trial.result.value}: {trial.detail}",
        fix,
        f"Next, with the demo model: `{demo}`.",
    ]


def _chosen(found: tuple[StarterModel, ...], model: str | None, *, asks: bool) -> StarterModel:
    if model is not None:
        return StarterModel(model, "chosen with --model")
    return _asked(found) if asks and is_interactive() else found[0]


def _asked(found: tuple[StarterModel, ...]) -> StarterModel:
    """Ask the user for a model where there are several."""
    if len(found) == 1:
        return found[0]
    for number, one in enumerate(found, 1):
        say(f"  {number}  {one.model}  ({one.because})")
    wanted: int = typer.prompt("Which model?", default=1, type=int, err=True)
    if not 1 <= wanted <= len(found):
        raise InvalidInput("model", f"{wanted} is not in the list; choose 1 to {len(found)}")
    return found[wanted - 1]


def _write(path: Path, text: str) -> None:
    """Write the file atomically, for its owner only."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    except OSError as error:
        raise InvalidInput(
            "--state", f"{path.parent} cannot be written: {error.strerror}; name another directory"
        ) from error
    try:
        with os.fdopen(file, "w", encoding="utf-8") as writing:
            writing.write(text)
            writing.flush()
            os.fsync(file)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
