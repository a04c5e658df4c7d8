"""How tasks look on a terminal of 80 columns: words, columns and trees, drawn from the objects surfaces give.

Labels, results and tool arguments come from models and strangers: nothing of them reaches the terminal that
could move its cursor, change its colours or turn the reading direction.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from clutch.core.wording.shown import duration, is_plain, money, tokens, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.tree import Tree

Task = Mapping[str, Any]

WIDTH, WIDTH_MIN = 80, 60
LABEL_CHARS_MAX = 200
RESULT_CHARS_MAX = 400
STALLED_S = 300.0
ENDS = {"ok": "done", "error": "failed"}
STYLES = {"running": "bold cyan", "queued": "dim", "done": "green"}
_OUTSIDE_LINES = re.compile(r"[^\n\t]+")


def plain(text: str) -> str:
    """Lines and tabs stay; whatever else would act on the terminal is shown as an escape."""
    return _OUTSIDE_LINES.sub(lambda piece: _seen(piece[0]), text)


def _seen(text: str) -> str:
    if is_plain(text):
        return text
    return "".join(one if is_plain(one) else one.encode("unicode_escape").decode() for one in text)


def console() -> Console:
    """Data, on stdout. Colours only on a terminal, and not with NO_COLOR; elsewhere 80 columns."""
    from rich.console import Console

    width = max(WIDTH_MIN, shutil.get_terminal_size((WIDTH, 24)).columns) if sys.stdout.isatty() else WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


# ---- words -----------------------------------------------------------------------------------------------


def at(moment: str | None) -> float | None:
    return None if moment is None else datetime.fromisoformat(moment).timestamp()


def state(task: Task, now: float) -> str:
    """`running`, `paused (quota)`, `waiting (2 children)`, `plan?`, `done`, `failed` …, `+ undelivered`."""
    words = _ended(task) if task["outcome"] is not None else _under_way(task, now)
    return f"{words}, undelivered" if task["delivery"]["state"] == "undelivered" else words


def _ended(task: Task) -> str:
    outcome = str(task["outcome"])
    return ENDS.get(outcome, outcome)


def _under_way(task: Task, now: float) -> str:
    phase, reason = task["phase"], task["reason"]
    if phase == "awaiting_approval":
        return "plan?"
    if reason in ("children", "descendants-active"):
        count = task["children"]["active"]
        return f"waiting ({count} {'child' if count == 1 else 'children'})"
    if phase == "paused":
        return "needs you" if reason == "needs-you" else f"paused ({visible(reason, 40)})"
    moved = at(task["lastProgressAt"])
    is_stalled = phase == "running" and moved is not None and now - moved > STALLED_S
    return "running (stalled)" if is_stalled else str(phase)


def label(task: Task, chars_max: int = LABEL_CHARS_MAX) -> str:
    return visible(task["label"], chars_max)


def age(task: Task, now: float) -> str:
    """How long it has been there, or was."""
    end = at(task["endedAt"])
    return duration(max(0.0, (now if end is None else end) - (at(task["createdAt"]) or now)))


def used(task: Task) -> str:
    """With everything below it."""
    below = task["usage"]["subtree"]
    return tokens(below["input"] + below["output"])


def cost(task: Task) -> str:
    usd = task["usage"]["subtree"]["usd"]
    return "n/a" if usd is None else money(Decimal(usd))


def doing(task: Task, now: float) -> str:
    """What it does right now and since when; of an ended one, how far it was told."""
    tool = task["currentTool"]
    if tool is not None:
        since = at(tool["since"]) or now
        return f"{visible(tool['name'], 40)}({visible(tool['arg'], 60)}) {duration(now - since)}"
    if task["outcome"] is None:
        return ""
    told = task["delivery"]
    if told["state"] in ("delivered", "none"):
        return str(told["path"] or told["state"])
    return f"{told['state']} ({visible(told['reason'], 60)})" if told["reason"] else str(told["state"])


def style(task: Task) -> str:
    if task["outcome"] not in (None, "ok") or task["delivery"]["state"] == "undelivered":
        return "red"
    if task["phase"] == "awaiting_approval" or task["reason"] == "needs-you":
        return "yellow"
    return STYLES.get("done" if task["outcome"] else task["phase"], "")


def summary(counted: Mapping[str, Any]) -> str:
    """`3 running · 1 waiting · 12 done · $0.42`; what is not there is not mentioned."""
    names = {"needsYou": "need you"}
    parts = [
        f"{counted[name]} {names.get(name, name)}"
        for name in ("running", "queued", "waiting", "needsYou", "done", "undelivered")
        if counted[name]
    ]
    if counted["usd"] is not None:
        parts.append(money(Decimal(counted["usd"])))
    return " · ".join(parts) or "nothing here"


# ---- drawings --------------------------------------------------------------------------------------------


def table(tasks: Sequence[Task], now: float) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=False)
    for name, options in (
        ("#", {"no_wrap": True, "justify": "right"}),
        ("TASK", {"no_wrap": True}),
        ("STATE", {"no_wrap": True, "max_width": 22}),
        ("LABEL", {"no_wrap": True, "ratio": None, "max_width": 28}),
        ("AGE", {"no_wrap": True, "justify": "right"}),
        ("TOKENS", {"no_wrap": True, "justify": "right"}),
        ("COST", {"no_wrap": True, "justify": "right"}),
        ("NOW", {"no_wrap": True}),
    ):
        drawn.add_column(Text(name, style="bold"), overflow="ellipsis", **options)
    for number, task in enumerate(tasks, start=1):
        cells = (str(number), task["taskId"], state(task, now), "  " * (task["depth"] - 1) + label(task))
        rest = (age(task, now), used(task), cost(task), doing(task, now))
        drawn.add_row(*(Text(cell) for cell in (*cells, *rest)), style=style(task))
    return drawn


def forest(tops: Iterable[Task], now: float) -> RenderableType:
    """Objects with `nodes`, below the sessions they work for."""
    from rich.console import Group
    from rich.text import Text
    from rich.tree import Tree

    roots: dict[str, Tree] = {}
    for top in tops:
        key = top["requesterKey"] if top["parentTaskId"] is not None else top["rootKey"]
        root = roots.setdefault(str(key), Tree(Text(visible(str(key), LABEL_CHARS_MAX), style="bold")))
        _grow(root, top, now)
    return Group(*roots.values())


def _grow(above: Tree, task: Task, now: float) -> None:
    from rich.text import Text

    branch = above.add(Text(one_line(task, now), style=style(task), no_wrap=True, overflow="ellipsis"))
    for node in task["nodes"]:
        _grow(branch, node, now)


def one_line(task: Task, now: float) -> str:
    """`running · AI research · 2m30s · 15.2k tok · web_fetch(example.com) 4s · t_7f3a`"""
    parts = (
        state(task, now),
        label(task, 40),
        age(task, now),
        f"{used(task)} tok",
        "" if cost(task) == "n/a" else cost(task),
        doing(task, now),
        task["taskId"],
    )
    return " · ".join(part for part in parts if part)


def clock(moment: str) -> str:
    """In this place's time."""
    return datetime.fromisoformat(moment).astimezone().strftime("%H:%M:%S")


def now() -> float:
    return datetime.now(UTC).timestamp()


def moment_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def log_line(line: Mapping[str, Any]) -> str:
    """One entry of a transcript: when, who, what."""
    body, when = line["body"], clock(line["at"])
    match line["kind"]:
        case "input":
            return f"{when}  > {body['source']}: {body['text']}"
        case "answer":
            calls = [
                f"{call['name']} {json.dumps(call['args'], ensure_ascii=False)}" for call in body["calls"]
            ]
            return "\n".join(
                f"{when}  {words}" for words in (body["text"], *(f"* {call}" for call in calls)) if words
            )
        case "results":
            return "\n".join(f"{when}    {_gave(one)}" for one in body["results"])
        case kind:
            return f"{when}  {kind}: {json.dumps(body, ensure_ascii=False)}"


def _gave(result: Mapping[str, Any]) -> str:
    mark = "!" if result.get("failed") else "="
    return f"{mark} {result['name']}: {visible(result['text'], RESULT_CHARS_MAX)}"


def step_line(step: Mapping[str, Any]) -> str:
    """One step of a journal: its number, when, what kind, what."""
    where = "" if step["seq"] is None else f" #{step['seq']}"
    return f"{step['n']:>4}  {clock(step['at'])}  {step['kind']}{where}: {visible(step['text'], RESULT_CHARS_MAX)}"
