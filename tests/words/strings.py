"""Everything that people read, as strings with their place: texts of the product, its help, its page, and the pages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PRODUCT = "src/clutch"
PAGES = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "examples")
WEB = "src/clutch/surfaces/web"

# SQL, patterns and names are read by programs.
_SQL = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|WHERE|ORDER BY|CREATE|VALUES|AND [a-z.]+ [=<>])")
_COLUMNS = re.compile(r"[a-z_.]+(?:, [a-z_.]+)+,?")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`[^`\n]*`")
_JS_STRING = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`")
_TAG = re.compile(r"<[^>]*>")


class Text(NamedTuple):
    """A text that people read. `place` is its file and line."""

    place: str
    text: str


def product(root: Path = ROOT) -> Iterator[Text]:
    """Yield every literal, docstring and comment of the product that is prose."""
    for path in sorted((root / PRODUCT).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_prose(node.value):
                yield Text(f"{name}:{node.lineno}", _SPAN.sub("", node.value))
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield Text(f"{name}:{token.start[0]}", _SPAN.sub("", token.string))


def _is_prose(text: str) -> bool:
    return " " in text.strip() and not _SQL.search(text) and not _COLUMNS.fullmatch(text.strip())


def web(root: Path = ROOT) -> Iterator[Text]:
    """Yield the texts of the page: strings of its scripts, and what its HTML shows."""
    for path in sorted((root / WEB).rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix == ".js":
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                for found in _JS_STRING.findall(line.split("//")[0]):
                    yield Text(f"{name}:{number}", found)
        elif path.suffix == ".html":
            yield Text(name, _TAG.sub(" ", path.read_text(encoding="utf-8")))


def pages(root: Path = ROOT) -> Iterator[Text]:
    """Yield each line of prose of the pages; code blocks and names in code spans are read by programs."""
    for start in PAGES:
        below = root / start
        files = sorted(below.rglob("*.md")) if below.is_dir() else [below]
        for path in files:
            if path.exists():
                yield from _lines(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))


def _lines(name: str, text: str) -> Iterator[Text]:
    prose = _FENCED.sub(lambda found: "\n" * found.group().count("\n"), text)
    for number, line in enumerate(prose.splitlines(), 1):
        if not line.startswith(("    ", "\t")):
            yield Text(f"{name}:{number}", _SPAN.sub("", line))


def commands_help() -> Iterator[Text]:
    from tests.golden.contract import commands_help  # here, because it loads the product

    for number, line in enumerate(commands_help().splitlines(), 1):
        yield Text(f"help.txt:{number}", line)
