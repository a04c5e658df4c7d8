"""A small state directory as OpenClaw leaves it: a registry, a session index, transcripts."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

T = 1_760_000_000_000  #: milliseconds, as everywhere there
FLAT = "agent:main:subagent:0f3a1c7e-5b2d-4c8e-9a6f-1d2e3f4a5b6c"
MAIN = "agent:main:main"


def run(run_id: str, key: str, requester: str = MAIN, **more: Any) -> dict[str, Any]:
    asked = {
        "task": f"do {run_id}",
        "label": run_id,
        "cleanup": "keep",
        "createdAt": T,
        "startedAt": T + 1000,
    }
    return {"runId": run_id, "childSessionKey": key, "requesterSessionKey": requester, **asked, **more}


def ended(status: str = "ok", **more: Any) -> dict[str, Any]:
    return {"endedAt": T + 60_000, "outcome": {"status": status, **more}}


def said(role: str, text: str, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": [{"type": "text", "text": text}], "timestamp": T + 2000, **more}
    return {"type": "message", "id": "1", "message": message}


def calls(name: str, call_id: str, text: str = "") -> dict[str, Any]:
    content = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": text},
        {"type": "toolCall", "id": call_id, "name": name, "arguments": {"path": "a"}},
    ]
    usage = {"input": 10, "output": 5, "cacheRead": 3, "cacheWrite": 2, "cost": {"total": 0.01}}
    message = {"role": "assistant", "content": content, "usage": usage, "model": "m-1", "timestamp": T + 3000}
    return {"type": "message", "id": "2", "message": message}


def gave(call_id: str, text: str, *, is_error: bool = False) -> dict[str, Any]:
    return said("toolResult", text, toolCallId=call_id, toolName="read", isError=is_error)


def write(
    directory: Path,
    runs: list[dict[str, Any]],
    index: dict[str, Any] | None = None,
    transcripts: dict[str, list[dict[str, Any] | str]] | None = None,
    *,
    version: int = 2,
    agent: str = "main",
) -> Path:
    (directory / "subagents").mkdir(parents=True, exist_ok=True)
    sessions = directory / "agents" / agent / "sessions"
    sessions.mkdir(parents=True, exist_ok=True)
    registry = {"version": version, "runs": {one["runId"]: one for one in runs}}
    (directory / "subagents" / "runs.json").write_text(json.dumps(registry))
    (sessions / "sessions.json").write_text(json.dumps(index or {}))
    for name, lines in (transcripts or {}).items():
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        (sessions / f"{name}.jsonl").write_text(text + "\n")
    return directory


def write_table(directory: Path, ddl: str, rows: list[dict[str, Any]], *, version: int = 20) -> Path:
    """The registry as OpenClaw keeps it since 2026.6: a table in `state/openclaw.sqlite`, in WAL mode."""
    (directory / "state").mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(directory / "state" / "openclaw.sqlite")) as tables, tables:
        tables.execute("PRAGMA journal_mode=WAL")
        tables.execute(f"PRAGMA user_version={version}")
        tables.execute(f"CREATE TABLE subagent_runs ({ddl})")
        for row in rows:
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            tables.execute(f"INSERT INTO subagent_runs ({names}) VALUES ({marks})", [*row.values()])  # noqa: S608
    return directory


def fingerprint(directory: Path) -> dict[str, tuple[str, int, int]]:
    """Of every file: what it holds, its mode and when it was written."""
    return {
        str(path.relative_to(directory)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mode,
            path.stat().st_mtime_ns,
        )
        for path in sorted(directory.rglob("*"))
    }
