"""The page `docs/reference/http.md`, made from the OpenAPI document. `tests.docs.reference` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from clutch.surfaces.http.app import ENTRIES
from clutch.surfaces.http.routes import document

HEAD = """\
The gateway serves HTTP on loopback. Its address is `url` in `gateway.json` of the state directory, its token is in
the file `token` ([Run the gateway](../operate/gateway.md)):

```sh
curl -H "Authorization: Bearer $(cat state/token)" http://127.0.0.1:8080/v1/tasks
```

- **Try it**: `clutch open` signs your browser in; then open `/v1/docs` at the same address to fill in and send
  requests.
- **Machine-readable**: `GET /v1/openapi.json` (OpenAPI 3.1).
- **Scopes**: a token has the scopes `read`, `write`, `approve` and `admin`, or fewer. Each operation names the one it
  needs.
- **Bodies** are JSON with `Content-Type: application/json`. An unknown field is an error.
- **Errors** are `{"error": {"code", "message", "field"?, "rule"?, "remedy"?, "candidates"?}}` ([Errors](errors.md)).
- **Idempotency**: a write with the header `Idempotency-Key` is done once. The same key and body get the same answer
  for a day, with the header `Idempotent-Replay: true`; another body gets a 409. An error is not stored. A key belongs
  to the token and the `Clutch-Session` that used it.
- **Sessions**: with the header `Clutch-Session: agent:main:chat:NAME` a caller acts as that session and sees only
  what is below it.
- A `{target}` is a task id, a label, a unique beginning of either, a session key, a run id, or `last`.
"""
GROUPS = {
    "tasks": "Tasks",
    "sessions": "Sessions",
    "threads": "Sessions",
    "inbox": "Inbox",
    "messages": "Messages to channels",
    "events": "Events",
    "models": "OpenAI-compatible",
    "chat": "OpenAI-compatible",
    "browser": "Browser",
}
REST = "Gateway"

Json = Mapping[str, Any]


def http_page() -> list[str]:
    made = document(ENTRIES)
    operations = [
        (path, method, operation) for path, one in made["paths"].items() for method, operation in one.items()
    ]
    order = [*dict.fromkeys(GROUPS.values()), REST]
    operations.sort(key=lambda one: order.index(_group(one[0])))
    lines = ["# HTTP", "", HEAD]
    for title, group in groupby(operations, key=lambda one: _group(one[0])):
        lines += [f"## {title}", ""]
        for path, method, operation in group:
            lines += _operation(path, method, operation, made["components"]["schemas"])
    return lines


def _group(path: str) -> str:
    return GROUPS.get(path.split("/")[2] if path.startswith("/v1/") else "", REST)


def _operation(path: str, method: str, operation: Json, schemas: Json) -> Iterator[str]:
    said, _, _ = operation["description"].rpartition(" Scope: ")
    yield from (f"### {method.upper()} {path}", "", f"{said} Scope: `{operation['x-scope']}`.", "")
    rows = [
        _row(one["name"], one["schema"], one["in"], one.get("description", ""))
        for one in operation["parameters"]
    ]
    rows = [row for row in rows if not row.startswith(("| `Idempotency-Key`", "| `target`"))]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    found = _resolved(body, schemas)
    needed = found.get("required", ())
    for name, one in found.get("properties", {}).items():
        place = "body, required" if name in needed else "body"
        rows.append(_row(name, one, place, one.get("description", "")))
    if rows:
        yield from ("| Name | In | Type | Default | Meaning |", "|---|---|---|---|---|", *rows, "")
    yield from _answer(operation, schemas)


def _row(name: str, schema: Json, place: str, meaning: str) -> str:
    default = schema.get("default")
    shown = "" if default is None or len(json.dumps(default)) > 40 else f"`{json.dumps(default)}`"
    return f"| `{name}` | {place} | {_type(schema)} | {shown} | {meaning.replace('|', '&#124;')} |"


def _type(schema: Json) -> str:
    if "enum" in schema:
        return " ".join(f"`{one}`" for one in schema["enum"] if one is not None)
    if "const" in schema:
        return f"`{schema['const']}`"
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if kinds := schema.get("anyOf"):
        return " or ".join(_type(one) for one in kinds if one.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _resolved(schema: Json, schemas: Json) -> Json:
    return schemas.get(schema["$ref"].rpartition("/")[2], {}) if "$ref" in schema else schema


def _answer(operation: Json, schemas: Json) -> Iterator[str]:
    status = next(iter(operation["responses"]))
    ((media, content),) = operation["responses"][status]["content"].items()
    fields = ", ".join(f"`{name}`" for name in _resolved(content["schema"], schemas).get("properties", {}))
    yield from (f"Answers {status} with {fields or f'`{media}`'}.", "")
