"""What of a config file is in force in a running process: each finding names its setting, its cause and its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from clutch.config.explain import report
from clutch.config.sources import ConfigSource, GivenConfig
from clutch.core.policy import Policy
from clutch.core.views import ConfigReport, FindingState
from clutch.surfaces.discovery import Loaded

SECRET = "hunter2secret"


class Process:
    """A process that has loaded its config and may look at the file again."""

    def __init__(self, home: Path, text: str, given: GivenConfig | None = None) -> None:
        home.mkdir(mode=0o700)
        self.source = ConfigSource(home, None, given)
        self.write(text)
        self.source.settings = self.source.load()

    def write(self, text: str) -> None:
        path = self.source.file
        path.write_text(text)
        path.chmod(0o600)

    def report(self, *, error: str = "", follows: bool = True) -> ConfigReport:
        loaded = Loaded(str(self.source.file), self.source.stamp, error, follows=follows)
        return report(self.source, loaded, "CHECK", "RESTART")


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(
        tmp_path / "state", '{agents: {defaults: {subagents: {maxSpawnDepth: 2}}}, sandbox: "off"}'
    )


def test_a_file_that_is_loaded_has_no_findings_and_its_settings_are_listed(process: Process) -> None:
    found = process.report()
    assert (found.exists, found.findings, found.from_program) == (True, (), ())
    listed = {one.key: (one.value, one.default, one.needs_restart) for one in found.settings}
    assert listed["agents.defaults.subagents.maxSpawnDepth"] == ("2", "1", False)
    assert listed["sandbox.mode"] == ('"off"', '"on"', True)
    assert set(listed) == {"agents.defaults.subagents.maxSpawnDepth", "sandbox.mode"}


def test_a_change_waits_for_a_restart_or_for_the_gateway_to_look(process: Process) -> None:
    process.write(
        '{agents: {defaults: {subagents: {maxSpawnDepth: 3}}}, gateway: {port: 26001}, sandbox: "off"}'
    )
    found = {one.key: one for one in process.report().findings}
    port, depth = found["gateway.port"], found["agents.defaults.subagents.maxSpawnDepth"]
    assert (port.state, port.in_file, port.remedy) == (FindingState.NEEDS_RESTART, "26001", "RESTART")
    assert (depth.state, depth.in_force, depth.in_file) == (FindingState.NOT_LOADED, "2", "3")
    assert "within seconds" in depth.remedy
    embedded = {one.key: one for one in process.report(follows=False).findings}
    assert embedded["agents.defaults.subagents.maxSpawnDepth"].remedy == "RESTART"


def test_a_setting_that_was_removed_is_a_change_too(process: Process) -> None:
    process.write("{}")
    found = {one.key: one.state for one in process.report().findings}
    assert found == {
        "agents.defaults.subagents.maxSpawnDepth": FindingState.NOT_LOADED,
        "sandbox.mode": FindingState.NEEDS_RESTART,
    }


def test_an_invalid_file_is_reported_line_by_line_and_changes_nothing(process: Process) -> None:
    process.write("{modle: 1,\n worker: {tick: true}}")
    found = process.report()
    assert [one.state for one in found.findings] == [FindingState.INVALID] * 2
    assert "clutch.json:1:2: modle: not known" in found.findings[0].detail
    assert "clutch.json:2:" in found.findings[1].detail
    assert all("CHECK" in one.remedy for one in found.findings)
    assert len(found.settings) == 2


def test_a_valid_file_that_the_gateway_refused_says_why(process: Process) -> None:
    process.write('{agents: {defaults: {model: "nowhere:x"}}, sandbox: "off"}')
    process.source.load()  # the stamp of the file that was refused
    first, *others = process.report(error="model: there is no provider nowhere").findings
    assert (first.state, first.detail) == (FindingState.REFUSED, "model: there is no provider nowhere")
    assert {one.key for one in others} == {
        "agents.defaults.model",
        "agents.defaults.subagents.maxSpawnDepth",
    }
    assert all(one.remedy == "correct what was refused" for one in others)


def test_no_secret_is_in_a_report(process: Process) -> None:
    process.write(
        f"""{{
        database: "postgresql://me:{SECRET}@127.0.0.1/x",
        models: {{providers: {{lab: {{baseUrl: "http://127.0.0.1/{SECRET}/v1", apiKey: "{SECRET}"}}}}}},
        mcp: {{servers: {{search: {{url: "https://x.example/?key={SECRET}", headers: {{A: "{SECRET}"}}}}}}}},
        channels: {{ops: {{url: "https://x.example/{SECRET}"}}}},
        }}"""
    )
    found = process.report()
    assert {"database.url", "models.providers", "mcp.servers", "channels"} <= {
        one.key for one in found.findings
    }
    assert SECRET not in str(found)
    process.source.settings = process.source.load()
    loaded = process.report()
    assert {one.key: one.value for one in loaded.settings}["models.providers"] == '["lab"]'
    assert SECRET not in str(loaded)


def test_arguments_of_the_program_are_named(tmp_path: Path) -> None:
    given = GivenConfig(policy=Policy(), model="offline", concurrency=3)
    process = Process(tmp_path / "state", "{worker: {tick: 9}}", given)
    assert process.report().from_program == ("policy", "model", "concurrency")
    assert process.report().findings == ()


def test_without_a_file_every_setting_has_its_default(tmp_path: Path) -> None:
    process = Process(tmp_path / "state", "{}")
    process.source.file.unlink()
    found = process.report()
    assert (found.exists, found.settings, found.findings) == (False, (), ())
