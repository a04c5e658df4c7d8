"""The page `docs/reference/python.md`, made from signatures and docstrings. `tests.docs.reference` writes it."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any

import clutch
import clutch.sync
from clutch.config.explain import reason_of
from clutch.errors import ClutchError
from tests.golden.api import default_text, names, plain, signature

HEAD = """\
Every public name of the package `clutch`. [Use Clutch in a program](../how-to/embed.md) shows them at work, and
[Settings](settings.md) has the same fields as keys of `clutch.json`.
"""
#: What a reader looks for first; every other public name follows, and errors have a page of their own.
FIRST = {
    "Programs": ("Clutch", "Task", "TaskResult", "KillResult", "Event", "Question", "gather", "as_completed"),
    "Extensions": ("ToolContext", "ToolSettings", "RuntimeJob", "Call", "Answer", "Verdict", "Usage", "Webhook",
                   "McpServer", "AcpAgent", "Provider"),
}  # fmt: skip
SYNC = """\
## clutch.sync

`clutch.sync.Clutch` has the same methods without `await`, for scripts and notebooks
([examples](../how-to/embed.md#scripts-and-notebooks)). Only these differ:
"""
_NAMED = re.compile(r"^((?:\w+, )*\w+): (.*)")


def python_page() -> list[str]:
    listed = {name for group in FIRST.values() for name in group}
    public = {name: getattr(clutch, name) for name in clutch.__all__}
    rest = [
        name
        for name, value in sorted(public.items())
        if name not in listed and inspect.isclass(value) and not issubclass(value, ClutchError)
    ]
    lines = ["# Python", "", HEAD]
    for title, group in {**FIRST, "Policy and agents": tuple(rest)}.items():
        lines += [f"## {title}", ""]
        for name in group:
            lines += _entry(name, public[name])
    return [*lines, SYNC, *_only_in_sync(), "", "## Errors", "", "See [Errors](errors.md#in-python)."]


def _entry(name: str, value: Any) -> Iterator[str]:
    yield from (f"### {name}", "")
    if not inspect.isclass(value):
        yield from _function(name, value)
    elif issubclass(value, enum.Enum):
        yield from _text(_own_doc(value))
        yield from ("| Value | Meaning |", "|---|---|")
        yield from (
            f"| `{one.value if isinstance(one.value, str) else one}` | {reason_of(value, one.name)} |"
            for one in value
        )
        yield ""
    elif dataclasses.is_dataclass(value):
        yield from _text(_own_doc(value))
        yield from _fields(value)
        yield from _methods(value)
    else:
        yield from _function(name, value)
        yield from _methods(value)


def _own_doc(kind: type) -> str:
    """Return the docstring that the class itself has: those made by `dataclass` and `enum` say nothing."""
    doc = vars(kind).get("__doc__") or ""
    return "" if doc.startswith(f"{kind.__name__}(") else inspect.cleandoc(doc)


def _function(name: str, value: Any) -> Iterator[str]:
    """Yield the signature and the docstring of a function, or of a class and its constructor."""
    made = value.__init__ if inspect.isclass(value) else value
    if inspect.isfunction(made) or inspect.ismethod(made):
        word = "async " if inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value) else ""
        shown = signature(made).replace("\n        ", "\n    ").replace("\n    )", "\n)")
        shown = shown.removesuffix(" -> None") if inspect.isclass(value) else shown
        shown = _shortened(shown) if name in ("check_spawn", "map") else shown
        yield from ("```text", f"{word}{name}{shown}", "```", "")
    yield from _text(inspect.getdoc(value) or "")


def _shortened(shown: str) -> str:
    """Return a signature without the parameters that `spawn` has too: they are listed once."""
    known = set(signature(clutch.Clutch.spawn).splitlines())
    kept = {"    prompt: str,", "    *,"}
    lines = [line for line in shown.splitlines() if f"    {line}" not in known or line in kept]
    at = next((place for place, line in enumerate(lines) if line.startswith(")")), 0)
    return "\n".join([*lines[:at], "    …  # and the parameters of spawn", *lines[at:]])


def _text(doc: str) -> Iterator[str]:
    """Yield a docstring as Markdown: a line `name: meaning` becomes an item of a list."""
    for paragraph in re.split(r"\n\s*\n", doc):
        lines: list[str] = []
        for line in paragraph.splitlines():
            if (found := _NAMED.match(line)) is not None:
                lines.append(f"- {', '.join(f'`{one}`' for one in found[1].split(', '))}: {found[2]}")
            elif lines:
                lines[-1] += f" {line.strip()}"
            else:
                lines.append(line.strip())
        at = next((place for place, line in enumerate(lines) if line.startswith("- ")), len(lines))
        yield from (*lines[:at], *([""] if 0 < at < len(lines) else []), *lines[at:], "")


def _fields(kind: Any) -> Iterator[str]:
    yield from ("| Field | Type | Default | Meaning |", "|---|---|---|---|")
    for one in dataclasses.fields(kind):
        if one.init and not one.name.startswith("_"):
            note = plain(one.type).replace("|", "\\|")
            yield f"| `{one.name}` | `{note}` | {_default(one)} | {reason_of(kind, one.name).replace('|', '&#124;')} |"
    yield ""


def _default(one: Any) -> str:
    if one.default is not dataclasses.MISSING:
        text = default_text(one.default)
        return f"`{text[:60]}…`" if len(text) > 60 else f"`{text}`"
    return "required" if one.default_factory is dataclasses.MISSING else ""


def _methods(kind: type) -> Iterator[str]:
    for name in dict.fromkeys(names(kind)):
        value = inspect.getattr_static(kind, name, None)
        is_method = isinstance(value, classmethod | staticmethod) or inspect.isfunction(value)
        if is_method and not name.startswith("_") and inspect.getdoc(getattr(kind, name)):
            yield from (f"#### {kind.__name__}.{name}", "")
            yield from _function(name, getattr(kind, name))


def _only_in_sync() -> Iterator[str]:
    for kind, twin in ((clutch.sync.Clutch, clutch.Clutch), (clutch.sync.Task, clutch.Task)):
        for name in dict.fromkeys(names(kind)):
            value = inspect.getattr_static(kind, name, None)
            doc = inspect.getdoc(value) if inspect.isfunction(value) and not hasattr(twin, name) else None
            if doc and not name.startswith("_"):
                yield f"- `{kind.__name__}.{name}{signature(value)}`: {' '.join(doc.split())}"
