"""Every setting on its page has a description and an example; `test_pages` compares the page with the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from clutch.config import load
from clutch.config.explain import reason_of
from clutch.config.keys import ConfigKey, catalogue
from tests.docs.settings_page import example

#: What else an object needs, by the key of the object.
COMPANIONS: dict[str, dict[str, Any]] = {
    "agents.list[]": {"id": "research"},
    "models.providers.NAME": {"baseUrl": "http://127.0.0.1:8000/v1"},
    "acp.agents.NAME": {"command": "my-agent"},
    "mcp.servers.NAME": {"command": "mcp-files"},
    "hooks[]": {"url": "https://example.com/clutch"},
    "channels.NAME": {"url": "https://example.com/ops"},
    "schedules.NAME": {"cron": "30 2 * * *", "task": "Check the links"},
    "agents.defaults.heartbeat.activeHours": {"start": "08:00", "end": "18:00"},
    "agents.list[].heartbeat.activeHours": {"start": "08:00", "end": "18:00"},
}
SENTENCE = re.compile(r"[A-Z0-9`\"].*[.)]$")
REMOTE = ("mcp.servers.NAME.url", "mcp.servers.NAME.headers")  #: instead of a command


def config(entry: ConfigKey) -> Any:
    """Return a whole config in which only the example of one key is set, with what it cannot be without."""
    parts = entry.key.split(".")
    value: Any = example(entry)
    for place in range(len(parts), 0, -1):
        path, name = ".".join(parts[:place]), parts[place - 1]
        if place < len(parts):
            value = {**COMPANIONS.get(path, {}), **value}
        if entry.key in REMOTE and path == "mcp.servers.NAME":
            value = {
                "url": "https://search.example/mcp",
                **{key: one for key, one in value.items() if key != "command"},
            }
        if entry.key in ("schedules.NAME.at", "schedules.NAME.every") and path == "schedules.NAME":
            value = {key: one for key, one in value.items() if key != "cron"}
        value = (
            {name.removesuffix("[]"): [value]}
            if name.endswith("[]")
            else {name.replace("NAME", "lab"): value}
        )
    if entry.key == "gateway.host":
        value["gateway"] |= {"allowRemote": True, "allowedHosts": ["clutch.example.org"]}
    return value


def test_every_setting_says_what_it_is() -> None:
    """In whole sentences: the reader of the code once took the last line of a comment that has several."""
    said = {entry.key: reason_of(entry.owner, entry.field) for entry in catalogue()}
    assert {key: text for key, text in said.items() if not SENTENCE.match(text)} == {}


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.key)
def test_every_example_is_accepted_and_is_not_the_default(entry: ConfigKey) -> None:
    environment = {
        "LAB_KEY": "k",
        "OPS_WEBHOOK": "https://example.com/ops",
        "CLUTCH_DATABASE": "postgresql://h/d",
        "CLUTCH_DATABASE_DIRECT": "postgresql://h/d",
    }
    text = json.dumps(config(entry))
    found = load.read(text, Path("/clutch.json"), 0o600, environment)
    assert found.settings != load.read("{}", Path("/clutch.json"), 0o600, environment).settings, text
