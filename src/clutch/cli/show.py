"""Commands that show lists, trees, the inbox, transcripts and costs. None of them changes a task."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from clutch.cli import output
from clutch.cli.options import All, AsJson, JsonLines, State, Target
from clutch.cli.output import (
    answering,
    command_for,
    gateway,
    is_screen,
    is_terminal,
    print_object,
    print_text,
    say,
)
from clutch.cli.source import (
    MAIN_SESSION,
    Followed,
    GatewayConnection,
    GatewaySource,
    Source,
    messages,
    resumable,
    source,
)
from clutch.core.model import Phase
from clutch.core.text.format import counted, money, tokens, typed, visible
from clutch.errors import MissingExtra, NoGateway, extra
from clutch.surfaces.discovery import PROBLEM
from clutch.surfaces.http_client import GatewayClient, session_path

FOLLOW_S = 0.5
RECENT_MINUTES = 30
FINISHED = 10  #: the newest so many finished tasks are in every list, however old they are
PAGE = 200
MAIN = ("main", MAIN_SESSION)
NEWEST = ("last", *MAIN)  #: targets that exist as soon as there is anything
NO_TASK: dict[str, Any] = {"task": None, "text": "", "timeline": [], "deliveries": [], "stuck": None}
REPLIES_SHOWN_MAX = 3
PROBLEM_CHARS_MAX = 2000

looks = typer.Typer()


class ListPartOption(StrEnum):
    """The states by which the API filters a list. (`--state` is the state directory.)"""

    ACTIVE = "active"
    ATTENTION = "attention"
    FINISHED = "finished"
    FAILED = "failed"
    UNDELIVERED = "undelivered"


PARTS = ", ".join(ListPartOption)


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The filter of a list. `limit`: of finished tasks; None: all of them."""

    is_all: bool = False
    root: str | None = None
    phase: str | None = None
    state: str | None = None
    is_undelivered: bool = False
    limit: int | None = PAGE
    cursor: str | None = None

    def to_query(self) -> dict[str, Any]:
        """Return the query of the first page; without a filter, tasks that ended long ago are left out."""
        is_filtered = self.phase or self.state or self.is_undelivered
        wanted = {"root": self.root, "phase": self.phase, "state": self.state, "cursor": self.cursor}
        return {
            **wanted,
            "limit": min(self.limit or PAGE, PAGE),
            "recentMinutes": None if self.is_all or is_filtered else RECENT_MINUTES,
            "recentCount": min(self.limit or FINISHED, PAGE) if self.cursor is None else 0,
            "undelivered": self.is_undelivered,
        }

    def listed(self, here: Source, *, numbered: bool = False) -> dict[str, Any]:
        """Return one page with everything active and undelivered, and at most `limit` finished tasks."""
        query = {**self.to_query(), "numbered": numbered}
        page = here.tasks(**query)
        page["tasks"] = output.with_numbers(page["tasks"]) if numbered else page["tasks"]
        while page["next"] is not None:
            ended = sum(output.is_finished(task) for task in page["tasks"])
            if self.limit is not None and ended >= self.limit:
                break
            room = PAGE if self.limit is None else min(PAGE, self.limit - ended)
            shown = {"numberedAfter": len(page["tasks"])} if numbered else {}
            more = here.tasks(**{**query, "cursor": page["next"], "limit": room, **shown})
            fresh = output.with_numbers(more["tasks"], len(page["tasks"])) if numbered else more["tasks"]
            page = {**page, "tasks": [*page["tasks"], *fresh], "next": more["next"]}
        return page


@looks.command()
def ps(
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="All finished tasks, also archived ones.")
    ] = False,
    root: Annotated[str | None, typer.Option(help="Only the tree of this task or session.")] = None,
    only: Annotated[
        ListPartOption | None, typer.Option("--only", metavar="PART", help=f"Only this part: {PARTS}.")
    ] = None,
    phase: Annotated[Phase | None, typer.Option(metavar="PHASE", hidden=True)] = None,
    undelivered: Annotated[bool, typer.Option("--undelivered", help="Only undelivered results.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"At most this many finished tasks; active ones are always all shown. Default: {FINISHED}.",
        ),
    ] = None,
    cursor: Annotated[str | None, typer.Option(help="Continue after an earlier list: its `next`.")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """List tasks: needs attention, running, queued, then finished.

    Shows every active task and the 10 that finished last. Works without a gateway.

    Example: clutch ps --all"""
    wanted = ListOptions(
        is_all=all_,
        root=root,
        phase=phase and phase.value,
        state=only and only.value,
        is_undelivered=undelivered,
        limit=limit or (None if all_ else FINISHED),
        cursor=cursor,
    )
    _list(state, wanted, as_json=as_json)


@looks.command()
def dead(state: State = None, as_json: AsJson = False) -> None:
    """List undelivered results, the dead-letter queue.

    `clutch redeliver` delivers one again, `clutch dismiss` discards it.

    Example: clutch dead"""
    _list(state, ListOptions(is_undelivered=True), as_json=as_json, command="dead")


def _list(state: Path | None, wanted: ListOptions, *, as_json: bool, command: str = "ps") -> None:
    with answering(command, as_json=as_json), source(state) as here:
        page = wanted.listed(here, numbered=not as_json)
        if as_json:
            print_object(command, {"at": output.moment_now(), **page})
            return
        if page["tasks"]:
            print(_table(state, page))
        if here.is_fresh:
            return
        more = "" if page["next"] is None else f" · older ones: `{command_for(state, 'ps', '-a')}`"
        say(output.summary(page["summary"]) + more)
        _point_to_replies(state, page["summary"])
        if page["summary"]["unsent"]:
            _show_unsent(here.inbox())


@looks.command()
def top(state: State = None, as_json: AsJson = False) -> None:
    """Watch all tasks live, and act on them with keys.

    Shows the tree of tasks, the transcript of the selected one and the inbox; ? lists the keys. With --json, or where
    the output is no terminal, it prints the list once, as without Textual (extra `top`).

    Example: clutch top"""
    if as_json or not is_screen():
        return _list(state, ListOptions(), as_json=as_json, command="top")
    with answering("top", as_json=False):
        try:
            with extra("top", "the terminal dashboard"):
                from clutch.cli.top import dashboard
            client = gateway(state, is_new_work=True)
        except (MissingExtra, NoGateway) as error:
            say(f"{error}. The plain list:")
            return _list(state, ListOptions(), as_json=False, command="top")
        dashboard.run(state, client)


def _table(state: Path | None, page: Mapping[str, Any]) -> str:
    command = partial(command_for, state)
    return output.table(page["tasks"], output.now(), command, page.get("stalledAfterSeconds"))


@looks.command()
def tree(
    target: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Only the tree this task or session is in.")
    ] = None,
    all_: All = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show tasks as a tree, below the agents that spawned them.

    Works without a gateway.

    Example: clutch tree last"""
    with answering("tree", as_json=as_json), source(state) as here:
        is_all = all_ or target is not None
        page = ListOptions(is_all=is_all, root=target, limit=None if is_all else PAGE).listed(here)
        tops = nested(page["tasks"])
        if as_json:
            print_object("tree", {"at": output.moment_now(), **page, "tasks": tops})
            return
        if tops:
            command = partial(command_for, state)
            print(output.forest(tops, output.now(), command, page.get("stalledAfterSeconds")))
        if here.is_fresh:
            return
        say(
            output.summary(page["summary"])
            + (" · older finished tasks are not shown" if page["next"] else "")
        )


@looks.command()
def inbox(state: State = None, as_json: AsJson = False) -> None:
    """List the inbox: plans, questions, approvals and budgets.

    At a terminal, decide on each item with a key.

    Example: clutch inbox"""
    with answering("inbox", as_json=as_json), source(state) as here:
        said = here.inbox()
        if as_json:
            print_object("inbox", said)
            return
        for one in [] if here.client is None else here.client.get("/v1/health")["problems"]:
            if one["isError"] and one["subject"] != PROBLEM:  # `source` has reported the config
                say(f"Problem: {visible(one['detail'], PROBLEM_CHARS_MAX)}\n  -> {one['remedy']}")
        shown = [_item(state, item) for item in said["items"]]
        if shown and here.client is not None and is_terminal():
            from clutch.cli import tasks

            return tasks.decide_with_keys(here.client, said["items"], shown)
        for text in shown:
            print_text(text)
        if here.is_fresh:
            return
        say(f"{counted(len(shown), 'item')} to decide" if shown else "nothing to decide")
        _point_to_replies(state, said)
        _show_unsent(said)


def _show_unsent(said: Mapping[str, Any]) -> None:
    if not said["unsent"]:
        return
    from clutch.core.delivery import unsent_line  # loads the policy, which most lists do not need

    for one in said["unsent"]:
        where = f"{one['channel']}:{one['target']}"
        print_text(
            unsent_line(one["id"], where, one["text"], one["outcome"], one["error"], attempts=one["attempts"])
        )


def _point_to_replies(state: Path | None, page: Mapping[str, Any]) -> None:
    count = page["replies"]
    ways = [
        ("logs", "main") if key == MAIN_SESSION else ("chat", "--session", key) for key in page["repliesIn"]
    ]
    if count:
        shown = ", ".join(f"`{command_for(state, *words)}`" for words in ways[:REPLIES_SHOWN_MAX])
        say(f"{counted(count, 'reply', 'replies')} to read: {shown}")


def _item(state: Path | None, item: dict[str, Any]) -> str:
    """Return an inbox item with the commands that answer it."""
    who, seen = item["label"] or item["sessionKey"], ("--hash", str(item["hash"]))
    hashed = seen if item["kind"] == "plan" else ()  # the content of a question never changes
    decisions = (("approve", item["id"], *hashed), ("reject", item["id"], "your reason", *hashed))
    answers = (("answer", item["id"], "your answer"),) if item["kind"] == "question" else decisions
    ways = "".join(f"\n  -> {command_for(state, *words)}" for words in answers)
    return f"{item['id']}  {item['status']}  {visible(who, 60)}\n  {item['text']}{ways}"


@looks.command()
def logs(
    target: Target = "last",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the task ends.")] = False,
    state: State = None,
    as_json: JsonLines = False,
) -> None:
    """Print the transcript of a task or session.

    Default: the last task.

    Example: clutch logs -f last"""
    with answering("logs", as_json=as_json):
        with source(state) as here:
            if here.is_fresh and target in NEWEST:
                return
            meant = here.followed(target)
            printed: set[str] = set()
            after = _print_lines(partial(here.transcript, meant.name), 0, printed, as_json=as_json)
            if target in MAIN and here.client is not None:
                _hear_all(here.client, printed, as_json=as_json)
        if follow and not meant.is_over:
            with resumable(state, "logs", "-f", meant.name):
                meant = _follow(GatewayConnection(state, gateway(state)), meant.name, after, as_json=as_json)
        _print_failure(state, meant.failed, as_json=as_json)


def _print_failure(state: Path | None, task: Mapping[str, Any] | None, *, as_json: bool) -> None:
    """Print why the task failed, which no transcript contains, and the command that runs it again."""
    if task is None:
        return
    body = {"outcome": task["outcome"], "status": task["status"], "error": task["error"]}
    line = {"seq": None, "at": task["endedAt"], "runId": None, "kind": "end", "body": body}
    if as_json:
        return print_object("log", line)
    print_text(output.log_line(line))
    if output.failure(task, typed) is not None:
        say(f"-> {command_for(state, 'retry', task['taskId'])}")


def _hear_all(client: GatewayClient, printed: Container[str], *, as_json: bool) -> None:
    """Print the unread replies: a failed turn and the answer of a command are in no transcript.

    They are marked as read only at a terminal: a pipe may be read by a program, or cut by `head`."""
    shown, marks, last = 0, sys.stdout.isatty() and not as_json, None
    while True:
        seen = {"heard": last} if marks else {"after": last or 0}
        said = client.post(session_path(MAIN_SESSION, "replies"), {"waitSeconds": 0, **seen})
        if said["id"] is None:
            break
        last, shown = said["id"], shown + 1
        if said["reply"] not in printed:
            when, body = output.moment_now(), {"text": said["reply"]}
            line = {"seq": None, "at": when, "runId": None, "kind": "reply", "body": body}
            print_object("log", line) if as_json else print_text(said["reply"])
    if shown and not marks:
        say(f"{counted(shown, 'reply', 'replies')} not marked as read: the output is not a terminal.")


def _follow(line: GatewayConnection, target: str, after: int, *, as_json: bool) -> Followed:
    def page_after(number: int) -> dict[str, Any]:
        return line.ask(lambda client: GatewaySource(client).transcript(target, number))

    while True:
        meant = line.ask(lambda client: GatewaySource(client).followed(target))
        after = _print_lines(page_after, after, set(), as_json=as_json)
        if meant.is_over:
            return meant
        time.sleep(FOLLOW_S)


def _print_lines(
    page_after: Callable[[int], dict[str, Any]], after: int, answers: set[str], *, as_json: bool
) -> int:
    """Print the messages after a number, add their answers to `answers`, and return the last number."""
    for line in messages(page_after, after):
        after = line["seq"]
        if line["kind"] == "answer":
            answers.add(line["body"]["text"])
        print_object("log", line) if as_json else print_text(output.log_line(line))
    return after


@looks.command()
def why(target: Target = "last", state: State = None, as_json: AsJson = False) -> None:
    """Explain a task's status: timeline, what blocks it, delivery.

    Default: the last task.

    Example: clutch why t_7f3a"""
    with answering("why", as_json=as_json), source(state) as here:
        found = NO_TASK if here.is_fresh and target in NEWEST else here.why(target)
        if as_json:
            print_object("why", found)
        elif found["text"]:
            print_text(found["text"])


@looks.command()
def replay(target: Target, state: State = None, as_json: JsonLines = False) -> None:
    """Print every recorded step of a task; nothing is run again.

    Letters, model calls, tools, deliveries.

    Example: clutch replay last"""
    with answering("replay", as_json=as_json), source(state) as here:
        page: dict[str, Any] = {"next": 0}
        while page["next"] is not None:
            page = here.replay(target, page["next"])
            for step in page["steps"]:
                if as_json:
                    print_object("replay", step)
                else:
                    print_text(output.step_line(step))


def nested(tasks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tasks that are on top of their families, in their order, with their children in `nodes`."""
    tops: list[dict[str, Any]] = []
    line: list[dict[str, Any]] = []  #: from the top of the present family down to the task before
    for level, task in output.placed(tasks):
        node = {**task, "nodes": []}
        (line[level - 1]["nodes"] if level else tops).append(node)
        line[level:] = [node]
    return tops


# --------------------------------------------------------------------------------------------------
# `clutch cost`: the tokens of model calls and their price, as far as it is known.

COUNTED = ("calls", "input", "output", "cacheRead", "cacheWrite")
HEADINGS = ("CALLS", "INPUT", "OUTPUT", "CACHED", "COST")
NAME_CELLS = 38  #: 80 columns without the figures


class UsageGroupingOption(StrEnum):
    ROOT = "root"
    AGENT = "agent"
    MODEL = "model"
    DAY = "day"
    TREE = "tree"


@looks.command()
def cost(
    by: Annotated[UsageGroupingOption, typer.Option(help="Group by.")] = UsageGroupingOption.ROOT,
    hours: Annotated[float | None, typer.Option(help="Only calls of the last hours.")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show the tokens and the cost of model calls.

    Days are counted in the time zone of this terminal. Works without a gateway.

    Example: clutch cost --by day"""
    with answering("cost", as_json=as_json), source(state) as here:
        said = here.usage(by.value, hours, _utc_offset_minutes())
        total = added_up(said["usage"])
        if as_json:
            print_object("cost", {**said, "total": total})
            return
        if said["usage"]:
            print(output.coloured(usage_line(by.value.upper(), HEADINGS), "1"))
        for one in said["usage"]:
            print(usage_line(visible(one["name"], NAME_CELLS), figures(one)))
        if said["usage"]:
            print(usage_line("total", figures(total)))
        else:
            say("No model calls yet.")
        for one in said["unpriced"]:
            used = f", {tokens(one['tokens'])} tokens" if one["tokens"] else ""
            print(f"cost unknown: {visible(one['model'], NAME_CELLS)}, {counted(one['calls'], 'call')}{used}")
        for one in said["budgets"]:
            for measure in one["measures"]:
                if measure["heading"] is not None:
                    print(f"{visible(budget_name(one), NAME_CELLS)}: {measure['heading']['text']}")


def budget_name(budget: Mapping[str, Any]) -> str:
    """Return what a user calls it. The stored name of the budget of a task has a row number."""
    if budget["kind"] == "task":
        return f"{budget['taskId']} ({budget['label']})" if budget["label"] else str(budget["taskId"])
    return str(budget["sessionKey"] or budget["name"])


def _utc_offset_minutes() -> int:
    return round((datetime.now().astimezone().utcoffset() or timedelta()).total_seconds() / 60)


def added_up(usage: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum. One unknown price makes it unknown (null), never too low."""
    prices = [one["usd"] for one in usage]
    usd = None if None in prices else str(sum(map(Decimal, prices), Decimal(0)))
    return {**{name: sum(one[name] for one in usage) for name in COUNTED}, "usd": usd}


def figures(one: Mapping[str, Any]) -> tuple[str, ...]:
    usd = "n/a" if one["usd"] is None else money(Decimal(one["usd"]))
    # The tokens of calls without an answer are unknown.
    is_known = one["input"] or not one["calls"]
    counts = [tokens(one[name]) if is_known else "n/a" for name in ("input", "output", "cacheRead")]
    return (str(one["calls"]), *counts, usd)


def usage_line(name: str, figures: Sequence[str], name_cells: int = NAME_CELLS) -> str:
    return output.fitted(name, name_cells) + "".join(f"{figure:>8}" for figure in figures)
