"""An agent of Pydantic AI as a child.

    c.runtime("reviewer")(from_agent(Agent("anthropic:…", tools=[…])))

Its text and tool calls are reported as they come. A tool that requires approval asks the user here, if the agent's
`output_type` has `DeferredToolRequests`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clutch.core.messages import Answer, Call, Usage
from clutch.ports import RuntimeJob
from clutch.runtimes.function import Function, call, earlier, gave, in_words

if TYPE_CHECKING:
    from pydantic_ai import Agent, AgentRunResult, DeferredToolRequests, DeferredToolResults
    from pydantic_ai.messages import ModelMessage


def from_agent(agent: Agent[Any, Any], **options: Any) -> Function:
    """`options` go to every run of the agent: deps, model_settings, usage_limits, …"""

    async def run(job: RuntimeJob) -> Answer:
        from pydantic_ai import DeferredToolRequests

        prompt: str | None = job.text
        history: Sequence[ModelMessage] = _history(job)
        decided: DeferredToolResults | None = None
        used = Usage()
        while True:
            more = {**options, "message_history": history, "deferred_tool_results": decided}
            result = await _run(job, agent, prompt, more)
            used = _added(used, result)
            if not isinstance(result.output, DeferredToolRequests):
                return Answer(in_words(result.output), usage=used, model=_model(result))
            prompt, history, decided = None, result.all_messages(), await _decided(job, result.output)

    return run


async def _run(
    job: RuntimeJob, agent: Agent[Any, Any], prompt: str | None, options: dict[str, Any]
) -> AgentRunResult[Any]:
    calls: dict[str, Call] = {}
    async with agent.run_stream_events(prompt, **options) as events:
        async for event in events:
            match event.event_kind:
                case "part_start":
                    _heard(job, event.part.part_kind, getattr(event.part, "content", None))
                case "part_delta":
                    _heard(job, event.delta.part_delta_kind, getattr(event.delta, "content_delta", None))
                case "function_tool_call":
                    part = event.part
                    calls[part.tool_call_id] = call(part.tool_name, part.args, part.tool_call_id)
                    job.begin(calls[part.tool_call_id])
                case "function_tool_result":
                    made = calls.pop(event.tool_call_id, Call(event.part.tool_name or "tool", {}))
                    failed = getattr(event.part, "outcome", "success") != "success"
                    job.end(made, gave(event.part.content), failed)
                case "agent_run_result":
                    return event.result
                case _:
                    pass
    raise RuntimeError("the agent ended without a result")


def _heard(job: RuntimeJob, kind: str, text: object) -> None:
    if isinstance(text, str) and text:
        if kind == "text":
            job.say(text)
        elif kind == "thinking":
            job.think(text)


async def _decided(job: RuntimeJob, asked: DeferredToolRequests) -> DeferredToolResults:
    from pydantic_ai import DeferredToolResults, ToolDenied

    if asked.calls:
        names = ", ".join(sorted({part.tool_name for part in asked.calls}))
        raise RuntimeError(f"this runtime cannot carry out {names}: it supports approvals only")
    decided = DeferredToolResults()
    for part in asked.approvals:
        verdict = await job.ask(call(part.tool_name, part.args))
        decided.approvals[part.tool_call_id] = (
            True if verdict.is_approved else ToolDenied(verdict.text or "not approved")
        )
    return decided


def _history(job: RuntimeJob) -> list[ModelMessage]:
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

    return [
        ModelResponse([TextPart(text)]) if by_agent else ModelRequest([UserPromptPart(text)])
        for by_agent, text in earlier(job)
    ]


def _added(before: Usage, result: AgentRunResult[Any]) -> Usage:
    used = result.usage
    return Usage(
        before.input + used.input_tokens,
        before.output + used.output_tokens,
        before.cache_read + used.cache_read_tokens,
        before.cache_write + used.cache_write_tokens,
    )


def _model(result: AgentRunResult[Any]) -> str:
    said = result.response
    return f"{said.provider_name}:{said.model_name}" if said.provider_name else said.model_name or ""
