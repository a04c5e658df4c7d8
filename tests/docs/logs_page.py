"""The page `docs/reference/logs.md`: every message that the product logs, read from the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "src/clutch"
LEVELS = {
    "debug": "DEBUG",
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "exception": "ERROR",
    "critical": "CRITICAL",
}
HEAD = """\
# Log messages

Written from the code by `python -m tests.docs.reference`; do not edit.

Every message of Clutch, for filters and alerts. A logger is named after its module, so `clutch` is the parent of all.
`…` stands for a value. Logger, level and the fixed words of a message change only with an entry in `CHANGELOG.md`.
What looks like a secret is replaced by `[redacted]` before any handler gets the record. Prompts and results are not
logged, but errors of providers and tools are, with their text.

`clutch serve` writes one line per record to stderr, from level WARNING; under systemd with the priority of the level. A
gateway in the background writes from level INFO to `gateway.log` in the state directory. Messages with † have a
traceback, in the same line.

| Level | Logger | Message |
|---|---|---|
"""


class Message(NamedTuple):
    logger: str
    level: str
    text: str
    has_traceback: bool


def messages() -> list[Message]:
    found = [one for path in sorted(PACKAGE.rglob("*.py")) for one in _of_file(path)]
    return sorted({one for one in found if not one.logger.startswith("clutch.testing")})


def _of_file(path: Path) -> Iterator[Message]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    name = module
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "logger":
            (given,) = node.args
            name = given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else module
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(ast.Name("log"), level), [ast.Constant(str(text)), *_]) if (
                level in LEVELS
            ):
                has_traceback = level == "exception" or any(one.arg == "exc_info" for one in node.keywords)
                yield Message(name, LEVELS[level], _shown(text), has_traceback)
            case ast.Call(ast.Attribute(ast.Name("log"), level)) if level in LEVELS:
                raise AssertionError(f"{path}:{node.lineno}: the message is not a constant text")


def _shown(text: str) -> str:
    return re.sub(r"%(\.\d+)?[a-z]", "…", text)


def logs_page() -> str:
    return HEAD + "".join(
        f"| {one.level} | `{one.logger}` | {one.text}{' †' if one.has_traceback else ''} |\n"
        for one in messages()
    )
