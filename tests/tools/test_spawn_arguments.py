"""Arguments of tools: every bad one is refused with its field and its rule, nothing is converted."""

from __future__ import annotations

from pathlib import Path

import pytest

from clutch.core.authority import SESSION_TOOLS
from clutch.core.policy import Limits
from clutch.core.spawn import CleanupPolicy, Mode, SpawnRequest
from clutch.errors import ClutchError, InvalidInput
from clutch.ports import HumanQuestion, ToolContext, ToolFailed, ToolSpec
from clutch.tools.arguments import Arguments
from clutch.tools.registry import Tools, standard_tools

LONG = "x" * 100_000


@pytest.mark.scenario(4)
@pytest.mark.parametrize(
    ("args", "field", "rule"),
    [
        ({}, "task", "is required"),
        ({"task": ""}, "task", "must not be blank"),
        ({"task": " \n\t"}, "task", "must not be blank"),
        ({"task": None}, "task", "must be a valid string"),
        ({"task": 5}, "task", "must be a valid string"),
        ({"task": ["x"]}, "task", "must be a valid string"),
        ({"task": "a\0b"}, "task", "must not contain NUL"),
        ({"task": "a\ud800"}, "task", "must be valid Unicode text"),
        ({"task": LONG}, "task", "has 100000 bytes, at most 65536 are allowed"),
        ({"task": "ü" * 32769}, "task", "has 65538 bytes, at most 65536 are allowed"),
        ({"label": 1}, "label", "must be a valid string"),
        ({"label": " "}, "label", "must not be blank"),
        ({"label": "x" * 201}, "label", "has 201 characters, at most 200 are allowed"),
        ({"label": "a\nb"}, "label", "must not contain control characters"),
        ({"label": "a\x1b[2Jb"}, "label", "must not contain control characters"),
        ({"label": "a\u2028b"}, "label", "must not contain control characters"),
        ({"label": "a\u202eb"}, "label", "must not contain control characters"),
        ({"model": ""}, "model", "must be a name"),
        ({"model": "a\nb"}, "model", "must be a name"),
        ({"model": LONG}, "model", "must be a name"),
        ({"runTimeoutSeconds": -1}, "runTimeoutSeconds", "must be greater than or equal to 0"),
        ({"runTimeoutSeconds": False}, "runTimeoutSeconds", "must be a valid number"),
        ({"runTimeoutSeconds": "5"}, "runTimeoutSeconds", "must be a valid number"),
        ({"runTimeoutSeconds": float("nan")}, "runTimeoutSeconds", "must be a finite number"),
        ({"runTimeoutSeconds": float("inf")}, "runTimeoutSeconds", "must be a finite number"),
        ({"runTimeoutSeconds": 1e300}, "runTimeoutSeconds", "must be less than or equal to 1000000000"),
        ({"runTimeoutSeconds": 10**400}, "runTimeoutSeconds", "must be a finite number"),
        ({"timeoutSeconds": -0.5}, "timeoutSeconds", "must be greater than or equal to 0"),
        ({"timeoutSeconds": True}, "timeoutSeconds", "must be a valid number"),
        ({"cleanup": "Keep"}, "cleanup", "must be 'keep' or 'delete'"),
        ({"cleanup": LONG}, "cleanup", "must be 'keep' or 'delete'"),
        ({"planMode": 1}, "planMode", "must be a valid boolean"),
        ({"planMode": "true"}, "planMode", "must be a valid boolean"),
        ({"expectsCompletion": 0}, "expectsCompletion", "must be a valid boolean"),
        ({"plan_mode": True}, "plan_mode", "is not a known field"),
        ({"run_timeout_s": 5}, "run_timeout_s", "is not a known field"),
        ({"unknown": 1}, "unknown", "is not a known field; known are: task, label, agentId"),
        ({"unknown": None}, "unknown", "is not a known field; known are: task, label, agentId"),
        ({"lable": "x"}, "lable", "is not a known field; did you mean 'label'? known are: task"),
        (
            {"budget": {"tokns": 5}},
            "budget.tokns",
            "is not a known field; did you mean 'tokens'? known are: tokens, usd",
        ),
        ({"budget": {}}, "budget", "names neither tokens nor usd"),
        ({"thinking": "hard"}, "thinking", "must be 'off', 'minimal', 'low', 'medium', 'high' or 'max'"),
        ({"mode": "session"}, "mode", "session needs thread: true"),
        ({"mode": "forever", "thread": True}, "mode", "must be 'run' or 'session'"),
        ({"idempotencyKey": " "}, "idempotencyKey", "must be printable and not blank"),
        ({"idempotencyKey": "a\nb"}, "idempotencyKey", "must be printable"),
        ({"idempotencyKey": "x" * 201}, "idempotencyKey", "must have at most 200 characters"),
        ({"dryRun": 1}, "dryRun", "must be a valid boolean"),
        ({"sandbox": "maybe"}, "sandbox", "must be 'inherit' or 'require'"),
        ({"x" * 5000: 1}, "x" * 80, "is not a known field"),
        ({"new\nline": 1}, "'new\\nline'", "is not a known field"),
        *(
            ({name: "x"}, name, "the child never chooses where results go")
            for name in ("channel", "to", "threadId", "replyTo", "transport", "target")
        ),
    ],
)
def test_a_bad_spawn_is_refused_with_its_field_and_rule(
    args: dict[str, object], field: str, rule: str
) -> None:
    whole = args if "task" in args or not args else {"task": "look around", **args}
    with pytest.raises(InvalidInput) as refused:
        standard_tools().spawn_request(whole)
    assert refused.value.field == field
    assert rule in refused.value.rule
    assert str(refused.value) == f"{field}: {refused.value.rule}"
    assert len(refused.value.rule) <= 400
    assert isinstance(refused.value, ClutchError)


def test_a_spawn_that_says_only_the_task_leaves_the_rest_open() -> None:
    assert standard_tools().spawn_request({"task": " look\naround "}) == SpawnRequest(" look\naround ")


def test_everything_a_spawn_may_say_arrives() -> None:
    args = {
        "task": "x",
        "label": "Größe 👨‍👩‍👧",
        "agentId": "re_search-2",
        "model": "some:model",
        "runTimeoutSeconds": 90,
        "cleanup": "delete",
        "planMode": False,
        "expectsCompletion": False,
    }
    assert standard_tools().spawn_request(args) == SpawnRequest(
        "x", "Größe 👨‍👩‍👧", "re_search-2", "some:model", 90.0, CleanupPolicy.DELETE, False, False
    )


@pytest.mark.scenario(5)
@pytest.mark.parametrize(
    ("args", "seconds"),
    [
        ({}, None),
        ({"runTimeoutSeconds": 0}, 0.0),
        ({"timeoutSeconds": 7}, 7.0),
        ({"runTimeoutSeconds": 3, "timeoutSeconds": 7}, 3.0),
        ({"runTimeoutSeconds": 0, "timeoutSeconds": 7}, 0.0),
        ({"runTimeoutSeconds": None, "timeoutSeconds": 7}, 7.0),
    ],
)
def test_run_timeout_wins_over_its_alias(args: dict[str, object], seconds: float | None) -> None:
    assert standard_tools().spawn_request({"task": "x", **args}).run_timeout_s == seconds


@pytest.mark.scenario(12)
def test_a_thread_makes_a_session_unless_it_says_otherwise() -> None:
    def mode(**args: object) -> tuple[Mode, bool]:
        request = standard_tools().spawn_request({"task": "x", **args})
        return request.mode, request.thread

    assert mode() == (Mode.RUN, False)
    assert mode(mode="run") == (Mode.RUN, False)
    assert mode(thread=True) == (Mode.SESSION, True)
    assert mode(thread=True, mode="run") == (Mode.RUN, True)
    assert mode(thread=True, mode="session") == (Mode.SESSION, True)
    with pytest.raises(InvalidInput, match=r"^mode: "):
        mode(mode="session")


def test_null_is_not_said() -> None:
    names = (
        "label",
        "cleanup",
        "planMode",
        "context",
        "tools",
        "budget",
        "mode",
        "runtime",
        "runTimeoutSeconds",
    )
    args = {"task": "x", **dict.fromkeys(names)}
    assert standard_tools().spawn_request(args) == SpawnRequest("x")


def test_limits_of_the_config_are_the_ones_that_count() -> None:
    tools = standard_tools(Limits(task_bytes_max=10, label_max=3))
    with pytest.raises(InvalidInput, match="task: has 11 bytes, at most 10 are allowed"):
        tools.spawn_request({"task": "x" * 11})
    with pytest.raises(InvalidInput, match="label: has 4 characters, at most 3 are allowed"):
        tools.spawn_request({"task": "x", "label": "four"})


def test_session_tools_are_described_and_what_may_run_again_is_marked() -> None:
    specs = {spec.name: spec for spec in standard_tools().specs()}
    assert list(specs)[:6] == ["read", "list", "search", "write", "edit", "web_fetch"]
    assert set(specs) >= {"ask_human"} | SESSION_TOOLS
    spawn = specs["sessions_spawn"].parameters
    assert spawn["required"] == ["task"]
    assert "runTimeoutSeconds" in spawn["properties"]
    assert not specs["sessions_spawn"].replay_safe
    assert specs["write"].replay_safe
    assert not specs["write"].read_only
    harmless = ("read", "list", "search", "web_fetch", "ask_human", "sessions_yield")
    assert all(specs[name].read_only and specs[name].replay_safe for name in harmless)


class LineArguments(Arguments):
    line: str


def box_with_append() -> Tools:
    async def append(arguments: LineArguments, context: ToolContext) -> str:
        """Append a line."""
        with (Path(context.workspace) / "log").open("a") as file:
            file.write(f"{context.key} {arguments.line}\n")
        return "a\0b\ud800"

    async def break_down(arguments: LineArguments, context: ToolContext) -> str:
        raise RuntimeError("secret plans " * 100)

    tools = Tools()
    tools.add(append, arguments=LineArguments)
    tools.add(break_down, arguments=LineArguments, name="broken", description="It breaks.")
    return tools


@pytest.mark.anyio
async def test_a_python_function_becomes_a_tool_that_must_not_run_twice(tmp_path: Path) -> None:
    tools = box_with_append()
    spec = tools.specs()[0]
    assert (spec.name, spec.description, spec.replay_safe, spec.read_only) == (
        "append",
        "Append a line.",
        False,
        False,
    )
    text = await tools.run("append", {"line": "one"}, ToolContext(str(tmp_path), "s", "k1"))
    assert (tmp_path / "log").read_text() == "k1 one\n"
    assert text == "a\ufffdb?", "what no database stores is replaced"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("append", {}, "line: is required"),
        ("append", {"line": 1}, "line: must be a valid string"),
        ("append", {"line": "x", "to": "y"}, "to: is not a known field; known are: line"),
        ("broken", {"line": "x"}, "RuntimeError: secret plans"),
        ("nothing", {}, "there is no tool named 'nothing'; there are: append, broken"),
        ("sessions_spawn", {"task": "x"}, "there is no tool named 'sessions_spawn'"),
    ],
)
async def test_what_a_tool_cannot_do_is_told_to_the_model(
    tmp_path: Path, name: str, args: dict[str, object], message: str
) -> None:
    with pytest.raises(ToolFailed) as failed:
        await box_with_append().run(name, args, ToolContext(str(tmp_path), "s", "k"))
    assert str(failed.value).startswith(message)
    assert len(str(failed.value)) <= 500
    assert not (tmp_path / "log").exists()


# fmt: off
TAKEN = (
    "append", "", "two words", "größe", "x" * 65, "a.b",
    "sessions_spawn", "sessions_yield", "sessions_list", "sessions_history", "sessions_subagent_remove", "subagents",
    "gateway", "cron", "agents_list", "session_status", "sessions_send", "ask_human", "submit_result",
    "bash", "spawn_subagent", "subagent_spawn",
)
# fmt: on


@pytest.mark.parametrize("name", TAKEN)
def test_a_name_is_given_once_and_those_with_a_meaning_to_nobody(name: str) -> None:
    async def other(arguments: LineArguments, context: ToolContext) -> str:
        return ""

    tools = box_with_append()
    before = tools.specs()
    with pytest.raises(InvalidInput, match=rf"^tool '{name}': .*(choose another|give it one)$"):
        tools.register(ToolSpec(name, "", {}), lambda args, context: other(LineArguments(line=""), context))
    assert tools.specs() == before


def test_a_question_to_a_person_is_checked_before_it_is_asked() -> None:
    tools = standard_tools()
    assert tools.human_question({"question": "Which?", "choices": ["a", "b"]}) == HumanQuestion(
        "Which?", ("a", "b")
    )
    assert tools.human_question({"question": "Why?"}) == HumanQuestion("Why?")
    for args in ({}, {"question": " "}, {"question": "x" * 4001}, {"question": 1}):
        with pytest.raises(InvalidInput, match=r"^question: "):
            tools.human_question(args)
    for choices in ("a", [1], ["x"] * 21, [""], ["x" * 201]):
        with pytest.raises(InvalidInput, match=r"^choices"):
            tools.human_question({"question": "Which?", "choices": choices})
