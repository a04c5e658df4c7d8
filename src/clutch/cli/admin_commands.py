"""`clutch config …` and `clutch init`: their options and the words of their `--help`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clutch.cli.options import AsJson, Config, State

configs = typer.Typer(help="Look at the config: is it right, and what holds?", no_args_is_help=True)
beginning = typer.Typer()


@configs.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Default: clutch.json in the state directory.")
    ] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Say everything that is wrong with a config. Exit code 1 if anything is."""
    from clutch.cli import config as config_files

    config_files.check(state, file, as_json=as_json)


@configs.command()
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="For example announce.queue.mode, or announce.")],
    config: Config = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show what holds for a key, its default, where it is said, what it may be, and why."""
    from clutch.cli import config as config_files

    config_files.explain(state, config, key, as_json=as_json)


@configs.command()
def schema() -> None:
    """Print a JSON schema of the config, for editors."""
    from clutch.cli import config as config_files

    config_files.schema()


@beginning.command()
def init(
    force: Annotated[bool, typer.Option("--force", help="Write over the one that is there.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Write a first config for this machine. Looks for provider keys and a local Ollama, and comments the rest."""
    from clutch.cli import config as config_files

    config_files.init(state, is_forced=force, as_json=as_json)


# --------------------------------------------------------------------------------------------------
# The commands for looking after it: their options and the words of their `--help`.

upkeep = typer.Typer()


class ExportFormat(StrEnum):
    JSONL = "jsonl"
    MARKDOWN = "markdown"


class UsageGroupingOption(StrEnum):
    ROOT = "root"
    AGENT = "agent"
    MODEL = "model"
    DAY = "day"


@upkeep.command()
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Put right what can be without harm: modes, a stale gateway.json.")
    ] = False,
    online: Annotated[
        bool, typer.Option("--online", help="Also knock at the providers of the config beyond this machine.")
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            help="Also write a .tar.gz for somebody who helps, without secrets.", show_default=False
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help="A PostgreSQL that the config does not name: postgresql://…", show_default=False),
    ] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Check whether all is well, and say what to do if not.

    The promises on the live database, the gateway's loops, modes, config, sandbox, clock, disk."""
    from clutch.cli import doctor as command

    command.doctor(state, fixes=fix, is_online=online, bundle=bundle, as_json=as_json, database=database)


@upkeep.command()
def token(
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Make another; the old one opens nothing from now on.")
    ] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Say where the token of the gateway is kept, or change it. It is never printed."""
    from clutch.cli import serve

    serve.token(state, rotates=rotate, as_json=as_json)


@upkeep.command()
def cost(
    by: Annotated[UsageGroupingOption, typer.Option(help="Added up by this.")] = UsageGroupingOption.ROOT,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show what model calls have used and cost. Works without a gateway, too."""
    from clutch.cli import show

    show.cost(state, by.value, as_json=as_json)


@upkeep.command()
def export(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A task, or the key of a session.")],
    tree: Annotated[bool, typer.Option("--tree", help="Also everything below it.")] = False,
    form: Annotated[
        ExportFormat, typer.Option("--format", help="One object per line, or to be read.")
    ] = ExportFormat.JSONL,
    output: Annotated[
        Path | None, typer.Option(help="A new file, yours alone. Default: stdout.", show_default=False)
    ] = None,
    with_secrets: Annotated[
        bool, typer.Option("--with-secrets", help="Leave in what looks like a key, a token or a password.")
    ] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Write out all that a task or session was told, said and did.

    With its result; what looks like a secret is taken out. Works without a gateway, too."""
    from clutch.cli import maintenance

    maintenance.export(
        state,
        target,
        with_tree=tree,
        is_markdown=form is ExportFormat.MARKDOWN,
        output=output,
        with_secrets=with_secrets,
        as_json=as_json,
    )


@upkeep.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Copy the database as it is now, while everybody works on."""
    from clutch.cli import maintenance

    maintenance.backup(state, file, as_json=as_json)


@upkeep.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Archive what is long over, and remove its files. Now, instead of at the sweeper's next round."""
    from clutch.cli import maintenance

    maintenance.gc(state, is_dry=dry_run, as_json=as_json)


# --------------------------------------------------------------------------------------------------
# `clutch import`: what other systems left behind becomes ours. Their files are only ever read.

imports = typer.Typer(help="Bring in what another system left behind.", no_args_is_help=True)


@imports.callback()
def _group() -> None:
    """Bring in what another system left behind."""


@imports.command("openclaw")
def openclaw(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="OpenClaw's state directory: ~/.openclaw")],
    state: State = None,
    database: Annotated[
        str | None, typer.Option(help="A PostgreSQL instead of SQLite: postgresql://…", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Subagent runs, their results and transcripts. Nothing of OpenClaw's is changed.

    Finished runs keep outcome, result and label; what nobody was told of is announced to the main agent when it works
    next; what had not ended is lost. A second import changes nothing. On SQLite, stop the gateway first."""
    from clutch.cli import maintenance

    maintenance.openclaw(directory, state, database, is_rehearsal=dry_run, as_json=as_json)
