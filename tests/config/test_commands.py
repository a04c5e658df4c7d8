"""`clutch config …` and `clutch init`, as they are typed."""

from __future__ import annotations

import http.server
import json
import re
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from clutch.cli.app import run
from clutch.config import explain as explain_config
from clutch.config import json5, load
from clutch.config.explain import explain, said
from clutch.errors import ConfigInvalid, InvalidInput
from clutch.models.provider import KEY_VARIABLES
from clutch.surfaces.discovery import NO_START

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "configure.md"


def example() -> str:
    found = re.search(r"```json5\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object
) -> tuple[int, Any, str]:
    """Exit code, the object or text on stdout, and what was said."""
    monkeypatch.setattr(sys, "argv", ["clutch", *map(str, words)])
    code = run()
    told = capsys.readouterr()
    return code, json.loads(told.out) if told.out.startswith("{") else told.out, told.err


def test_check_says_everything_and_ends_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "clutch.json"
    path.write_text("{modle: 1, headless: 2}")
    code, said, told = typed(monkeypatch, capsys, "config", "check", path, "--json")
    assert (code, said["ok"], said["file"]) == (1, False, str(path))
    assert told == ""
    assert typed(monkeypatch, capsys, "config", "check", path)[:2] == (1, "\n".join(said["problems"]) + "\n")
    assert [problem.split(": ")[0] for problem in said["problems"]] == [f"{path}:1:2", f"{path}:1:22"]
    path.write_text("{agents: {defaults: {subagents: {maxChildrenPerAgent: 21}}}}")
    code, said, _ = typed(monkeypatch, capsys, "config", "check", "--state", tmp_path, "--json")
    assert (code, said["keys"]) == (0, 1)
    assert "above 20" in said["warnings"][0]


@pytest.mark.parametrize(
    ("database", "problem"),
    [
        ('{schema: "fleet"}', "database.url: missing"),
        ('"mysql://h/d"', "write postgresql://user@host/name"),
        ('{url: "postgresql://h/d", direct: "server:5432"}', "write postgresql://user@host/name"),
    ],
)
def test_check_refuses_an_address_that_cannot_be_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    database: str,
    problem: str,
) -> None:
    (tmp_path / "clutch.json").write_text(f"{{database: {database}}}")
    (tmp_path / "clutch.json").chmod(0o600)
    code, said, _ = typed(monkeypatch, capsys, "config", "check", "--state", tmp_path, "--json")
    assert code == 1
    assert problem in str(said)


def test_explain_tells_value_default_place_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "clutch.json").write_text("{\n announce: {queue: {\n  debounceMs: '2s'}}}")
    code, text, _ = typed(
        monkeypatch, capsys, "config", "explain", "announce.queue.debounceMs", "--state", tmp_path
    )
    assert (code, text.splitlines()) == (
        0,
        [
            'announce.queue.debounceMs = "2s"',
            f"  from      {tmp_path}/clutch.json:3",
            '  default   "1s"',
            '  may be    a duration: a text like "1h30m" or "500ms", or a number of milliseconds',
            "  meaning   Time to wait for further results before a turn reads them together.",
            "  changed   while it runs",
        ],
    )
    code, _, told = typed(monkeypatch, capsys, "config", "explain", "anounce.queue", "--state", tmp_path)
    assert (code, told) == (
        2,
        "clutch config explain: KEY: 'anounce.queue' is not known; did you mean announce.queue?\n",
    )


def test_explain_finds_what_is_said_in_lists_and_under_names_but_no_secret() -> None:
    config = load.read(
        """{agents: {list: [{id: "a"}, {id: "b", model: "x:y", heartbeat: {every: "5m"}}]},
            models: {providers: {lab: {baseUrl: "http://h/v1", apiKey: "sk-canary", idleTimeout: "1m"}}}}""",
        Path("clutch.json"),
        0o600,
        {},
    )

    def value(key: str) -> object:
        (one,) = explain(config, key)
        return one.value, one.line

    assert value("agents.list[1].model") == ("x:y", 1)
    assert value("agents.list[1].heartbeat.every") == ("5m", 1)
    assert value("agents.list[0].heartbeat.every") == ("30m", None)
    assert value("agents.list[7].model") == (None, None)
    assert value("models.providers.lab.idleTimeout") == ("1m", 2)
    assert value("models.providers.other.idleTimeout") == (None, None)
    assert value("models.providers.lab.apiKey") == ("***", 2)
    assert value("models.providers.my.lab.idleTimeout") == (None, None)
    assert said(config).keys() == config.lines.keys()
    assert "canary" not in repr([explain(config, key) for key in ("models", "agents", "mcp")])
    with pytest.raises(InvalidInput):
        explain(config, "")


@pytest.mark.parametrize("login", ["me:canary", "canary", "me:can%40canary", "me:c@canary"])
def test_explain_shows_no_login_of_an_address(login: str) -> None:
    text = f'{{otel: {{endpoint: "https://{login}@collector:4318/a@b"}}}}'
    config = load.read(text, Path("clutch.json"), 0o600, {})
    assert explain(config, "otel.endpoint")[0].value == "https://***@collector:4318/a@b"
    assert said(config)["otel.endpoint"] == "https://***@collector:4318/a@b"
    assert "canary" not in repr(explain(config, "otel"))


def test_the_schema_accepts_what_is_right_and_not_what_is_wrong() -> None:
    known = explain_config.schema()
    jsonschema.Draft202012Validator.check_schema(known)
    validator = jsonschema.Draft202012Validator(known)
    right = json5.parse(example()).plain()
    assert (
        load.read(example(), Path("clutch.json"), 0o644, {}).settings.listening.port
        == right["gateway"]["port"]
        == 8080
    )
    validator.validate(right)
    for wrong in (
        {"modle": 1},
        {"agents": {"list": [{"model": "x"}]}},
        {"announce": {"queue": {"debounceMs": "1 s"}}},
        {"announce": {"queue": {"debounceMs": ""}}},
        {"budget": {"dayUsd": 0.5}},
        {"models": {"providers": {"lab": {"apiKey": {"var": "X"}}}}},
    ):
        assert not validator.is_valid(wrong), wrong
        with pytest.raises(ConfigInvalid):
            load.read(json.dumps(wrong), Path("clutch.json"), 0o600, {})


# ---- the first one ---------------------------------------------------------------------------------------


@contextmanager
def ollama(body: bytes) -> Iterator[tuple[str, int]]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body if self.path == "/api/tags" else b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        yield "127.0.0.1", server.server_port


def test_init_finds_keys_and_a_local_ollama() -> None:
    with ollama(b'{"models": [{"name": "qwen3:8b"}]}') as there:
        found = explain_config.choices({"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": " "}, there)
    assert [one.model for one in found] == ["openai:gpt-5-mini", "ollama:qwen3:8b", "offline"]
    with ollama(b'{"models": [7]}') as there:
        assert explain_config.choices({}, there) == (explain_config.NOTHING,)


def test_every_line_that_init_writes_holds_also_those_that_are_comments() -> None:
    environment = {"LAB_API_KEY": "x", "SEARCH_TOKEN": "y"}
    found = (explain_config.StarterModel("ollama:qwen3", "it runs here"), explain_config.NOTHING)
    text = explain_config.starter(found[0], found)
    config = load.read(text, Path("clutch.json"), 0o644, {})
    assert config.settings.policy.defaults.model == "ollama:qwen3"
    everything = re.sub(r"(?m)^( +)// (?=\w+: )", r"\1", text)
    assert len(load.read(everything, Path("clutch.json"), 0o644, environment).lines) > len(config.lines) + 10


def test_init_writes_a_private_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in KEY_VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MISTRAL_API_KEY", "canary")
    home = tmp_path / "state"
    _, told, _ = typed(monkeypatch, capsys, "config", "check", "--state", home)
    assert f"`clutch init --state {home}` writes one" in told
    code, said, _ = typed(monkeypatch, capsys, "init", "--no-test", "--state", home, "--json")
    path = home / "clutch.json"
    assert (code, said["file"], said["model"]) == (0, str(path), "mistral:mistral-small-latest")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert "canary" not in path.read_text()
    path.write_text("{}")
    code, _, told = typed(monkeypatch, capsys, "init", "--state", home)
    assert (code, path.read_text()) == (2, "{}")
    assert "exists; --force replaces it" in told
    code, report, _ = typed(monkeypatch, capsys, "init", "--no-test", "--state", home, "--force")
    assert (code, report.splitlines()[-1]) == (0, f"Next: `clutch run --wait 'Say hello' --state {home}`.")
    assert [one.name for one in home.iterdir()] == ["clutch.json"]
    assert load.load(home).settings.policy.defaults.model == "mistral:mistral-small-latest"


def test_a_command_that_would_start_a_gateway_says_what_is_wrong_with_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(NO_START, raising=False)
    path = tmp_path / "clutch.json"
    path.write_text("{headles: true, agents: 1}")
    code, said, told = typed(monkeypatch, capsys, "run", "hello", "--state", tmp_path, "--json")
    assert (code, said["error"]["code"]) == (2, "invalid_input")
    assert said["error"]["problems"] == [
        f"{path}:1:2: headles: not known; did you mean headless?",
        f"{path}:1:25: agents: must be an object, not 1",
    ]
    assert told == "clutch run: " + "\n".join(said["error"]["problems"]) + "\n"
    assert list(tmp_path.iterdir()) == [path]
