"""The texts of the dashboard: rows, header, decisions, help. Each is a `rich.text.Text` that no markup was read from.

Labels, commands and what models write pass `visible` or `plain` here, as in every command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from clutch.cli import output, show
from clutch.cli.top.tree import Row, Task
from clutch.core.model import NEEDS_USER, RETRYABLE, TaskStatus
from clutch.core.text.format import visible

Item = Mapping[str, Any]

#: Magenta, green and red are readable on light and dark backgrounds; yellow, cyan and blue are not on one of them.
ATTENTION, GOOD, BAD, QUIET, STRONG = "bold magenta", "green", "red", "dim", "bold"
GLYPHS = {
    TaskStatus.STARTING: "○",
    TaskStatus.QUEUED: "○",
    TaskStatus.RUNNING: "●",
    TaskStatus.WAITING: "◐",
    TaskStatus.NEEDS_APPROVAL: "!",
    TaskStatus.NEEDS_ANSWER: "?",
    TaskStatus.PAUSED: "=",
    TaskStatus.RATE_LIMITED: "◌",
    TaskStatus.FAILING: "✗",
    TaskStatus.DONE: "✓",
    TaskStatus.FAILED: "✗",
    TaskStatus.TIMED_OUT: "✗",
    TaskStatus.KILLED: "■",
    TaskStatus.LOST: "✗",
}
#: For a terminal that is not UTF-8: each has the width of what it replaces.
ASCII = str.maketrans("○●◐◌✓✗■▾▸·…│─╭╮╰╯↑↓←→⏎", "o*%:+x#v>-.|-++++^v<>~")
TITLES = {
    "approval": "Approval needed",
    "question": "Answer needed",
    "plan": "Plan to approve",
    "budget": "Budget decision needed",
}
DEMO = "Demo model (no API key): answers are scripted. `clutch init` chooses a model."
TIME_CELLS, COST_CELLS, LABEL_CELLS_MIN = 6, 6, 12
NAME_CELLS = 34  #: of costs, in a dialog of 80 columns
TEXT_CHARS_MAX = 20_000  #: of one message; the rest is in `clutch logs`. What is decided about is never cut


def in_ascii(text: str) -> str:
    """Return a text of the same width without characters that an older terminal lacks."""
    if text.isascii():
        return text
    known = text.translate(ASCII)
    return "".join(one if one.isascii() else "?" * cell_len(one) for one in known)


def text_of(found: str) -> str:
    """Return foreign text of several lines, with escapes for what would act on the terminal."""
    return whole_text(found if len(found) <= TEXT_CHARS_MAX else f"{found[:TEXT_CHARS_MAX]}…")


def whole_text(found: str) -> str:
    return output.plain(found.expandtabs(4))


def status_style(task: Task) -> str:
    status = task["status"]
    if status in NEEDS_USER:
        return ATTENTION
    if status in RETRYABLE or task["group"] == "undelivered":
        return BAD
    return {TaskStatus.RUNNING: GOOD, TaskStatus.QUEUED: QUIET, TaskStatus.DONE: QUIET}.get(status, "")


def state_text(task: Task, now: float, stalled_s: float | None) -> str:
    """`running · thinking · step 4 · 6 s`; a status that the text begins with is not repeated."""
    doing = visible(output.doing(task, now, stalled_s), output.LABEL_CHARS_MAX)
    return doing if doing.startswith(task["status"]) else f"{task['status']} · {doing}"


def name_of(task: Task) -> str:
    return output.label(task) or str(task["taskId"])


def heading_line(row: Row, width: int) -> Text:
    return Text.assemble((set_cell_size(f"{row.heading.capitalize()} {row.count}", width), STRONG))


def task_line(row: Row, task: Task, width: int, now: float, stalled_s: float | None) -> Text:
    """Return one row of the list: label, state and what it does now, time, cost, id. The id is never cut."""
    mark = "  " if not row.children else "▾ " if row.is_open else "▸ "
    before = f"{'  ' * (row.level - 1)}{mark}"
    after = f" {output.elapsed(task, now):>{TIME_CELLS}} {output.cost(task):>{COST_CELLS}} {task['taskId']}"
    # The state stands in one column, however deep the task is in its tree.
    left = (width - cell_len(after)) * 3 // 8
    label_room = max(LABEL_CELLS_MIN, left - cell_len(before) - 2)
    state_room = width - cell_len(before) - 2 - label_room - 1 - cell_len(after)
    state, style = state_text(task, now, stalled_s), status_style(task)
    return Text.assemble(
        (before, QUIET),
        (f"{GLYPHS[task['status']]} ", style),
        (f"{output.fitted(name_of(task), label_room)} ", ""),
        (output.fitted(state, state_room), style),
        (after, QUIET),
    )


def header(summary: Mapping[str, Any] | None, connection: str, is_live: bool, width: int) -> Text:
    counts = "" if summary is None else output.summary(summary) or "no tasks"
    room = width - cell_len(connection) - 1
    said = (connection, GOOD if is_live else BAD)
    return Text.assemble((output.fitted(f"Clutch  {counts}", room), STRONG), " ", said)


def minute(at: float) -> str:
    return output.hour(output.moment_of(at))


# ---- decisions -------------------------------------------------------------------------------------------


def asker(item: Item) -> str:
    return visible(str(item["label"] or item["sessionKey"] or item["id"]), 60)


def asked(item: Item) -> str:
    """Return what is decided about: a command, a plan or a question."""
    command = item["detail"].get("args", {}).get("command")
    return whole_text(command if isinstance(command, str) else str(item["text"]))


def whole_item(item: Item) -> list[Text]:
    """Return everything that a decision covers, as it is shown before the decision."""
    who = f"{asker(item)} · {item['taskId'] or item['sessionKey']} · {item['id']}"
    lines = [Text(who, QUIET), *_place(item), Text(""), Text(asked(item), STRONG)]
    if "tool" in item["detail"] and asked(item) != (call := whole_text(str(item["text"]))):
        lines += [Text(""), Text("The whole call:", QUIET), Text(call)]
    if item["detail"].get("choices"):
        lines += [Text(""), Text("Choices:", QUIET)]
        lines += [Text(f"  {whole_text(str(one))}") for one in item["detail"]["choices"]]
    if item["consequences"]:
        lines += [Text(""), *(Text(whole_text(one), QUIET) for one in item["consequences"].values())]
    return lines


def _place(item: Item) -> list[Text]:
    """Return where an approved command runs. It stands above the command, which may be longer than the screen."""
    if item["directory"] is None:
        return []
    sandbox = {True: "in the sandbox", False: "without a sandbox", None: "sandbox not known"}
    return [Text(f"Runs in {whole_text(item['directory'])}, {sandbox[item['isSandboxed']]}")]


def inbox_lines(item: Item, count: int, width: int) -> Text:
    """Return the bar above the list: the first decision and its keys."""
    verb = "answer" if item["kind"] == "question" else "approve"
    keys = f"a {verb}  i inbox" if count == 1 else f"a {verb}  i inbox, {count - 1} more"
    title = f"! {TITLES.get(item['kind'], item['kind'])} · {asker(item)} · {item['taskId'] or item['id']}"
    first, *rest = asked(item).strip().split("\n")
    return Text.assemble(
        (output.fitted(title, max(0, width - cell_len(keys) - 1)), ATTENTION),
        (f" {keys}\n", STRONG),
        output.fitted(f"  {first}{' …' if rest else ''}", width),
    )


# ---- keys ------------------------------------------------------------------------------------------------

KEYS = (
    ("↑↓", "move", "Select a task."),
    ("←→", "fold", "Fold or unfold subagents. In an open task: change the tab."),
    ("⏎", "open", "Open the task: transcript, result, details, why. Esc returns."),
    ("space", "peek", "Show the question or the last text of the task, and reply."),
    ("/", "filter", "Show only tasks with this text in label, id, status or agent."),
    ("s", "new", "Start a task."),
    ("m", "message", "Queue a message to the task, or interrupt what it does."),
    ("p", "pause", "Pause or resume the task and its subagents."),
    ("k", "kill", "Stop the task and its subagents. Lists them and asks first."),
    ("r", "retry", "Run a finished task again, or continue it."),
    ("a", "approve", "Approve or answer the decision at the top. Asks first."),
    ("i", "inbox", "List the decisions: approve, reject with a comment, answer."),
    ("c", "costs", "Show tokens and costs by day, model, agent and session."),
    ("t", "thinking", "Show or hide thinking and the output of tools."),
    ("?", "help", "Show this list."),
    ("q", "quit", "Leave. Tasks continue."),
)
FILTER_KEYS = "Type to filter the list   ⏎ keep the filter   Esc clear it"
ALWAYS = ("?", "q")  #: keys of the footer that a narrow terminal shows too


def footer(width: int) -> Text:
    """Return as many keys as fit. `?` and `q` always do."""
    shown = {key: cell_len(f"{key} {name}  ") for key, name, _ in KEYS if key in ALWAYS}
    for key, name, _ in KEYS:
        if key not in shown and sum(shown.values()) + cell_len(f"{key} {name}  ") > width:
            break
        shown.setdefault(key, cell_len(f"{key} {name}  "))
    parts = [((key, STRONG), (f" {name}  ", QUIET)) for key, name, _ in KEYS if key in shown]
    return Text.assemble(*(part for pair in parts for part in pair))


def help_lines() -> list[Text]:
    wide = max(cell_len(key) for key, _, _ in KEYS) + 2
    return [Text.assemble((set_cell_size(key, wide), STRONG), text) for key, _, text in KEYS]


# ---- a task ----------------------------------------------------------------------------------------------


def details(task: Task) -> list[Text]:
    own, below = task["usage"]["own"], task["usage"]["subtree"]
    facts = (
        ("Task", task["taskId"]),
        ("Status", task["status"]),
        ("Agent", task["agentId"]),
        ("Model", task["model"] or task["modelRequested"]),
        ("Session", task["sessionKey"]),
        ("Parent", task["requesterKey"]),
        ("Created", _moment(task["createdAt"])),
        ("Started", _moment(task["startedAt"])),
        ("Ended", _moment(task["endedAt"])),
        ("Time limit", "none" if task["deadlineAt"] is None else f"until {_moment(task['deadlineAt'])}"),
        ("Attempt", task["attempt"]),
        ("Step", task["step"]),
        ("Model calls", f"{own['calls']}, with subagents {below['calls']}"),
        ("Tokens", output.used(task)),
        ("Cost", output.cost(task)),
        ("Delivery", task["delivery"]["text"]),
        ("Error", task["error"]),
    )
    return [
        Text.assemble((f"{name:<12}", QUIET), text_of(str(value)))
        for name, value in facts
        if value not in (None, "")
    ]


def _moment(moment: str | None) -> str:
    return "" if moment is None else output.clock(moment)


def result_lines(found: Mapping[str, Any]) -> list[Text]:
    files = [f"{visible(str(one['name']), 200)}  {one['bytes']} B" for one in found["files"]]
    lines = [Text(text_of(found["text"] or "There is no final text."))]
    if found["value"] is not None:
        lines += [
            Text(""),
            Text("Value", STRONG),
            Text(text_of(json.dumps(found["value"], ensure_ascii=False, indent=2))),
        ]
    if files:
        lines += [Text(""), Text("Files", STRONG), *map(Text, files)]
    return lines


def cost_lines(usages: Iterable[Mapping[str, Any]]) -> list[Text]:
    titles = {"day": "By day", "model": "By model", "agent": "By agent", "root": "By session"}
    lines: list[Text] = []
    for said in usages:
        rows: Sequence[Mapping[str, Any]] = said["usage"]
        lines.append(Text(show.usage_line(titles[said["by"]], show.HEADINGS, NAME_CELLS), STRONG))
        lines += [
            Text(show.usage_line(visible(one["name"], NAME_CELLS), show.figures(one), NAME_CELLS))
            for one in rows
        ]
        unpriced = sum(one["unpricedCalls"] for one in rows)
        lines.append(Text(show.usage_line("total", show.figures(show.added_up(rows)), NAME_CELLS), QUIET))
        if unpriced:
            lines.append(Text(f"{unpriced} calls have no known price.", QUIET))
        lines.append(Text(""))
    return lines
