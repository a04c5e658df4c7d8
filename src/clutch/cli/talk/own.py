"""Commands of the chat itself, which no agent and no gateway sees as words: the same at a terminal and from a pipe."""

from __future__ import annotations

from collections.abc import Callable

from clutch.errors import ClutchError
from clutch.surfaces.client import Client

COMMANDS = ("attach", "answer", "help", "quit")
HELP = "/attach TASK watches a child; /answer ID words|approve|reject decides; also: /subagents help, /status, /stop …"


def answer(words: str) -> Callable[[Client], None]:
    """`ID words`, `ID approve …` or `ID reject …`, about what waits in the inbox now.

    Harmless to do twice: what the first try saw and the second does not find as it was, was answered by the first."""
    item, _, rest = words.partition(" ")
    verdict, _, reason = rest.strip().partition(" ")
    decision = verdict if verdict in ("approve", "reject") else "answer"
    text = rest.strip() if decision == "answer" else reason
    seen: list[str] = []

    def decide(client: Client) -> None:
        found = [one["hash"] for one in client.get("/v1/inbox")["items"] if one["id"] == item]
        if seen and found != seen:
            return
        if not found:
            raise ClutchError(f"nothing in the inbox is called {item[:40]}")
        seen[:] = found
        client.post(f"/v1/inbox/{item}", {"decision": decision, "text": text, "hash": found[0]})

    return decide
