"""A graph of LangGraph as a child.

    c.runtime("research")(from_graph(graph))

The text of its models and its tool calls are reported as they come, if its state has `messages`. With a checkpointer it
keeps its own journal under the name of the session: after a crash it resumes from its last checkpoint, and an
`interrupt(value)` asks a person here; it returns `{"approved": bool, "text": str}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from clutch.core.messages import Answer, Call, Usage
from clutch.ports import RuntimeJob
from clutch.runtimes.function import Function, call, earlier, gave, in_words, only

if TYPE_CHECKING:
    from langgraph.pregel import Pregel

KEY = "clutch_key"


def from_graph(
    graph: Pregel[Any, Any, Any, Any],
    *,
    to_input: Callable[[RuntimeJob], Any] | None = None,
    to_result: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Function:
    """`to_input` makes the state from a job, `to_result` the final text from the state; both know `messages` by
    themselves. `options` go to every `astream`: context, durability, …

    With a checkpointer, `durability` is "sync" unless `options` say otherwise: LangGraph's own default writes the
    checkpoint of a node while the next one runs, and a process killed in between would run the first one again."""

    async def run(job: RuntimeJob) -> Answer:
        from langgraph.types import Command

        has_memory = bool(graph.checkpointer)
        chosen = {"durability": "sync", **options} if has_memory else options
        config = {"configurable": {"thread_id": job.session_key}, "metadata": {KEY: job.key}}
        given: Any = None
        if not (has_memory and await _is_begun(graph, config, job.key)):
            given = to_input(job) if to_input else _messages(job, is_new=not has_memory)
        told = _Told(job)
        while True:
            await told.follow(graph, given, config, chosen)
            if not told.asked:
                break
            given = Command(resume={one.id: await _decided(job, one.value) for one in told.asked})
        result = to_result(told.state) if to_result else _last_word(told.state)
        return Answer(in_words(result), usage=told.used, model=only(told.models))

    return run


async def _is_begun(graph: Any, config: Any, key: str) -> bool:
    """Whether this very run was under way in it when a process died."""
    known = await graph.aget_state(config)
    return bool(known.next) and (known.metadata or {}).get(KEY) == key


def _messages(job: RuntimeJob, *, is_new: bool) -> dict[str, Any]:
    """A graph with a checkpointer has the earlier messages itself."""
    before = earlier(job) if is_new else []
    said = [("assistant" if by_agent else "user", text) for by_agent, text in before]
    return {"messages": [*said, ("user", job.text)]}


async def _decided(job: RuntimeJob, value: Any) -> dict[str, Any]:
    args = value if isinstance(value, Mapping) else {"question": value}
    verdict = await job.ask(call("interrupt", args))
    return {"approved": verdict.is_approved, "text": verdict.text}


def _last_word(state: Any) -> Any:
    said = state.get("messages") if isinstance(state, Mapping) else None
    return said[-1].text if said else state


class _Told:
    """What the graph has reported so far."""

    def __init__(self, job: RuntimeJob) -> None:
        self._job = job
        self.state: Any = None
        self.asked: list[Any] = []
        self.used = Usage()
        self.models: set[str] = set()
        self._calls: dict[str, Call] = {}

    async def follow(self, graph: Any, given: Any, config: Any, options: Mapping[str, Any]) -> None:
        self.asked = []
        modes = ["messages", "updates", "values"]
        async with aclosing(graph.astream(given, config, stream_mode=modes, **options)) as stream:
            async for mode, data in stream:
                if mode == "messages":
                    self._heard(data[0])
                elif mode == "values":
                    self.state = data
                else:
                    self._updated(data)

    def _heard(self, message: Any) -> None:
        """Pieces as they stream; of a model that does not stream, the whole."""
        if message.type in ("AIMessageChunk", "ai") and message.text:
            self._job.say(str(message.text))

    def _updated(self, data: Mapping[str, Any]) -> None:
        for node, update in data.items():
            if node == "__interrupt__":
                self.asked += update
            elif isinstance(update, Mapping):
                new = update.get("messages") or ()
                for message in new if isinstance(new, list | tuple) else (new,):
                    self._worked(message)

    def _worked(self, message: Any) -> None:
        kind = getattr(message, "type", "")
        if kind == "ai":
            self._count(message)
            for made in message.tool_calls:
                self._calls[made["id"]] = call(made["name"], made["args"], made["id"] or "")
                self._job.begin(self._calls[made["id"]])
        elif kind == "tool":
            made = self._calls.pop(message.tool_call_id, Call(message.name or "tool", {}))
            self._job.end(made, gave(message.content), message.status == "error")

    def _count(self, message: Any) -> None:
        used = message.usage_metadata
        if used:
            cached = used.get("input_token_details", {}).get("cache_read", 0)
            self.used = Usage(
                self.used.input + used["input_tokens"],
                self.used.output + used["output_tokens"],
                self.used.cache_read + cached,
            )
        named = message.response_metadata.get("model_name")
        if named:
            provider = message.response_metadata.get("model_provider")
            self.models.add(f"{provider}:{named}" if provider else named)
