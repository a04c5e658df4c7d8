"""Commands of the chat itself, which no agent and no gateway sees as words: the same at a terminal and from a pipe."""

from __future__ import annotations

from clutch.errors import ClutchError
from clutch.surfaces.client import Client

COMMANDS = ("attach", "answer", "help", "quit")
HELP = "/attach TASK watches a child; /answer ID words|approve|reject decides; also: /subagents help, /status, /stop …"


def answer(client: Client, words: str) -> None:
    """`ID words`, `ID approve …` or `ID reject …`, about what waits in the inbox now."""
    item, _, rest = words.partition(" ")
    found = next((one for one in client.get("/v1/inbox")["items"] if one["id"] == item), None)
    if found is None:
        raise ClutchError(f"nothing in the inbox is called {item[:40]}")
    verdict, _, reason = rest.strip().partition(" ")
    decision = verdict if verdict in ("approve", "reject") else "answer"
    text = rest.strip() if decision == "answer" else reason
    client.post(f"/v1/inbox/{item}", {"decision": decision, "text": text, "hash": found["hash"]})
