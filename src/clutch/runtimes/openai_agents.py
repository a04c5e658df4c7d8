"""An agent of the OpenAI Agents SDK as a child.

    c.runtime("triage")(from_agent(Agent(name="triage", tools=[…], handoffs=[…])))

Its text and tool calls are reported as they come. A tool with `needs_approval` asks the user here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from clutch.core.messages import Answer, Call, Usage
from clutch.ports import RuntimeJob
from clutch.runtimes.function import Function, call, earlier, gave, in_words, only

if TYPE_CHECKING:
    from agents import Agent, RunResultStreaming

THINKING = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")


def from_agent(agent: Agent[Any], **options: Any) -> Function:
    """`options` go to every `Runner.run_streamed`: context, max_turns, run_config, …"""

    async def run(job: RuntimeJob) -> Answer:
        from agents import Runner

        said = [{"role": "assistant" if mine else "user", "content": text} for mine, text in earlier(job)]
        told: Any = [*said, {"role": "user", "content": job.text}]
        while True:
            result = Runner.run_streamed(agent, told, **options)
            await _follow(job, result)
            if not result.interruptions:
                break
            told = await _decided(job, result)
        models = {_model(response) for response in result.raw_responses} | {_named(agent)}
        return Answer(in_words(result.final_output), usage=_usage(result), model=only(models - {""}))

    return run


async def _follow(job: RuntimeJob, result: RunResultStreaming) -> None:
    calls: dict[str, Call] = {}
    try:
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                _heard(job, event.data)
            elif event.type == "run_item_stream_event":
                _worked(job, event.item, calls)
    except asyncio.CancelledError:
        result.cancel()
        raise


def _heard(job: RuntimeJob, data: Any) -> None:
    if data.type == "response.output_text.delta":
        job.say(data.delta)
    elif data.type in THINKING:
        job.think(data.delta)


def _worked(job: RuntimeJob, item: Any, calls: dict[str, Call]) -> None:
    number = str(getattr(item, "call_id", None) or "")
    if item.type == "tool_call_item":
        calls[number] = _call(item, number)
        job.begin(calls[number])
    elif item.type == "tool_call_output_item":
        job.end(calls.pop(number, Call("tool", {}, number)), gave(item.output), False)


async def _decided(job: RuntimeJob, result: RunResultStreaming) -> Any:
    state = result.to_state()
    for item in result.interruptions:
        verdict = await job.ask(_call(item))
        if verdict.is_approved:
            state.approve(item)
        else:
            state.reject(item, rejection_message=f"not approved: {verdict.text}")
    return state


def _call(item: Any, number: str = "") -> Call:
    args = item.raw_item.get("arguments") if isinstance(item.raw_item, dict) else item.raw_item.arguments
    return call(item.tool_name or "tool", args or "{}", number)


def _usage(result: RunResultStreaming) -> Usage:
    used = result.context_wrapper.usage
    cached = getattr(used.input_tokens_details, "cached_tokens", 0) or 0
    return Usage(used.input_tokens, used.output_tokens, cached)


def _model(response: Any) -> str:
    return str(getattr(response, "model", None) or "")


def _named(agent: Agent[Any]) -> str:
    """The SDK does not say which model has answered; of one given as an object, its name."""
    named = agent.model if isinstance(agent.model, str) else getattr(agent.model, "model", None)
    return f"openai:{named}" if isinstance(named, str) else ""
