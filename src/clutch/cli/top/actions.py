"""What the keys of `clutch top` do with a task or a decision: each asks for what it needs, then sends one request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from rich.text import Text
from textual.app import App

from clutch.cli.output import command_for, label
from clutch.cli.tasks import SLACK_S, result_text
from clutch.cli.top import lines
from clutch.cli.top.connection import LiveConnection
from clutch.cli.top.dialogs import Dialog, DialogChoice, Given, InboxScreen, Overlay, decision_dialog, key_of
from clutch.cli.top.lines import QUIET, Item
from clutch.cli.top.transcript import ShownTranscript
from clutch.cli.top.tree import Task, TaskTree
from clutch.cli.top.widgets import TaskListView
from clutch.errors import ClutchError
from clutch.surfaces.http_client import GatewayClient, item_path, task_path

COSTS_BY = ("day", "model", "agent", "root")
DECIDED = {"answer": "answered", "approve": "approved", "reject": "rejected"}


class DashboardActions(App[None]):
    """The part of the dashboard that acts. `Dashboard` draws, and says what is selected."""

    connection: LiveConnection
    known: TaskTree
    task_list: TaskListView
    items: Sequence[Item]
    transcript: ShownTranscript | None
    moved_at: float  #: when the cursor was moved last
    receipt: tuple[str, str] | None = None  #: task and key of the message sent last

    @property
    def selected(self) -> Task | None:
        raise NotImplementedError

    @property
    def item(self) -> Item | None:
        raise NotImplementedError

    def now(self) -> float:
        raise NotImplementedError

    def draw(self) -> None:
        raise NotImplementedError

    def say(self, text: str) -> None:
        raise NotImplementedError

    def push(self, overlay: Overlay, then: Callable[[Given | None], None] | None = None) -> None:
        _ = self.push_screen(overlay, then)

    # ---- asking the gateway ------------------------------------------------------------------------------

    def ask(self, question: Callable[[GatewayClient], Any], then: Callable[[Any], None]) -> None:
        """Ask without blocking the screen; `then` gets the answer or the error."""

        def come_back(answer: Any) -> None:
            # An answer may come when the user has left.
            with suppress(RuntimeError):
                self.call_from_thread(self.call_later, then, answer)

        self.connection.ask(question, come_back)

    def act(self, path: str, body: dict[str, Any], then: Callable[[Any], None] | None = None) -> None:
        """Send an action once and show its result, or what is wrong."""
        key = uuid4().hex

        def show(answer: Any) -> None:
            if isinstance(answer, ClutchError):
                self.say(str(answer))
            elif then is not None:
                then(answer)
            else:
                self.say(result_text(answer))

        self.ask(lambda client: client.post(path, body, key=key, patience_s=SLACK_S), show)

    def act_on(self, verb: str, task: Task, body: dict[str, Any] | None = None) -> None:
        self.act(task_path(task["taskId"], verb), body or {})

    # ---- acting on tasks ---------------------------------------------------------------------------------

    def action_spawn(self) -> None:
        def show(task: Any) -> None:
            if isinstance(task, ClutchError):
                return self.say(str(task))
            self.known.keep(task)
            self.task_list.selected, self.moved_at = task["taskId"], time.monotonic()
            self.say(f"Started {task['taskId']}.")
            self.draw()

        def started(said: Any) -> None:
            self.ask(lambda client: client.get(task_path(said["taskId"])), show)

        def start(given: Given | None) -> None:
            if given is not None:
                agent = {} if given.way == "main" else {"agentId": given.way}
                self.act("/v1/tasks", {"task": given.text, **agent}, started)

        def choose(said: Any) -> None:
            found = [] if isinstance(said, ClutchError) else [one["agentId"] for one in said["agents"]]
            agents = ["main", *(one for one in found if one != "main")]
            ways = [
                DialogChoice(one, f"start with agent {one}" if len(agents) > 1 else "start") for one in agents
            ]
            body = [Text("The subagent sees nothing else than this text.", QUIET)]
            self.push(Dialog("New task", body, ways, "What to do, in full"), start)

        self.ask(lambda client: client.get("/v1/agents"), choose)

    def _reply(self, title: str, task: Task, body: Sequence[Text]) -> None:
        """Ask for a message to a task that works, or for what a finished one is to do next."""
        if task["outcome"] is None:
            ways = [
                DialogChoice("send", "queue"),
                DialogChoice("steer", "interrupt: replaces what it does now"),
            ]
        else:
            ways = [DialogChoice("continue", "continue", needs_text=False)]

        def send(given: Given | None) -> None:
            if given is not None:
                self._send(task, given)

        self.push(Dialog(title, body, ways, "Message"), send)

    def _send(self, task: Task, given: Given) -> None:
        key, path = uuid4().hex, task_path(task["taskId"], given.way)
        body = {"text": given.text, **({"waitSeconds": 0} if given.way == "send" else {})}

        def sent(answer: Any) -> None:
            if isinstance(answer, ClutchError):
                return self.say(str(answer))
            is_message = given.way in ("send", "steer")
            if is_message:
                self.receipt = (task["taskId"], key)
            self.say(f"{task['taskId']}: {'sent' if is_message else result_text(answer)}")

        self.ask(lambda client: client.post(path, body, key=key, patience_s=SLACK_S), sent)

    def read_receipt(self) -> None:
        """Show what became of the message sent last: seen at a step, acted on."""
        if self.receipt is None:
            return
        task_id, key = self.receipt

        def show(said: Any) -> None:
            if isinstance(said, ClutchError) or self.receipt != (task_id, key):
                return
            self.say(f"{task_id}: {said['text']}")
            if said["status"] in ("acted on", "not acted on"):
                self.receipt = None

        self.ask(lambda client: client.get(task_path(task_id, "messages", key)), show)

    def action_message(self) -> None:
        if (task := self.selected) is not None:
            state = lines.state_text(task, self.now(), self.task_list.stalled_s)
            self._reply(f"Message to {lines.name_of(task)} ({task['taskId']})", task, [Text(state, QUIET)])

    def action_peek(self) -> None:
        task = self.selected
        if task is None:
            return
        own = next((one for one in self.items if one["taskId"] == task["taskId"]), None)
        if own is not None and own["kind"] == "question":
            return self.decide(own, "answer")
        title = f"{lines.name_of(task)} ({task['taskId']})"
        state = Text(lines.state_text(task, self.now(), self.task_list.stalled_s), lines.status_style(task))
        if own is not None:
            return self._reply(
                title, task, [*lines.whole_item(own), Text(""), Text("Esc, then a: approve it", QUIET)]
            )
        if task["outcome"] is None:
            shown = self.transcript
            last = shown.last_text() if shown is not None and shown.task_id == task["taskId"] else ""
            return self._reply(title, task, [state, Text(""), Text(lines.text_of(last))] if last else [state])

        def show(found: Any) -> None:
            text = (
                str(found) if isinstance(found, ClutchError) else found["text"] or "There is no final text."
            )
            self._reply(title, task, [state, Text(""), Text(lines.text_of(text))])

        self.ask(lambda client: client.get(task_path(task["taskId"], "result")), show)

    def action_pause(self) -> None:
        if (task := self.selected) is not None:
            self.act_on("resume" if task["status"] == "paused" else "pause", task)

    def action_kill(self) -> None:
        """List what will stop, and ask."""
        task = self.selected
        if task is None:
            return
        path = task_path(task["taskId"], "kill")

        def confirmed(given: Given | None) -> None:
            if given is not None:
                self.act(path, {"reason": "killed in clutch top"})

        def propose(said: Any) -> None:
            if isinstance(said, ClutchError):
                return self.say(str(said))
            if not said["stopped"]:
                return self.say(f"{task['taskId']} has finished: there is nothing to stop.")
            body = [Text("These tasks stop for good. Their results are not delivered."), Text("")]
            body += [Text(self._short(one)) for one in said["stopped"]]
            count = len(said["stopped"])
            title = f"Kill {lines.name_of(task)}?" if count == 1 else f"Kill {count} tasks?"
            self.push(Dialog(title, body, [DialogChoice("kill", "kill")]), confirmed)

        self.ask(lambda client: client.post(path, {"dryRun": True}), propose)

    def _short(self, task_id: str) -> str:
        task = self.known.tasks.get(task_id)
        return task_id if task is None else f"{task_id}  {label(task, 60)}  {task['status']}"

    def action_retry(self) -> None:
        task = self.selected
        if task is None:
            return
        if task["outcome"] is None:
            return self.say(f"{task['taskId']} is {task['status']}: only a finished task can be retried.")
        ways = [
            DialogChoice("retry", "retry from the beginning", needs_text=False),
            DialogChoice("continue", "continue", needs_text=False),
        ]

        def again(given: Given | None) -> None:
            if given is not None:
                self.act_on(given.way, task, {"text": given.text})

        body = [Text("A text is added to the task; it may stay empty.", QUIET)]
        title = f"Run {lines.name_of(task)} ({task['taskId']}) again"
        self.push(Dialog(title, body, ways, "Text, optional"), again)

    # ---- decisions, costs, help --------------------------------------------------------------------------

    def action_approve(self) -> None:
        if (item := self.item) is None:
            return self.say("Nothing to decide.")
        self.decide(item, "answer" if item["kind"] == "question" else "approve")

    def decide(self, item: Item, decision: str) -> None:
        """Show the item, ask, and send the decision about exactly what was shown."""

        def decided(given: Given | None) -> None:
            if given is not None:
                body = {"decision": given.way, "text": given.text, "hash": item["hash"]}
                self.act(item_path(item["id"]), body, lambda _: self._decided(item, DECIDED[given.way]))

        self.push(decision_dialog(item, decision), decided)

    def _decided(self, item: Item, said: str) -> None:
        self.items = [one for one in self.items if key_of(one) != key_of(item)]
        for screen in self.screen_stack:
            if isinstance(screen, InboxScreen):
                screen.said(item, said)
        self.say(f"{said.capitalize()}: {lines.asker(item)}.")
        self.draw()

    def action_inbox(self) -> None:
        self.push(InboxScreen(self.items, self.item, self.decide))

    def action_costs(self) -> None:
        def show(said: Any) -> None:
            if isinstance(said, ClutchError):
                return self.say(str(said))
            self.push(Dialog("Costs", lines.cost_lines(said)))

        self.ask(lambda client: [client.get("/v1/usage", by=by) for by in COSTS_BY], show)

    def action_help(self) -> None:
        close = command_for(self.connection.state, "ps")
        body = [*lines.help_lines(), Text(""), Text(f"`{close}` prints the list once.", QUIET)]
        self.push(Dialog("Keys", body))
