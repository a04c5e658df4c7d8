"""Agents of other frameworks as children: real ones, with the models their makers test with."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Literal, TypedDict

import pytest
from agents import Agent as OpenAIAgent
from agents import RunConfig, function_tool
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from agents.usage import Usage as OpenAIUsage
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, Tool
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from clutch.core.messages import Answer, Call, Input, Usage
from clutch.ports import RuntimeJob, Verdict
from clutch.runtimes import langgraph, openai_agents, pydantic_ai
from clutch.runtimes.function import Function, FunctionRuntime
from clutch.testing.runtimes import CHECKS, Check, obey

pytestmark = pytest.mark.anyio

NO_TRACES = RunConfig(tracing_disabled=True)


class Told:
    """A job, and everything that is told about it. Approves or rejects as it is made to."""

    def __init__(self, text: str = "what is in it?", *, approves: bool = True, before: str = "") -> None:
        self.said: list[str] = []
        self.begun: list[str] = []
        self.ended: list[tuple[str, dict[str, Any], str, bool]] = []
        self.asked: list[Call] = []
        past = (Input("who are you?"), Answer(before), Input(text)) if before else (Input(text),)
        self.job = RuntimeJob(
            text,
            past,
            "agent:main:subagent:x",
            ".",
            "x:1",
            say=self.said.append,
            begin=lambda call: self.begun.append(call.name),
            end=lambda call, gave, failed: self.ended.append((call.name, dict(call.args), gave, failed)),
            ask=self._ask,
        )
        self._approves = approves

    async def _ask(self, call: Call) -> Verdict:
        self.asked.append(call)
        return Verdict(self._approves, "" if self._approves else "not today")

    async def run(self, function: Function) -> Answer:
        answer = await function(self.job)
        assert isinstance(answer, Answer)
        return answer


def look(name: str) -> str:
    """Look into a file."""
    return f"{name}: 42"


# ---- Pydantic AI -------------------------------------------------------------------------------------------


def asks_once(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Looks into a file, then tells what it was given."""
    last = messages[-1].parts[-1]
    if last.part_kind == "user-prompt":
        return ModelResponse([TextPart("let me see"), ToolCallPart("look", {"name": "a.txt"})])
    return ModelResponse([TextPart(f"it says {getattr(last, 'content', '')}")])


async def streams_once(messages: list[ModelMessage], info: AgentInfo) -> Any:
    for part in asks_once(messages, info).parts:
        if isinstance(part, TextPart):
            yield part.content
        elif isinstance(part, ToolCallPart):
            yield {1: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}


def pydantic_agent(**more: Any) -> Agent[None, Any]:
    return Agent(FunctionModel(asks_once, stream_function=streams_once), **{"tools": [look], **more})


async def test_pydantic_ai_agent_tells_its_words_calls_and_usage() -> None:
    told = Told()
    answer = await told.run(pydantic_ai.from_agent(pydantic_agent()))
    assert answer.text == "it says a.txt: 42"
    assert "".join(told.said) == "let me see" + answer.text
    assert told.begun == ["look"]
    assert told.ended == [("look", {"name": "a.txt"}, "a.txt: 42", False)]
    assert answer.usage.input > 0
    assert answer.usage.output > 0


@pytest.mark.parametrize("approves", [True, False])
async def test_tool_of_a_pydantic_ai_agent_that_requires_approval_asks_a_person(approves: bool) -> None:
    told = Told(approves=approves)
    agent = pydantic_agent(
        tools=[Tool(look, requires_approval=True)], output_type=[str, DeferredToolRequests]
    )
    answer = await told.run(pydantic_ai.from_agent(agent))
    assert told.asked == [Call("look", {"name": "a.txt"})]
    assert answer.text == ("it says a.txt: 42" if approves else "it says not today")


class Found(BaseModel):
    count: int


async def test_pydantic_ai_agent_remembers_what_it_said_and_gives_its_result_a_form() -> None:
    async def counts(messages: list[ModelMessage], info: AgentInfo) -> Any:
        kinds = [type(message) for message in messages]
        assert kinds == [ModelRequest, ModelResponse, ModelRequest]
        yield {0: DeltaToolCall(info.output_tools[0].name, '{"count": 3}', tool_call_id="c1")}

    agent = Agent(FunctionModel(stream_function=counts), output_type=Found)
    answer = await Told(before="I am a counter").run(pydantic_ai.from_agent(agent))
    assert answer.text == '{"count":3}'


# ---- OpenAI Agents SDK -------------------------------------------------------------------------------------


def openai_agent(*, needs_approval: bool = False) -> tuple[OpenAIAgent[Any], ScriptedModel]:
    used = OpenAIUsage(requests=1, input_tokens=20, output_tokens=5, total_tokens=25)
    model = ScriptedModel(
        [
            ModelStep(output=[function_call("look", {"name": "a.txt"}, call_id="c1")], usage=used),
            ModelStep(output=[assistant_message("it says 42")], usage=used),
        ]
    )
    tool = function_tool(look, needs_approval=needs_approval)
    return OpenAIAgent(name="reader", model=model, tools=[tool]), model


async def test_openai_agent_tells_its_words_calls_and_usage() -> None:
    told = Told(before="I am a reader")
    agent, model = openai_agent()
    answer = await told.run(openai_agents.from_agent(agent, run_config=NO_TRACES))
    assert (answer.text, "".join(told.said)) == ("it says 42", "it says 42")
    assert told.begun == ["look"]
    assert told.ended == [("look", {"name": "a.txt"}, "a.txt: 42", False)]
    assert answer.usage == Usage(40, 10)
    assert model.first_call is not None
    assert [entry["content"] for entry in model.first_call.input] == [
        "who are you?",
        "I am a reader",
        "what is in it?",
    ]


@pytest.mark.parametrize("approves", [True, False])
async def test_tool_of_an_openai_agent_that_needs_approval_asks_a_person(approves: bool) -> None:
    told = Told(approves=approves)
    agent, model = openai_agent(needs_approval=True)
    answer = await told.run(openai_agents.from_agent(agent, run_config=NO_TRACES))
    assert told.asked == [Call("look", {"name": "a.txt"})]
    assert answer.text == "it says 42"
    assert model.last_call is not None
    heard = str(model.last_call.input)
    assert ("a.txt: 42" in heard, "not approved: not today" in heard) == (approves, not approves)


# ---- LangGraph ---------------------------------------------------------------------------------------------


def reading_graph(**more: Any) -> Any:
    used = {"input_tokens": 20, "output_tokens": 5, "total_tokens": 25}
    wanted = AIMessage(
        "let me see",
        tool_calls=[{"name": "look", "args": {"name": "a.txt"}, "id": "c1"}],
        usage_metadata=used,
    )
    model = FakeMessagesListChatModel(responses=[wanted, AIMessage("it says 42", usage_metadata=used)])

    async def think(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def where(state: MessagesState) -> Literal["tools", "__end__"]:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else "__end__"

    graph = StateGraph(MessagesState)
    graph.add_node("model", think)
    graph.add_node("tools", ToolNode([look]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", where)
    graph.add_edge("tools", "model")
    return graph.compile(**more)


async def test_langgraph_graph_tells_its_words_calls_and_usage() -> None:
    told = Told(before="I am a reader")
    answer = await told.run(langgraph.from_graph(reading_graph()))
    assert answer.text == "it says 42"
    assert "".join(told.said) == "let me seeit says 42"
    assert told.ended == [("look", {"name": "a.txt"}, "a.txt: 42", False)]
    assert answer.usage == Usage(40, 10)


class Counting(TypedDict):
    task: str
    steps: list[str]


async def test_langgraph_graph_goes_on_from_its_checkpoint_and_asks_a_person() -> None:
    made: list[str] = []
    is_waiting = asyncio.Event()

    async def first(state: Counting) -> dict[str, list[str]]:
        made.append("first")
        return {"steps": ["first"]}

    async def second(state: Counting) -> dict[str, list[str]]:
        made.append("second")
        if not is_waiting.is_set():
            is_waiting.set()
            await asyncio.Event().wait()
        said = interrupt({"delete": "everything"})
        return {"steps": [*state["steps"], f"second {said['approved']}"]}

    graph = StateGraph(Counting)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    function = langgraph.from_graph(
        graph.compile(checkpointer=InMemorySaver()),
        to_input=lambda job: {"task": job.text, "steps": []},
        to_result=lambda state: state["steps"],
    )
    told = Told(approves=False)
    running = asyncio.ensure_future(told.run(function))
    await is_waiting.wait()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    answer = await told.run(function)
    assert answer.text == '["first","second False"]'
    assert made.count("first") == 1, "what is in the checkpoint is not done again"
    assert told.asked == [Call("interrupt", {"delete": "everything"})]
    again = await Told("another task").run(function)
    assert again.text == '["first","second True"]'


# ---- all of them under the engine --------------------------------------------------------------------------


def obedient_pydantic() -> Function:
    async def streams(messages: list[ModelMessage], info: AgentInfo) -> Any:
        heard: list[str] = []
        text = str(messages[-1].parts[-1].content)  # type: ignore[union-attr]
        job = RuntimeJob(text, (), "x", ".", "x", say=heard.append)
        said = await obey(job)
        for word in heard or [said]:
            yield word

    return pydantic_ai.from_agent(Agent(FunctionModel(stream_function=streams)))


def obedient_graph() -> Function:
    class State(TypedDict, total=False):
        text: str
        said: str

    def to_input(job: RuntimeJob) -> State:
        says[job.text] = job
        return {"text": job.text}

    says: dict[str, RuntimeJob] = {}

    async def node(state: State) -> State:
        return {"said": await obey(replace(says[state["text"]], text=state["text"]))}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return langgraph.from_graph(graph.compile(), to_input=to_input, to_result=lambda state: state["said"])


@pytest.mark.parametrize("make", [obedient_pydantic, obedient_graph])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_framework_conforms(check: Check, make: Any) -> None:
    await check(lambda: FunctionRuntime(make()))
