"""A file becomes settings, or everything that is wrong with it is said at once, with its place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.config import explain, keys, load, types
from clutch.config.keys import Settings, get
from clutch.config.load import Config
from clutch.config.types import Kind, Many, Maybe, Named, Record, Secret, Table, shown
from clutch.core.agents import ActiveHours, Agent, Heartbeat, OnFull
from clutch.core.model import Lane, Outcome
from clutch.core.policy import QueueMode
from clutch.errors import ConfigInvalid, InvalidInput
from clutch.tools.sandbox.policy import Sandbox
from tests.examples import examples

HERE = Path("/home/ada/clutch.json")


def read(text: str, mode: int = 0o600, **environment: str) -> Config:
    return load.read(text, HERE, mode, environment)


def refused(text: str, mode: int = 0o600) -> list[str]:
    with pytest.raises(ConfigInvalid) as invalid:
        read(text, mode)
    return [line.removeprefix(f"{HERE}:") for line in invalid.value.problems]


def problems(text: str) -> tuple[str, ...]:
    """None: it is a config."""
    try:
        read(text)
    except ConfigInvalid as error:
        return error.problems
    return ()


def test_an_empty_file_says_nothing() -> None:
    assert read("{}").settings == Settings()


def test_every_part_of_the_settings_can_be_said() -> None:
    config = read(
        """{
  agents: {
    defaults: {
      model: "lab:qwen3", maxConcurrent: 2, workspace: "notes", heartbeat: {every: "15m"},
      subagents: {maxConcurrent: 16, onFull: "reject", runTimeoutSeconds: 900, retainedOverflow: "reject",
                  onParentEnd: {timeout: "kill"}, resultMaxBytes: "8KB"},
    },
    list: [{id: "main", subagents: {allowAgents: ["research"]}},
           {id: "research", heartbeat: {activeHours: {start: "22:00", end: "06:00"}}, sandbox: true}],
  },
  announce: {queue: {mode: "direct", debounceMs: 1500}, deadLetterDays: "36h"},
  archive: {afterMinutes: 90, deleteTranscriptAfter: "at-archive"},
  budget: {dayUsd: "20.50", rootTokens: 2000000},
  models: {maxWait: "1h30m", retrySeconds: ["500ms", 2],
           providers: {lab: {baseUrl: "http://127.0.0.1:8000/v1", adapter: "direct", apiKey: {env: "LAB_KEY"}}}},
  acp: {agents: {claude: {startTimeout: "2m"}}},
  mcp: {servers: {files: {command: "mcp-files", cwd: "~/x", env: {TOKEN: {env: "FILES_TOKEN"}}, approve: "all"}}},
  hooks: [{url: "https://example.com/x", events: ["subagent_ended"]}],
  sandbox: {network: true}, tools: {sessions: {visibility: "self"}},
  database: "postgresql://db/clutch", gateway: {port: 8080}, headless: true,
  worker: {shares: {"tenant-a": 3, "*": 2}},
}""",
        FILES_TOKEN="s3cret",
    )
    said, policy = config.settings, config.settings.policy
    assert policy.defaults.model == "lab:qwen3"
    assert policy.work.lanes == {Lane.MAIN: 2, Lane.SUBAGENT: 16}
    assert policy.defaults.workspace == "/home/ada/notes"
    assert policy.defaults.heartbeat == Heartbeat(every_s=900)
    assert policy.defaults.subagents.on_full is OnFull.REJECT
    assert policy.defaults.subagents.run_timeout_s == 900
    assert not policy.limits.evicts_delivered
    assert policy.limits.on_parent_end == {Outcome.TIMEOUT: "kill"}
    assert policy.life.result_bytes_max == 8000
    assert policy.agents["main"].subagents.allow_agents == {"research"}
    night = Heartbeat(active_hours=ActiveHours("22:00", "06:00"))
    assert policy.agents["research"] == Agent("research", heartbeat=night, sandbox=True)
    assert (policy.announcing.mode, policy.announcing.debounce_s) == (QueueMode.FOLLOWUP, 1.5)
    assert policy.announcing.dead_letter_days == 1.5
    assert (policy.keeping.archive_after_s, policy.keeping.transcript_after_s) == (5400, 0)
    assert (policy.budgets.day_usd, policy.budgets.root_tokens) == (Decimal("20.50"), 2_000_000)
    assert (policy.life.quota_wait_max_s, policy.life.provider_retries_s) == (5400, (0.5, 2.0))
    (lab,), (server,), (hook,) = said.providers, said.tools.mcp_servers, said.hooks
    assert (lab.name, lab.api_key, lab.api_key_env) == ("lab", "", "LAB_KEY")
    assert (server.name, server.approve, server.env) == ("files", "all", {"TOKEN": "s3cret"})
    assert server.cwd == str(Path("~/x").expanduser())
    (claude,) = said.acp
    assert (claude.command, claude.start_timeout_s) == ("claude-agent-acp", 120)
    assert hook.events == ("subagent_ended",)
    assert (said.database, said.listening.port, said.tools.network) == ("postgresql://db/clutch", 8080, True)
    assert policy.is_headless
    assert policy.work.shares == {"tenant-a": 3, "*": 2}
    assert keys.is_live("worker.shares.tenant-a")
    assert not keys.is_live("worker.lease")
    assert config.lines["announce.queue.mode"] == 11


@pytest.mark.parametrize(
    ("shares", "wrong"),
    [
        ("{a: 0}", "must have weights from 1 to 1000: a: 0"),
        ('{"tenant a": 1}', "must name shares, e.g. tenant-a, or *: 'tenant a'"),
        ("{a: 1.5}", "must be a whole number, not 1.5"),
    ],
)
def test_weights_of_shares_are_whole_numbers_of_named_shares(shares: str, wrong: str) -> None:
    (said,) = refused(f"{{worker: {{shares: {shares}}}}}")
    assert said.endswith(wrong)


def test_everything_wrong_is_said_at_once_with_its_place() -> None:
    assert refused(
        """{
  agents: {defaults: {maxConcurent: 5, subagents: {maxSpawnDepth: 9, wrapUpAt: "half", onFull: "quue"}},
           list: [{model: "x"}, {id: "A"}]},
  announce: {maxSpawnDepth: 1, queue: {cap: -1, debounceMs: "1 s"}},
  budget: {dayUsd: 0.5, dayTokens: 1e3},
  models: {providers: {lab: {baseUrl: "ftp://x"}, "a b": {}}},
  archive: {afterMinutes: 1},
  hooks: {}, tools: {tain: "ask"},
}"""
    ) == [
        "2:23: agents.defaults.maxConcurent: not known; did you mean maxConcurrent?",
        "2:67: agents.defaults.subagents.maxSpawnDepth: must be at most 5: what nests deeper is a loop",
        '2:80: agents.defaults.subagents.wrapUpAt: must be a number, not "half"',
        '2:96: agents.defaults.subagents.onFull: must be one of "reject", "queue", not "quue"; did you mean queue?',
        "3:19: agents.list[0]: lacks id",
        "3:38: agents.list[1].id: agent id 'A' is not valid: a-z, 0-9, _ and -, at most 64, taken as written",
        "4:14: announce.maxSpawnDepth: not known; did you mean agents.defaults.subagents.maxSpawnDepth?",
        "4:45: announce.queue.cap: must not be negative or without end: -1",
        '4:61: announce.queue.debounceMs: must be a duration: a text like "1h30m" or "500ms", or a number of '
        'milliseconds, not "1 s"',
        '5:20: budget.dayUsd: must be an amount in dollars, as a text like "0.50", not 0.5',
        "5:36: budget.dayTokens: must be a whole number, not 1000.0",
        "6:39: models.providers.lab.baseUrl: begins with http:// or https://; write it like "
        "https://llm.example.com/v1",
        "6:58: models.providers.a b: 'a b' is no name: a-z, 0-9, . _ and -, at most 64",
        "8:10: hooks: must be a list, each an object: {…}, not an object",
        "8:22: tools.tain: not known; did you mean taint?",
    ]


@pytest.mark.parametrize(
    "lowest",
    [
        "agents: {defaults: {subagents: {maxChildrenPerAgent: 0}}}",
        "agents: {defaults: {subagents: {maxSpawnDepth: 0}}}",
        "announce: {retry: {firstMs: 0}}",
        "announce: {retry: {slowFirstMs: 0}}",
        "worker: {tick: 0}",
        "worker: {lease: 0}",
        "archive: {sweepSeconds: 0}",
        "agents: {defaults: {subagents: {resultMaxBytes: 255}}}",
    ],
)
def test_numbers_nothing_could_work_with_are_refused(lowest: str) -> None:
    (problem,) = refused(f"{{{lowest}}}")
    assert "must be" in problem


def test_two_names_of_one_setting_are_not_both_said() -> None:
    both = "{archive: {afterMinutes: 1}, agents: {defaults: {subagents: {archiveAfterMinutes: 2}}}}"
    (problem,) = refused(both)
    assert problem.endswith("says the same as archive.afterMinutes; leave one of them out")


@pytest.mark.scenario(151)
@pytest.mark.parametrize(
    ("hours", "place"),
    [
        ('{start: "9:00", end: "17:00"}', "activeHours.start: '9:00' is not a time"),
        ('{start: "24:00", end: "17:00"}', "activeHours.start: '24:00' is not a time"),
        ('{start: "09:00", end: "17:60"}', "activeHours.end: '17:60' is not a time"),
        (
            '{start: "09:00", end: "17:00", timezone: "Mars/Base"}',
            "activeHours.timezone: there is no time zone",
        ),
        ('{start: "09:00"}', "activeHours: lacks end"),
    ],
)
def test_hours_that_are_none_are_a_config_error_when_it_is_loaded(hours: str, place: str) -> None:
    (problem,) = refused(f"{{agents: {{defaults: {{heartbeat: {{activeHours: {hours}}}}}}}}}")
    assert place in problem


# ---- secrets ---------------------------------------------------------------------------------------------


def test_a_secret_in_a_file_that_others_read_is_refused_and_never_repeated() -> None:
    text = '{models: {providers: {openai: {apiKey: "sk-canary"}}}, database: "postgresql://u:canary@h/d"}'
    assert read(text).settings.providers[0].key({}) == "sk-canary"
    said = refused(text, 0o640)
    assert [problem.split(": ")[1] for problem in said] == ["models.providers.openai.apiKey", "database.url"]
    assert all("chmod 600" in problem and "canary" not in problem for problem in said)
    assert "canary" not in repr(read(text).settings)


def test_a_database_is_a_url_or_an_object() -> None:
    url, server = "postgresql://pooler/clutch?sslmode=require", "postgresql://server/clutch"
    assert read(f'{{database: "{url}"}}').settings.database_address == url
    assert read('{database: {env: "DB"}}', DB=url).settings.database_address == url
    assert read("{database: null}").settings.database_address is None
    text = f'{{database: {{direct: {{env: "DB"}}, schema: "fleet", url: "{url}"}}}}'
    address = read(text, DB=server).settings.database_address
    assert address == f"{url}&direct=postgresql%3A%2F%2Fserver%2Fclutch&schema=fleet"


def test_what_belongs_to_a_database_needs_one() -> None:
    with pytest.raises(InvalidInput, match=r"database\.url.*missing"):
        _ = read('{database: {schema: "fleet"}}').settings.database_address


def test_a_variable_that_is_not_set_is_named() -> None:
    (problem,) = refused('{database: {env: "NO_SUCH"}}')
    assert problem == "1:12: database.url: there is no variable 'NO_SUCH' in the environment"


def test_a_file_that_others_write_or_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clutch.json"
    with pytest.raises(ConfigInvalid, match="No such file"):
        load.load(tmp_path, path)
    assert load.load(tmp_path) == Config()
    path.write_text("{}")
    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(ConfigInvalid, match="others can write it: chmod 600"):
            load.load(tmp_path)
    path.chmod(0o600)
    assert load.load(tmp_path).path == path
    path.write_bytes(b"{a: '\xff'}")
    with pytest.raises(ConfigInvalid, match="is not UTF-8: byte 6"):
        load.load(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigInvalid, match="is not a file"):
        load.load(tmp_path)


# ---- the table -------------------------------------------------------------------------------------------

#: Set by whoever wires, not by people.
NOT_SAID = {"policy.hooks", "policy.roles", "policy.defaults.sandbox"}


def leaves(made: Any, path: str) -> Iterator[str]:
    for one in fields(made):
        value, here = getattr(made, one.name), f"{path}.{one.name}"
        yield from leaves(value, here) if is_dataclass(value) else (here,)


def test_every_setting_has_a_key() -> None:
    said = {to.path for to in keys.ROOT.values()}
    known = {path.removeprefix(".") for path in leaves(Settings(), "")}
    assert {path for path in known - NOT_SAID if not any(one.startswith(path) for one in said)} == set()


def test_every_key_is_a_setting_with_a_default_of_its_own_kind() -> None:
    for key, to in keys.ROOT.items():
        default = get(Settings(), to.path)
        kind = keys.kind_at(Settings, key)
        if is_written(kind, default):
            text = json.dumps(nested(key, shown(kind, default)), default=str)
            assert get(read(text).settings, to.path) == default, key


def is_written(kind: Kind, default: Any) -> bool:
    match kind:
        case Maybe(inner):
            return default is not None and is_written(inner, default)
        case Record() | Named() | Secret() | Table() | Many(Record()):
            return False
        case _:
            return True


def nested(key: str, value: Any) -> Any:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


WORDS = sorted(
    {part for key in keys.ROOT for part in key.split(".")} | {"id", "env", "apiKey", "baseUrl", "x"}
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["5m", "on", "main", "1KB", "é"])
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)
TOPS = sorted({key.split(".")[0] for key in keys.ROOT})


@examples(50)
@given(st.dictionaries(st.sampled_from(TOPS), TREES, max_size=3))
def test_any_file_is_settings_or_named_problems(tree: dict[str, Any]) -> None:
    assert all(problem.startswith(f"{HERE}:1:") for problem in problems(json.dumps(tree)))


@given(st.sampled_from(sorted(keys.ROOT)), LEAVES)
def test_any_value_of_any_key_is_a_setting_or_a_named_problem(key: str, value: Any) -> None:
    assert all(problem.split(": ")[1].startswith(key) for problem in problems(json.dumps(nested(key, value))))


# ---- units -----------------------------------------------------------------------------------------------


@given(st.floats(min_value=1e-6, max_value=types.DURATION_MAX_S) | st.just(0.0))
def test_a_duration_is_read_as_it_was_written(seconds: float) -> None:
    assert types.parse_duration(types.format_duration(seconds)) == seconds


@given(st.integers(min_value=0, max_value=types.BYTES_MAX))
def test_a_size_is_read_as_it_was_written(size: int) -> None:
    assert types.parse_size(types.format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15m", 900), ("1h30m", 5400), ("500ms", 0.5), ("1.5h", 5400), ("2d", 172800), ("0s", 0), ("1m1s1ms", 61.001),
        ("", None), ("5", None), ("30m1h", None), ("1h1h", None), ("-1s", None), ("1 h", None), ("1e3s", None),
        ("inf", None), ("99999999d", None), ("٣s", None),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float | None) -> None:
    assert types.parse_duration(text) == seconds


def test_the_short_form_of_the_sandbox_means_the_same() -> None:
    assert read('{sandbox: "off"}').settings.tools.sandbox is Sandbox.OFF
    assert read('{sandbox: {mode: "off"}}').settings == read('{sandbox: "off"}').settings
    assert read('{sandbox: "off"}').lines == {"sandbox.mode": 1}
    assert "sandbox.mode: must be" in refused('{sandbox: "of"}')[0]
    jsonschema.validate({"sandbox": "off"}, explain.schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"sandbox": "of"}, explain.schema())


def test_an_identity_is_a_text_or_an_object_with_a_name() -> None:
    def identity(said: str) -> str:
        return (
            read(f'{{agents: {{list: [{{id: "main", identity: {said}}}]}}}}')
            .settings.policy.agents["main"]
            .identity
        )

    assert identity('"You are terse."') == "You are terse."
    assert identity('{name: "Ada"}') == "You are Ada."
    assert identity('{name: "Ada", theme: "terse", emoji: "x"}') == "You are Ada.\ntheme: terse\nemoji: x"
    for wrong, rule in (
        ('{theme: "terse"}', "needs a name"),
        ("{name: 3}", "must be a text"),
        ("3", "must be a text, or an object with a name"),
    ):
        with pytest.raises(ConfigInvalid) as refused:
            identity(wrong)
        assert rule in refused.value.problems[0]
