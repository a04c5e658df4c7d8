"""The commands for looking after it: their options and the words of their `--help`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clutch.cli.options import AsJson, State

upkeep = typer.Typer()


class Form(StrEnum):
    JSONL = "jsonl"
    MARKDOWN = "markdown"


class By(StrEnum):
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
    from clutch.cli import tokens

    tokens.token(state, rotates=rotate, as_json=as_json)


@upkeep.command()
def cost(
    by: Annotated[By, typer.Option(help="Added up by this.")] = By.ROOT,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show what model calls have used and cost. Works without a gateway, too."""
    from clutch.cli import costs

    costs.cost(state, by.value, as_json=as_json)


@upkeep.command()
def export(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A task, or the key of a session.")],
    tree: Annotated[bool, typer.Option("--tree", help="Also everything below it.")] = False,
    form: Annotated[Form, typer.Option("--format", help="One object per line, or to be read.")] = Form.JSONL,
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
    from clutch.cli import exporting

    exporting.export(
        state,
        target,
        with_tree=tree,
        is_markdown=form is Form.MARKDOWN,
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
    from clutch.cli import housekeeping

    housekeeping.backup(state, file, as_json=as_json)


@upkeep.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Archive what is long over, and remove its files. Now, instead of at the sweeper's next round."""
    from clutch.cli import housekeeping

    housekeeping.gc(state, is_dry=dry_run, as_json=as_json)
