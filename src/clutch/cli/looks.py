"""The commands that show: their options and the words of their `--help`. What they do is loaded when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from clutch.cli.options import All, AsJson, State, Target
from clutch.core.model import Phase

looks = typer.Typer()


@looks.command()
def ps(
    all_: All = False,
    root: Annotated[
        str | None, typer.Option(help="Only in the tree of this task or session.", show_default=False)
    ] = None,
    phase: Annotated[
        Phase | None,
        typer.Option(metavar="PHASE", help=f"Only in this phase: {', '.join(Phase)}.", show_default=False),
    ] = None,
    undelivered: Annotated[bool, typer.Option("--undelivered", help="Only what could not be told.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 50,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """List tasks, oldest first. Works without a gateway, too."""
    from clutch.cli import showing

    wanted = showing.Wanted(
        is_all=all_, root=root, phase=phase and phase.value, is_undelivered=undelivered, limit=limit
    )
    showing.ps(state, wanted, as_json=as_json)


@looks.command()
def dead(state: State = None, as_json: AsJson = False) -> None:
    """List results that could not be told. `redeliver` or `dismiss` them."""
    from clutch.cli import showing

    showing.ps(state, showing.Wanted(is_undelivered=True), as_json=as_json, command="dead")


@looks.command()
def tree(
    target: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Only the tree this task or session is in.")
    ] = None,
    all_: All = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show who works for whom. Works without a gateway, too."""
    from clutch.cli import showing

    showing.tree(state, target, as_json=as_json, is_all=all_)


@looks.command()
def logs(
    target: Target,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task has ended.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Print what a task was told, said and did, in order. With --json one object per line."""
    from clutch.cli import showing

    showing.logs(state, target, follows=follow, as_json=as_json)


@looks.command()
def why(target: Target = "last", state: State = None, as_json: AsJson = False) -> None:
    """Tell how a task came to where it is and what it waits for. Also how it was told. Default: the last one."""
    from clutch.cli import showing

    showing.why(state, target, as_json=as_json)


@looks.command()
def replay(target: Target, state: State = None, as_json: AsJson = False) -> None:
    """Go through a task's journal step by step. With --json one object per line. Nothing is run again."""
    from clutch.cli import showing

    showing.replay(state, target, as_json=as_json)


@looks.command()
def inbox(state: State = None, as_json: AsJson = False) -> None:
    """List what waits for you: plans, questions, approvals, budgets. At a terminal, decide with a key."""
    from clutch.cli import showing

    showing.inbox(state, as_json=as_json)


@looks.command()
def top(state: State = None, as_json: AsJson = False) -> None:
    """Show the list of tasks live, what works first; q leaves. With --json it is shown once."""
    from clutch.cli.talk import top as command

    command.top(state, as_json=as_json)


@looks.command("open")
def open_(
    prints: Annotated[bool, typer.Option("--print", help="Print the address; start no browser.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show the tree and what waits for you in a browser, live.

    The address lets in one browser, once, within half a minute. Without a screen it is printed."""
    from clutch.cli import opening

    opening.open_page(state, only_prints=prints, as_json=as_json)
