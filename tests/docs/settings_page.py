"""The page `docs/reference/settings.md`, made from the table of keys. `tests.docs.reference` writes it."""

from __future__ import annotations

import json
import re
from itertools import groupby
from typing import Any

from clutch.config import types
from clutch.config.explain import reason_of
from clutch.config.keys import REQUIRED, ConfigKey, catalogue
from clutch.config.types import Either, Kind, Maybe, OneOf, Plain

HEAD = """\
# Settings

Written from the code by `python -m tests.docs.reference`; do not edit.

Every key of `clutch.json`. [Configure Clutch](../how-to/configure.md) explains the format: durations such as `"15m"`,
sizes such as `"64KiB"`, secrets. `clutch config explain KEY` shows the value in effect.

- `NAME` stands for any name, `[]` for any item of a list.
- ↻: a running gateway applies a change when it reads its file again. Other keys need a restart.
"""
CELL_CHARS_MAX = 60
_BRIEF = re.compile(r': (?:bytes, or )?a text like "[^"]*" or "[^"]*"')  # explained once, in the guide
#: Examples that do not follow from the kind and the default. A key that is not here is matched by its last part.
EXAMPLES: dict[str, Any] = {
    "archive.deleteTimelineAfter": "90d",
    "archive.deleteSentAfter": "30d",
    "archive.sumUsageAfter": "90d",
    "model": "anthropic:claude-sonnet-4-5", "workspace": "~/notes", "start": "09:00", "end": "17:00",
    "timezone": "Europe/Berlin", "target": "ops:night", "heartbeat": {"every": "30m"},
    "activeHours": {"start": "09:00", "end": "17:00"}, "prompt": "Check the build and report only problems.",
    "onParentEnd": {"timeout": "kill"}, "allowAgents": ["research"], "wrapUpAt": 0.9, "jitter": 0.1, "compactAt": 0.6,
    "id": "research", "identity": "You are Ada, a careful researcher.", "models": ["anthropic:*"],
    "agents.list": [{"id": "research", "thinking": "high"}], "agents.list[].subagents": {"allowAgents": ["research"]},
    "agents.list[].subagents.workspace": "isolated", "description": "Reads papers and reports what they show.",
    "instructions": "Name the source of every claim.", "maxTurns": 30, "skills": ["literature"],
    "agents.list[].tools": {"deny": ["shell"]}, "tools.agentToAgent.allow": ["main", "research"],
    "allow": ["read", "search"], "alsoAllow": ["web_fetch"], "deny": ["shell"], "allowPrivate": ["wiki.internal"],
    "agents.defaults.subagents.workspace": "isolated", "retrySeconds": ["1s", "5s", "30s"],
    "maxPingPongTurns": 2, "providers": {"openai": {"concurrencyMax": 32}},
    "baseUrl": "http://127.0.0.1:8000/v1", "apiKey": {"env": "LAB_KEY"}, "headers": {"X-Team": "night"},
    "speaks": "openai-chat", "tokensPerMinute": 200000, "concurrencyMax": 64, "contextWindow": 200000,
    "efforts": {"high": "max"}, "acp.agents": {"claude": {}}, "acp.agents.NAME.command": "my-agent",
    "acp.agents.NAME.args": ["--acp"], "install": "npm install -g my-agent", "env": {"LANG": "C.UTF-8"},
    "inherit": ["SSH_AUTH_SOCK"], "visible": ["/opt/agents"], "writable": ["/opt/agents/cache"],
    "mcp.servers": {"files": {"command": "mcp-files"}}, "mcp.servers.NAME.command": "mcp-files",
    "mcp.servers.NAME.args": ["--root", "."], "cwd": "/srv/data", "mcp.servers.NAME.url": "https://search.example/mcp",
    "approve": ["delete_*"], "mcp.servers.NAME.allow": ["search", "read_*"],
    "hooks": [{"url": "https://example.com/clutch"}], "hooks[].url": "https://example.com/clutch",
    "events": ["subagent_ended"], "channels": {"ops": {"url": {"env": "OPS_WEBHOOK"}}},
    "channels.NAME.url": {"env": "OPS_WEBHOOK"}, "operators": ["ada"], "approvers": ["ada"], "notify": ["all_done"],
    "host": "192.0.2.10", "port": 8765, "allowedHosts": ["clutch.example.org"], "requestsPerSecond": 50,
    "pushHosts": ["push.example.org:8443"], "pushContact": "mailto:ops@example.com",
    "database.url": {"env": "CLUTCH_DATABASE"}, "database.direct": {"env": "CLUTCH_DATABASE_DIRECT"},
    "database.schema": "clutch_staging", "rootTokens": 2000000, "dayTokens": 5000000, "rootUsd": "5.00",
    "dayUsd": "20.00", "deleteTranscriptAfter": "7d", "maxAgeHours": "7d", "idleTimeout": "3m",
    "store": "s3://team-files/clutch",
    "approvalTimeoutMinutes": "1d", "runTimeoutSeconds": "15m", "thinking": "high", "maxSpawnDepth": 2,
    "otel.endpoint": "http://127.0.0.1:4318", "shares": {"tenant-a": 3, "*": 1},
    "schedules": {"nightly": {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "task": "Check the links in docs/"}},
    "schedules.NAME.at": "2026-12-24T18:00", "schedules.NAME.every": "6h", "schedules.NAME.cron": "30 2 * * 1-5",
    "schedules.NAME.timezone": "Europe/Berlin", "schedules.NAME.jitter": "5m", "schedules.NAME.maxRuns": 30,
    "schedules.NAME.task": "Check the links in docs/", "schedules.NAME.session": "agent:main:chat:reports",
    "schedules.NAME.label": "link check", "schedules.NAME.agentId": "researcher",
    "schedules.NAME.model": "anthropic:claude-sonnet-4-5", "schedules.NAME.runTimeoutSeconds": "30m",
    "schedules.NAME.runTokens": 200000, "schedules.NAME.runUsd": "0.50", "schedules.NAME.totalTokens": 5000000,
    "schedules.NAME.totalUsd": "20.00",
}  # fmt: skip


def settings_page() -> str:
    parts = [HEAD]
    for section, entries in groupby(catalogue(), key=lambda entry: _section(entry.key)):
        parts.append(f"\n## {section}\n\n")
        parts += [_item(entry) for entry in entries]
    return "".join(parts)


def _section(key: str) -> str:
    first, *rest = key.split(".")
    return f"{first}.{rest[0].removesuffix('[]')}" if first == "agents" else first


def _item(entry: ConfigKey) -> str:
    """Return one key as an item of a list: a table of five columns is wider than a page."""
    live = " ↻" if entry.is_live else ""
    kind = _BRIEF.sub("", types.in_words(entry.kind))
    name = re.split(r"[.\]]", entry.key)[-1]
    return (
        f"- **`{entry.key}`**{live}: {reason_of(entry.owner, entry.field)}\n"
        f"  Type: {kind}. Default: {_default(entry)}. Example: `{name}: {_json5(example(entry))}`\n"
    )


def _default(entry: ConfigKey) -> str:
    if entry.default is REQUIRED:
        return "required"
    shown = types.shown(entry.kind, entry.default)
    if shown is None or shown == "…":
        return "`null`" if isinstance(entry.kind, Maybe) else "empty"
    text = json.dumps(shown, ensure_ascii=False)
    return f"`{text}`" if len(text) <= CELL_CHARS_MAX else f"`{text[:CELL_CHARS_MAX]}…`"


def example(entry: ConfigKey) -> Any:
    """Return another value than the default, as it is written in the config."""
    for name in (entry.key, re.split(r"[.\]]", entry.key)[-1]):
        if name in EXAMPLES:
            return EXAMPLES[name]
    default = None if entry.default is REQUIRED else entry.default
    return _changed(entry.kind, default)


def _changed(kind: Kind, default: Any) -> Any:
    match kind:
        case Maybe(inner):
            return _changed(inner, default)
        case Plain.FLAG:
            return not default
        case OneOf(words):
            return next(word for word, value in words.items() if value != default)
        case Either(choice, _):
            return _changed(choice, default)
        case _:
            return types.shown(kind, default * 2)


def _json5(value: Any) -> str:
    """Return a value as people write it: names without quotes."""
    return re.sub(r'"(\w+)":', r"\1:", json.dumps(value, ensure_ascii=False))
