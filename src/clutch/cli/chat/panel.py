"""The panel under the prompt of a chat: active subagents, the decision that is asked for, and the keys for both.

A key decides only while no text is typed, and only about what is on the screen: a decision carries the id and the hash
of the item as it was shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from clutch.cli import output
from clutch.cli.output import coloured, columns, fitted, shortened
from clutch.core.model import NEEDS_USER
from clutch.core.status import call_text
from clutch.core.text.format import counted, main_argument, visible
from clutch.errors import ClutchError, NoGateway
from clutch.surfaces.http_client import GatewayClient, item_path, task_path

Task = Mapping[str, Any]
Item = Mapping[str, Any]
Call = Callable[[GatewayClient], str]

ROWS_MAX = 5  #: subagents shown at once
LABEL_CELLS = 28
#: A key that comes sooner after an item appeared, or after a typed key, was meant for the text.
ARMED_AFTER_S = 1.0
DECIDED = {"approve": "approved", "reject": "rejected", "answer": "answered"}
BOLD, DIM, YELLOW, CYAN = "1", "2", "33", "1;36"  #: SGR codes


class Confirm(NamedTuple):
    """A question that one key answers: `y` calls `then`, every other key does nothing."""

    question: str
    keys: str
    then: Callable[[], None]


class Host(Protocol):
    """What the panel needs of its chat."""

    def open_task(self, task_id: str) -> None: ...

    def send(self, call: Call) -> None:
        """Ask the gateway in the background and print the text that the call returns."""

    def show_item(self, item: Item) -> None:
        """Print the whole item."""

    def type_text(self, prompt: str, then: Callable[[str], None]) -> None:
        """Let the user type one text for something else than the agent."""

    def say(self, text: str, style: str = "") -> None: ...


class Panel:
    def __init__(self, host: Host, session: str) -> None:
        self._host, self._session = host, session
        self.summary = ""
        self.confirm: Confirm | None = None
        self.edited_at = 0.0  #: when the user typed last
        self._tasks: Sequence[tuple[int, Task]] = ()
        self._items: list[Item] = []
        self._offered_at = 0.0
        self._offer: Item | None = None
        self._shown: set[tuple[str, str]] = set()
        self._later: set[tuple[str, str]] = set()  #: the user wants to decide these later
        self._sent: set[tuple[str, str]] = set()  #: decided, and the inbox may still have them
        self._selected: str | None = None
        self._place = 0  #: of the selected task in the list

    @property
    def active(self) -> Sequence[Task]:
        return [task for _, task in self._tasks]

    def show_tasks(self, tasks: Sequence[dict[str, Any]], summary: str) -> None:
        self._tasks = output.placed([task for task in tasks if task["outcome"] is None])
        self.summary = summary if tasks else ""
        ids = [task["taskId"] for _, task in self._tasks]
        if self._selected is not None and self._selected not in ids:
            # It has ended. The next one stands in its place.
            self._selected = ids[min(self._place, len(ids) - 1)] if ids else None
        self._place = ids.index(self._selected) if self._selected in ids else 0

    def show_items(self, items: Sequence[Item], tasks: Sequence[Task]) -> None:
        """Take the inbox. Items of other sessions are not offered here."""
        own = {task["taskId"] for task in tasks}
        self._items = [one for one in items if one["sessionKey"] == self._session or one["taskId"] in own]
        self._offer_next()

    def offers(self, item_id: str) -> bool:
        """Whether the item is one of this chat, which shows it whole."""
        return any(item["id"] == item_id for item in self._items)

    def _offer_next(self) -> None:
        keys = {_key(item) for item in self._items}
        self._later &= keys
        for key in [*self._sent]:  # another thread takes back what was refused
            if key not in keys:
                self._sent.discard(key)
        hidden = self._later | self._sent
        if self._offer is not None and _key(self._offer) in keys - hidden:
            return
        waiting = [item for item in self._items if _key(item) not in hidden]
        self._offer = waiting[0] if waiting else None
        if self._offer is not None:
            self._offered_at = output.now()
            if _key(self._offer) not in self._shown:
                self._shown.add(_key(self._offer))
                self._host.show_item(self._offer)

    # ---- keys ----------------------------------------------------------------------------------------

    def take(self, key: str) -> bool:
        """Return whether the key was for the panel, and not the beginning of a text."""
        if self.confirm is not None:
            return self._confirmed(key)
        if self._selected is not None:
            self._browse(key)
            return True
        if self._offer is not None and self._is_armed() and self._decide(self._offer, key):
            return True
        if key == "escape" and self._offer is None and self._later:
            self._offer_again()
            return True
        if key == "down" and self._tasks:
            self._selected = self._tasks[0][1]["taskId"]
            return True
        return False

    def _offer_again(self) -> None:
        """Offer what the user left for later, whole: it may have scrolled away."""
        self._shown -= self._later
        self._later.clear()
        self._offer_next()

    def _confirmed(self, key: str) -> bool:
        asked, self.confirm = self.confirm, None
        if key == "y" and asked is not None:
            asked.then()
            return True
        self._host.say("Nothing was done.", DIM)
        return key in ("n", "escape", "enter", "up", "down")

    def _browse(self, key: str) -> None:
        ids = [task["taskId"] for _, task in self._tasks]
        place = ids.index(str(self._selected)) if self._selected in ids else 0
        task = self._tasks[place][1]
        match key:
            case "down":
                self._selected = ids[min(place + 1, len(ids) - 1)]
            case "up":
                self._selected = ids[place - 1] if place else None
            case "escape":
                self._selected = None
            case "enter":
                self._selected = None
                self._host.open_task(task["taskId"])
            case "x":
                self._ask_to_stop(task)
            case "a":
                self._ask_for(task)
            case _:
                pass
        self._place = ids.index(self._selected) if self._selected in ids else place

    def _ask_to_stop(self, task: Task) -> None:
        below = [one for one in self.active if self._is_below(one, task["taskId"])]
        also = f" and {counted(len(below), 'subagent')} below it" if below else ""
        if below:
            names = "".join(f"\n  {_named(one)}" for one in (task, *below))
            self._host.say(f"These stop for good:{names}", YELLOW)
        target = task["taskId"]

        def stop(client: GatewayClient) -> str:
            from clutch.cli.tasks import result_text

            return result_text(client.post(task_path(target, "kill"), {"reason": "stopped in the chat"}))

        question = f"Stop {_named(task)}{also} for good?"
        self.confirm = Confirm(question, "y stops · any other key: no", lambda: self._host.send(stop))

    def _is_below(self, task: Task, above: str) -> bool:
        parents = {one["taskId"]: one["parentTaskId"] for one in self.active}
        seen = set[str]()
        place = task["parentTaskId"]
        while place is not None and place not in seen:
            if place == above:
                return True
            seen.add(place)
            place = parents.get(place)
        return False

    def _ask_for(self, task: Task) -> None:
        """Offer the item of a task again; what is decided is printed once more, because it may have scrolled away."""
        item = next((one for one in self._items if one["taskId"] == task["taskId"]), None)
        if item is None:
            return self._host.say(f"{_named(task)} asks for nothing: it is {task['status']}.", DIM)
        self._selected, self._offer = None, item
        self._later.discard(_key(item))
        self._host.show_item(item)
        if item["kind"] != "question":
            self._approve(item, f"Approve this for {_named(task)}?")
        else:
            self._decide(item, "a")

    # ---- decisions -----------------------------------------------------------------------------------

    def _is_armed(self) -> bool:
        return output.now() - max(self.edited_at, self._offered_at) >= ARMED_AFTER_S

    def _decide(self, item: Item, key: str) -> bool:
        choices = list(item["detail"].get("choices", ()))
        match key:
            case "a" if item["kind"] == "question":
                self._host.type_text("answer> ", lambda text: self._send(item, "answer", text))
            case "a" if is_command(item):
                self._approve(item, "Run exactly this command?")
            case "a":
                self._send(item, "approve", "")
            case "r":
                self._host.type_text("reason> ", lambda text: self._send(item, "reject", text))
            case "escape":
                self._later.add(_key(item))
                self._offer = None
                self._offer_next()
            case _ if key.isdigit() and 0 < int(key) <= len(choices):
                self._send(item, "answer", choices[int(key) - 1])
            case _:
                return False
        return True

    def _approve(self, item: Item, question: str) -> None:
        keys = "y approves · any other key: not yet"
        self.confirm = Confirm(question, keys, lambda: self._send(item, "approve", ""))

    def _send(self, item: Item, decision: str, text: str) -> None:
        self._offer = None
        self._later.discard(_key(item))
        self._sent.add(_key(item))

        def decide(client: GatewayClient) -> str:
            body = {"decision": decision, "text": text, "hash": item["hash"]}
            try:
                status = client.post(item_path(item["id"]), body)["status"]
            except NoGateway:
                raise  # it is sent again
            except ClutchError:
                self._sent.discard(_key(item))  # the next inbox offers it again
                raise
            return f"{item['id']}: {DECIDED[decision] if status == 'answered' else status}"

        self._host.send(decide)
        self._offer_next()

    # ---- rows ----------------------------------------------------------------------------------------

    def rows(self, width: int, *, is_empty: bool) -> list[str]:
        if self.confirm is not None:
            return [coloured(_cut(self.confirm.question, width), YELLOW), _hint(self.confirm.keys, width)]
        rows = [*self._offer_rows(width, is_empty=is_empty), *self._task_rows(width)]
        if self._selected is not None:
            rows.append(_hint("Enter opens and messages · x stops · a approves · Esc returns", width))
        elif self.summary:
            rows.append(_hint(f"{self.summary} · ↓ subagents" if self._tasks else self.summary, width))
        return rows

    def _offer_rows(self, width: int, *, is_empty: bool) -> list[str]:
        item = self._offer
        if item is None:
            later = [one for one in self._items if _key(one) in self._later]
            held = "".join(
                f" · the answer waits for the plan of “{_who(one)}”" for one in later if _is_plan(one)
            )
            left = f"{counted(len(later), 'decision')} left for later · Esc shows them again{held}"
            return [_hint(left, width)] if later else []
        asks = f"{item['status'].capitalize()}: {_who(item)}: {_asked(item)}"
        first = coloured(_cut(asks, width), YELLOW)
        if not is_empty:
            return [first, _hint("clear the line to decide with a key", width)]
        if not self._is_armed():
            return [first, _hint("…", width)]
        choices = "".join(
            f"{n} {visible(one, 20)} · " for n, one in enumerate(item["detail"].get("choices", ())[:9], 1)
        )
        verb = "a answers" if item["kind"] == "question" else "a approves"
        held = " · the answer waits for this plan" if _is_plan(item) else ""
        return [first, _hint(f"{choices}{verb} · r rejects · Esc later{held}", width)]

    def _task_rows(self, width: int) -> list[str]:
        ids = [task["taskId"] for _, task in self._tasks]
        place = ids.index(self._selected) if self._selected in ids else 0
        first = max(0, min(place - ROWS_MAX // 2, len(ids) - ROWS_MAX))
        shown = self._tasks[first : first + ROWS_MAX]
        named = ["  " * level + visible(task["label"], 200) for level, task in shown]
        cells = (
            max((columns(task["status"]) for _, task in shown), default=0),
            min(LABEL_CELLS, max(8, width // 3), max(map(columns, named), default=0)),
        )
        rows = [self._row(task, label, cells, width) for (_, task), label in zip(shown, named, strict=True)]
        more = len(ids) - len(shown)
        return [*rows, _hint(f"  + {more} more", width)] if more > 0 else rows

    def _row(self, task: Task, label: str, cells: tuple[int, int], width: int) -> str:
        """`  running  Auth endpoints  search "TODO" · 3 s  2m30s  t_12`"""
        is_selected = task["taskId"] == self._selected
        mark = "▸ " if is_selected else "  "
        after = f"  {output.elapsed(task, output.now()):>6}  {task['taskId']}"
        before = f"{mark}{fitted(task['status'], cells[0])}  {shortened(label, cells[1])}  "
        room = width - columns(before + after)
        doing = fitted(output.doing(task, output.now()), room) if room > 0 else ""
        style = CYAN if is_selected else YELLOW if task["status"] in NEEDS_USER else DIM
        return coloured(_cut(before + doing + after, width), style)


def is_command(item: Item) -> bool:
    """Whether approving the item runs a shell command, which is confirmed once more."""
    detail = item["detail"]
    args = detail.get("args")
    return detail.get("tool") == "shell" or (isinstance(args, dict) and "command" in args)


def _asked(item: Item) -> str:
    """Return what the item asks, in one line."""
    detail = item["detail"]
    if "tool" not in detail:
        return visible(" ".join(item["text"].split()), 300)
    args = detail.get("args")
    return call_text(str(detail["tool"]), main_argument(args if isinstance(args, dict) else {}))


def _is_plan(item: Item) -> bool:
    """A plan that is not decided keeps the results of all subagents from the agent, and so its answer from the user."""
    return bool(item["kind"] == "plan")


def _key(item: Item) -> tuple[str, str]:
    return item["id"], item["hash"]


def _who(item: Item) -> str:
    return visible(item["label"] or item["sessionKey"] or "", 60)


def _named(task: Task) -> str:
    return f"“{visible(task['label'], 60)}” ({task['taskId']})"


def _cut(text: str, width: int) -> str:
    return fitted(text, width).rstrip() if columns(text) > width else text


def _hint(text: str, width: int) -> str:
    return coloured(_cut(text, width), DIM)
