"""The floor of `w1`: the same calls, the same tools, one durable append per step, and nothing else.

A plain streaming client on aiohttp and one SQLite table. Nothing can be resumed, steered, listed or limited.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import apsw

from benchmarks import w_job
from benchmarks.floor import SqliteWriter

_TABLE: Final = (
    "CREATE TABLE steps(session TEXT, seq INTEGER, body TEXT, PRIMARY KEY(session, seq)) WITHOUT ROWID"
)
_APPEND: Final = "INSERT INTO steps(session, seq, body) VALUES(?, ?, ?)"
_SYSTEM: Final = (
    "You are one of many workers. Do what you are asked with the tools you have, then answer briefly."
)


def _tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    schema = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": schema, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


_TOOLS: Final = [
    _tool("look_up", "What is known of an item.", item="integer"),
    _tool("record", "Keep a note on an item.", item="integer", text="string"),
]


def make_table(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    connection.execute(_TABLE)
    connection.close()


class Floor:
    def __init__(
        self, session: aiohttp.ClientSession, url: str, writer: SqliteWriter, work: w_job.Work
    ) -> None:
        self._session, self._url, self._writer, self._work = session, f"{url}/chat/completions", writer, work

    async def fan_out(self, name: str, count: int) -> str:
        messages = [_said("system", _SYSTEM), _said("user", w_job.fan_out(count))]
        answer = await self._ask(f"{name}:parent", messages)
        tasks = [json.loads(call["function"]["arguments"]).get("task") for call in answer["tool_calls"]]
        async with asyncio.TaskGroup() as group:
            children = [
                group.create_task(self._child(f"{name}:{number}", task))
                for number, task in enumerate(tasks)
                if task
            ]
        for call, child in zip(answer["tool_calls"], children, strict=False):
            messages.append(_result(call, child.result()))
        return str((await self._ask(f"{name}:parent", messages))["content"])

    async def _child(self, name: str, task: str) -> str:
        messages = [_said("system", _SYSTEM), _said("user", task)]
        while True:
            answer = await self._ask(name, messages)
            if not answer["tool_calls"]:
                return str(answer["content"])
            for call in answer["tool_calls"]:
                function = call["function"]
                text = self._work.run(function["name"], json.loads(function["arguments"]))
                messages.append(_result(call, text))
            await self._append(name, messages)

    async def _append(self, name: str, messages: Sequence[Mapping[str, Any]]) -> None:
        await self._writer.write([(_APPEND, (name, len(messages), json.dumps(messages[-1])))])

    async def _ask(self, name: str, messages: list[Mapping[str, Any]]) -> dict[str, Any]:
        body = {"model": w_job.MODEL, "messages": messages, "tools": _TOOLS, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        headers = {"Idempotency-Key": f"{name}:{len(messages)}"}
        answer: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
        async with self._session.post(self._url, json=body, headers=headers) as response:
            response.raise_for_status()
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        _take(json.loads(line[6:]), answer)
        messages.append(answer)
        await self._append(name, messages)
        return answer


def _said(role: str, content: str) -> Mapping[str, Any]:
    return {"role": role, "content": content}


def _result(call: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def _take(event: Mapping[str, Any], answer: dict[str, Any]) -> None:
    for choice in event["choices"]:
        delta = choice["delta"]
        if text := delta.get("content"):
            answer["content"] += text
        for piece in delta.get("tool_calls", ()):
            if "id" in piece:
                answer["tool_calls"].append(piece)
            else:
                known = answer["tool_calls"][piece["index"]]["function"]
                known["arguments"] += piece["function"]["arguments"]


def client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
