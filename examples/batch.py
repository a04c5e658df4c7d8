"""Classify 1,000 support tickets in the background, within a budget. Interrupted, it resumes and repeats nothing.

    python batch.py                # 16 at a time
    python batch.py                # again: all results are read from disk, no model call is made
    python batch.py --tokens 20000 # with a budget that is too small (in another folder): stops when it is used up

    100 of 1000 tickets
    ...
    1000 of 1000 tickets
    done: 1000 ok, 0 failed
    billing 333 · bug 334 · other 333
    calls of the fake model: 1000

Press Ctrl-C, or `kill -9` it, and start it again: finished tickets are read, running ones resume, only missing ones are
started. The name of the map and the key of the item make an idempotency key for each task.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from typing import NamedTuple

from clutch import Answer, Budgets, Clutch, OnBudget, Policy, SpawnRefused, TaskResult, Usage
from clutch.testing import ScriptedModel, prompt_of

ASPECTS = ("The invoice is wrong", "The page crashes", "How do I change my name?")


class Ticket(NamedTuple):
    number: int
    text: str


TICKETS = [Ticket(number, f"{ASPECTS[number % 3]} (customer {number})") for number in range(1, 1001)]


def budget(tokens: int) -> Policy:
    """Limit the whole batch. At the limit no further model call is made, and no further ticket is started.

    A call reserves `output_tokens` before it is sent, so that calls in parallel cannot spend the same tokens."""
    return Policy(budgets=Budgets(root_tokens=tokens, output_tokens=200, on_budget=OnBudget.END))


def fake_answer(prompt: str) -> Answer:
    """Stand in for a model, so that the example runs without an API key."""
    kind = "billing" if "invoice" in prompt else "bug" if "crash" in prompt else "other"
    return Answer(kind, usage=Usage(input=len(prompt) // 4, output=1), model="fake")


fake_model = ScriptedModel(lambda request: fake_answer(prompt_of(request)))


class Progress:
    def __init__(self) -> None:
        self.ended = 0

    def show(self, ticket: Ticket, result: TaskResult) -> None:
        self.ended += 1
        if self.ended % 100 == 0 or not result.is_ok:
            failed = "" if result.is_ok else f", ticket {ticket.number} failed: {result.error}"
            print(f"{self.ended} of {len(TICKETS)} tickets{failed}", flush=True)


async def main(tokens: int) -> None:
    # A real model: replace models=fake_model by model="anthropic:claude-haiku-4-5"
    async with Clutch("batch-state", models=fake_model, concurrency=16, policy=budget(tokens)) as clutch:
        results = await clutch.map(
            TICKETS,
            lambda ticket: f"Answer with one word, billing, bug or other. The ticket: {ticket.text}",
            name="classify-tickets",
            key=lambda ticket: str(ticket.number),
            concurrency=16,
            on_result=Progress().show,
        )
    kinds = Counter(result.text for result in results if result.is_ok)
    print(f"done: {sum(kinds.values())} ok, {len(results) - sum(kinds.values())} failed")
    print(" · ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    print(f"calls of the fake model: {len(fake_model.requests)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Classify support tickets.")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="budget of the whole batch")
    try:
        asyncio.run(main(parser.parse_args().tokens))
    except SpawnRefused as error:  # the budget is used up: tickets that were not started stay undone
        sys.exit(f"stopped: {error}")
