"""The commands that make something happen: their options and the words of their `--help`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from clutch.cli.options import (
    All,
    AsJson,
    Config,
    Hash,
    OptionalTextArgument,
    SpawnCommandOptions,
    State,
    Sure,
    Target,
    TextArgument,
    takes_wanted,
)
from clutch.core.model import Phase

acts = typer.Typer()


@acts.command()
def serve(
    state: State = None,
    database: Annotated[
        str | None, typer.Option(help="A PostgreSQL instead of SQLite: postgresql://…", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="provider:model of agents that name none. Default: the offline script.")
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option(help="Where the file tools of new sessions work. Default: here.")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="The address to listen on. Default: 127.0.0.1; others need gateway.allowRemote.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="0 = any free one.", show_default=False),
    ] = None,
    config: Config = None,
    no_input: Annotated[
        bool,
        typer.Option("--no-input", help="Nobody is there to ask: what needs a person is denied at once."),
    ] = False,
    background: Annotated[bool, typer.Option("--background", hidden=True)] = False,
    as_json: AsJson = False,
) -> None:
    """Run a gateway in the foreground. It works on tasks and answers the other commands."""
    from clutch.cli import serve

    wishes = serve.ServeOptions(state, database, model, workspace, host, port, config, no_input, background)
    serve.serve(wishes, as_json=as_json)


@acts.command()
def stop(state: State = None, as_json: AsJson = False) -> None:
    """Stop the gateway. Turns end at their next step; everything goes on at the next start."""
    from clutch.cli import serve

    serve.stop(state, as_json=as_json)


@acts.command()
def drain(
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds; then it stops anyway, as `stop` does.", show_default=False),
    ] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Let the gateway finish what it has, then stop. It takes nothing new; shows what it waits for."""
    from clutch.cli import serve

    serve.drain(state, timeout_s=timeout, as_json=as_json)


@acts.command()
def mcp(
    state: State = None,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What this client sees: its own tasks, found again under this name. Default: the client's name.",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[str, typer.Option(help="Whose session that is.")] = "main",
) -> None:
    """Offer background agents to an MCP client, on stdin and stdout. They outlive the client."""
    from clutch.cli import serve as command

    command.serve_mcp(state, agent_id=agent, session=session)


@acts.command()
@takes_wanted
def spawn(
    wanted: SpawnCommandOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say whether it would be accepted; start nothing.")
    ] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Start a task in the background and print its id."""
    from clutch.cli import spawn

    spawn.spawn(state, wanted, is_dry=dry_run, as_json=as_json)


@acts.command()
@takes_wanted
def run(
    wanted: SpawnCommandOptions,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended; print its result.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to wait; the task itself goes on.", show_default=False),
    ] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Start a task; with --wait, print its result when it is over.

    Exit code: 0 ok, 1 error, 3 timeout, 4 killed, 5 needs you, 6 undelivered, 7 lost, 8 forbidden."""
    from clutch.cli import spawn

    spawn.run(state, wanted, waits=wait, timeout_s=timeout, as_json=as_json)


# ---- one POST to one task -------------------------------------------------------------------------------

#: Those that need nothing but their task, and those that may be given words with it.
PLAIN = {
    "pause": "Park a task and everything below it at the next step.",
    "resume": "Let a paused task go on.",
    "redeliver": "Deliver an undelivered result or message (m_…) again.",
    "dismiss": "Discard an undelivered result (it stays readable) or message.",
    "remove": "Take a finished, delivered task out of its requester's quota.",
}
AGAIN = {
    "retry": "Run a finished task again from the beginning. With other words, if you give some.",
    "continue": "Let a finished task go on where it ended, with more words.",
}


def _verb(command: str, state: Path | None, target: str, *, as_json: bool, **body: object) -> None:
    from clutch.cli import tasks

    tasks.verb(command, state, target, body, as_json=as_json)


def _plain(name: str) -> Callable[..., None]:
    def act(target: Target, state: State = None, as_json: AsJson = False) -> None:
        _verb(name, state, target, as_json=as_json)

    return act


def _again(name: str) -> Callable[..., None]:
    def act(
        target: Target, text: OptionalTextArgument = "", state: State = None, as_json: AsJson = False
    ) -> None:
        _verb(name, state, target, as_json=as_json, text=text)

    return act


for _name, _help in PLAIN.items():
    acts.command(_name, help=_help)(_plain(_name))
for _name, _help in AGAIN.items():
    acts.command(_name, help=_help)(_again(_name))


@acts.command()
def chat(
    session: Annotated[
        str | None,
        typer.Option(help="The main session to talk to. Default: agent:main:main.", show_default=False),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="... or that of this agent.", show_default=False)] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Talk to a main agent while its children work. With a pipe on stdin: one message per line."""
    from clutch.cli.chat import chat

    chat.chat(state, session, agent, as_json=as_json)


@acts.command()
def attach(target: Target, state: State = None, as_json: AsJson = False) -> None:
    """Watch a task live and type to steer it. Escape or Ctrl-D detaches, the task goes on.

    With --json it only watches: `logs -f --json`."""
    if as_json:
        from clutch.cli import show

        return show.logs(state, target, follows=True, as_json=True)
    from clutch.cli.chat import chat

    chat.attach(state, target)


@acts.command()
def kill(
    target: Target,
    reason_argument: Annotated[
        str | None, typer.Argument(metavar="REASON", help="Stored with the outcome.", show_default=False)
    ] = None,
    reason: Annotated[str, typer.Option(help="The same.")] = "killed",
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Stop a task and everything below it, for good. `all`: whatever works."""
    _verb(
        "kill", state, target, as_json=as_json, reason=reason if reason_argument is None else reason_argument
    )


@acts.command()
def steer(target: Target, text: TextArgument, state: State = None, as_json: AsJson = False) -> None:
    """Give a new instruction in place of what a task does now."""
    _verb("steer", state, target, as_json=as_json, text=text)


@acts.command()
def send(
    target: Target,
    text: TextArgument,
    wait: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds to wait for a reply, at most `control.sendWaitSeconds`; 0 = don't."
        ),
    ] = 30.0,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Add a message for a task and wait a little for its reply."""
    _verb("send", state, target, as_json=as_json, text=text, waitSeconds=wait)


# ---- deciding -------------------------------------------------------------------------------------------


@acts.command()
def approve(
    target: Target,
    text: OptionalTextArgument = "",
    plan_hash: Hash = None,
    yes: Sure = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Approve the plan of a task: it goes on with all its tools."""
    from clutch.cli import tasks

    tasks.decide("approve", state, target, {"text": text}, seen_hash=plan_hash, is_sure=yes, as_json=as_json)


@acts.command()
def reject(
    target: Target,
    reason: TextArgument,
    end: Annotated[
        bool | None,
        typer.Option(
            "--end/--revise",
            help="End the task, or ask for another plan. Default: plan.onReject.",
            show_default=False,
        ),
    ] = None,
    plan_hash: Hash = None,
    yes: Sure = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Send the plan of a task back, with the reason."""
    from clutch.cli import tasks

    body = {"reason": reason} | ({} if end is None else {"then": "end" if end else "revise"})
    tasks.decide("reject", state, target, body, seen_hash=plan_hash, is_sure=yes, as_json=as_json)


@acts.command()
def answer(
    item: Annotated[str, typer.Argument(metavar="ID", help="As `clutch inbox` shows it.")],
    text: OptionalTextArgument = "",
    yes: Annotated[bool, typer.Option("--approve", help="Allow what was asked for.")] = False,
    no: Annotated[bool, typer.Option("--reject", help="Do not allow it; the text is the reason.")] = False,
    seen_hash: Hash = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Answer what waits in the inbox. With words, or --approve, or --reject."""
    from clutch.cli import tasks

    if yes and no:
        raise typer.BadParameter("--approve and --reject cannot both be meant")
    decision = "approve" if yes else "reject" if no else "answer"
    tasks.answer(state, item, decision, text, seen_hash=seen_hash, as_json=as_json)


@acts.command()
def rm(
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="Its key, or a task whose session is meant.")
    ],
    kill: Annotated[
        bool, typer.Option("--kill", help="First stop whatever works in it or below it.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Although its result was not told; the result stays, undelivered.")
    ] = False,
    keep_transcript: Annotated[
        bool, typer.Option("--keep-transcript", help="Only out of lists and quotas; its words stay.")
    ] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Delete a session and its transcript. Use, outcome and timeline stay."""
    from clutch.cli import tasks

    options = {"kill": kill, "force": force, "keepTranscript": keep_transcript}
    tasks.remove_session(state, session, options, as_json=as_json)


# --------------------------------------------------------------------------------------------------
# The commands that show: their options and the words of their `--help`. What they do is loaded when they run.

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
    limit: Annotated[
        int, typer.Option(min=1, max=200, help="At most this many; active tasks are always all shown.")
    ] = 50,
    cursor: Annotated[
        str | None, typer.Option(help="Go on after an earlier list: its `next`.", show_default=False)
    ] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """List tasks: needs attention, active, then the newest finished.

    All active tasks are shown, however many. Works without a gateway, too."""
    from clutch.cli import show

    wanted = show.ListOptions(
        is_all=all_,
        root=root,
        phase=phase and phase.value,
        is_undelivered=undelivered,
        limit=limit,
        cursor=cursor,
    )
    show.ps(state, wanted, as_json=as_json)


@looks.command()
def dead(state: State = None, as_json: AsJson = False) -> None:
    """List results that could not be told. `redeliver` or `dismiss` them."""
    from clutch.cli import show

    show.ps(state, show.ListOptions(is_undelivered=True), as_json=as_json, command="dead")


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
    from clutch.cli import show

    show.tree(state, target, as_json=as_json, is_all=all_)


@looks.command()
def logs(
    target: Target,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task has ended.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Print what a task was told, said and did, in order. With --json one object per line."""
    from clutch.cli import show

    show.logs(state, target, follows=follow, as_json=as_json)


@looks.command()
def why(target: Target = "last", state: State = None, as_json: AsJson = False) -> None:
    """Tell how a task came to where it is and what it waits for. Also how it was told. Default: the last one."""
    from clutch.cli import show

    show.why(state, target, as_json=as_json)


@looks.command()
def replay(target: Target, state: State = None, as_json: AsJson = False) -> None:
    """Go through a task's journal step by step. With --json one object per line. Nothing is run again."""
    from clutch.cli import show

    show.replay(state, target, as_json=as_json)


@looks.command()
def inbox(state: State = None, as_json: AsJson = False) -> None:
    """List what waits for you: plans, questions, approvals, budgets. At a terminal, decide with a key."""
    from clutch.cli import show

    show.inbox(state, as_json=as_json)


@looks.command()
def top(state: State = None, as_json: AsJson = False) -> None:
    """Show the list of tasks live, what works first; q leaves. With --json it is shown once."""
    from clutch.cli import show

    show.top(state, as_json=as_json)


@looks.command("open")
def open_(
    prints: Annotated[bool, typer.Option("--print", help="Print the address; start no browser.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show the tree and what waits for you in a browser, live.

    The address lets in one browser, once, within half a minute. Without a screen it is printed."""
    from clutch.cli import serve

    serve.open_page(state, only_prints=prints, as_json=as_json)
