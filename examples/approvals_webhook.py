"""Approvals over a webhook: a tool that needs approval, and an HTTP server that decides about each call.

    python approvals_webhook.py

    webhook: Ada needs approval: refund {"amount": 30, "customer": "Ada"}: approve
    Ada: ok: Refunded 30 to Ada.
    webhook: Bob needs approval: refund {"amount": 900, "customer": "Bob"}: reject
    Bob: ok: not approved: Refunds over 100 need a contract.

While a call waits, its task holds no slot and its clock stands; the request is on disk and survives a restart. Clutch
repeats a webhook that was not answered, with the same `key`. Here rules decide; a chat bot or a ticket system would
show the request to a person and call `answer` when that person has decided.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from aiohttp import web

from clutch import Answer, Call, Clutch, Question, UnknownQuestion, Webhook
from clutch.testing import ScriptedModel, prompt_of, results_of

REFUND_MAX = 100


class Approver:
    """An HTTP server that receives the event `attention_required` and decides through the API of Clutch."""

    def __init__(self) -> None:
        self.clutch: Clutch | None = None  # in another process: Clutch.connect("approvals-state")

    async def start(self) -> str:
        app = web.Application()
        app.router.add_post("/hook", self.receive)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/hook"

    async def receive(self, request: web.Request) -> web.Response:
        event: dict[str, Any] = await request.json()
        assert self.clutch is not None
        for question in await self.clutch.inbox():
            if question.task_id == event["task"]:
                await self.decide(self.clutch, event["label"], question)
        return web.json_response({})

    async def decide(self, clutch: Clutch, label: str, question: Question) -> None:
        call = question.detail
        is_small = call["args"]["amount"] <= REFUND_MAX
        try:
            if is_small:
                await clutch.answer(question, "approve")
            else:
                await clutch.answer(question, "reject", f"Refunds over {REFUND_MAX} need a contract.")
        except UnknownQuestion:  # the webhook was repeated, and the first one has decided
            return
        print(f"webhook: {label} needs approval: {call['tool']} {json.dumps(call['args'])}:", end=" ")
        print("approve" if is_small else "reject")


async def main() -> None:
    approver = Approver()
    hook = Webhook(await approver.start(), ("attention_required",))
    # A real model: replace models=fake_model by model="anthropic:claude-sonnet-4-5"
    clutch = Clutch("approvals-state", models=fake_model, hooks=[hook])

    @clutch.tool(needs_approval=True)
    def refund(customer: str, amount: int) -> str:
        """Pay money back to a customer."""
        return f"Refunded {amount} to {customer}."

    async with clutch:
        approver.clutch = clutch
        for customer, amount in (("Ada", 30), ("Bob", 900)):
            task = await clutch.spawn(f"Refund {amount} to {customer}", label=customer)
            result = await task
            print(f"{customer}: {result.outcome}: {result.text}")


# ---- a stand-in for a model, so that the example runs without an API key --------------------------------------


def fake_answer(prompt: str, results: list[str]) -> Answer:
    if results:  # of the tool: what it returned, or why it was not approved
        return Answer(results[0])
    asked = re.search(r"Refund (\d+) to (\w+)", prompt)
    assert asked is not None
    return Answer(calls=(Call("refund", {"customer": asked[2], "amount": int(asked[1])}),))


fake_model = ScriptedModel(lambda request: fake_answer(prompt_of(request), results_of(request)))

if __name__ == "__main__":
    asyncio.run(main())
