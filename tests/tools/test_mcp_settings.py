"""What a person may say about an MCP server, and what is said back when it cannot be meant."""

from __future__ import annotations

from typing import Any

import pytest

from clutch.errors import InvalidInput
from clutch.tools.mcp import McpServer

COMMAND: dict[str, Any] = {"command": "server"}
URL: dict[str, Any] = {"url": "https://tools.example/mcp"}

# fmt: off
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "command: exactly one"),
    ({**COMMAND, **URL}, "command: exactly one"),
    ({"name": "a__b", **COMMAND}, "rename"),
    ({"name": "a_", **COMMAND}, "rename"),
    ({"name": "_a", **COMMAND}, "rename"),
    ({"name": "a b", **COMMAND}, "rename"),
    ({"name": "a" * 25, **COMMAND}, "at most 24"),
    ({"name": "", **COMMAND}, "rename"),
    ({"command": " "}, "command: must name a program"),
    ({**COMMAND, "headers": {"a": "b"}}, "headers: belong to a url"),
    ({**COMMAND, "env": {"A=B": "c"}}, "env:"),
    ({**COMMAND, "env": {"A": "\0"}}, "env:"),
    ({**COMMAND, "inherit": frozenset({""})}, "env:"),
    ({**COMMAND, "args": ("a\0",)}, "args: must not contain NUL"),
    ({**COMMAND, "connect_timeout_s": 0}, "connect_timeout_s: must be more than 0"),
    ({**COMMAND, "call_timeout_s": float("nan")}, "call_timeout_s: must be more than 0"),
    ({**COMMAND, "call_timeout_s": 1e9}, "at most 3600"),
    ({**COMMAND, "allow": ()}, "allow: must hold"),
    ({**URL, "args": ("x",)}, "url: args"),
    ({**URL, "env": {"A": "b"}}, "url: args"),
    ({"url": "ftp://tools.example"}, "url: must be an http"),
    ({"url": "https://"}, "url: must be an http"),
    ({"url": "tools.example/mcp"}, "url: must be an http"),
    ({"url": "https://[::1"}, "url: is not a URL"),
    ({"url": "https://host:99999/"}, "url: is not a URL"),
    ({"url": "https://me:secret@tools.example/"}, "put them in headers"),
    ({"url": "http://tools.example/", "headers": {"authorization": "Bearer x"}}, "use https"),
    ({**URL, "headers": {"Host": "evil"}}, "'Host' is not a header"),
    ({**URL, "headers": {"Mcp-Session-Id": "1"}}, "is not a header"),
    ({**URL, "headers": {"a b": "1"}}, "is not a header"),
    ({**URL, "headers": {"a": "1\r\nb: 2"}}, "printable ASCII"),
]
# fmt: on


@pytest.mark.parametrize(("settings", "words"), REFUSED)
def test_bad_setting_is_refused_with_field_and_remedy(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        McpServer(**{"name": "web", **settings})
    assert words in str(caught.value)
    assert str(caught.value).startswith("mcp.servers.")


def test_plain_http_is_fine_on_this_machine_and_without_secrets() -> None:
    McpServer(name="a", url="http://127.0.0.1:8000/mcp", headers={"authorization": "Bearer x"})
    McpServer(name="a", url="http://tools.internal/mcp")


def test_server_sees_only_listed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    monkeypatch.setenv("LISTED", "yes")
    monkeypatch.setenv("PATH", "/bin")
    seen = McpServer(name="a", command="x", inherit=frozenset({"LISTED"}), env={"OWN": "1"}).environment()
    assert {"LISTED", "OWN", "PATH"} <= seen.keys()
    assert "ANTHROPIC_API_KEY" not in seen


def test_secrets_do_not_show_in_repr() -> None:
    shown = repr(McpServer(name="a", command="x", env={"TOKEN": "hunter22"}))
    assert "hunter22" not in shown + repr(McpServer(name="a", headers={"x-key": "hunter22"}, **URL))


def test_approval_is_by_name_pattern_or_for_all() -> None:
    some = McpServer(name="a", approve=frozenset({"delete_*"}), **COMMAND)
    assert some.wants_approval("delete_file")
    assert not some.wants_approval("read_file")
    assert McpServer(name="a", approve="all", **COMMAND).wants_approval("read_file")
