"""`clutch acp`: serve an editor; `clutch acp list`: agents that can be subagents."""

from __future__ import annotations

from typing import Annotated

import typer

from clutch.cli.options import State
from clutch.cli.output import answering, gateway, home_of
from clutch.core.agents import MAIN
from clutch.errors import extra

editors = typer.Typer(help="Talk to a main agent from an editor, and list agents that can be subagents.")


@editors.callback(invoke_without_command=True)
def acp(
    context: typer.Context,
    state: State = None,
    agent: Annotated[str, typer.Option(help="Agent of new conversations.")] = MAIN,
    session: Annotated[
        str | None,
        typer.Option(
            help="Main session of every conversation, e.g. agent:main:main. Default: a new one each."
        ),
    ] = None,
) -> None:
    """Serve an editor that speaks the Agent Client Protocol on stdin and stdout.

    Zed, JetBrains and other editors start it. Conversations and their subagents outlive the editor.

    Example: clutch acp --session agent:main:main"""
    if context.invoked_subcommand is not None:
        return
    with answering("acp", as_json=False):
        with extra("acp", "`clutch acp`"):
            import asyncio

            from clutch.cli.acp.editor_agent import EditorWish, serve

        gateway(state, is_new_work=True)
        asyncio.run(serve(EditorWish(home_of(state), agent, session)))
