"""`clutch export --format html`: a task with its subagents, or all tasks of a session, as a page to click through."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from clutch import __version__
from clutch.api.views import moment
from clutch.cli.source import Source, messages
from clutch.core.redaction import redact_all
from clutch.errors import InvalidInput

# --------------------------------------------------------------------------------------------------
# The dashboard as one file with its data inside: `clutch export --format html`.
#
# The page's own modules become one script, in the order in which they need each other, each in a function of its own.
# The file has no address to load anything from: its content policy allows that one script and that one style sheet,
# by their hashes, and nothing else. The data is JSON in an element that no browser runs; `<` is escaped in it, so
# that no text of an agent can end the element.

ENTRY = "/web/offline/main.js"
#: Modules that are another one in an export, and one whose exports take the place of those of the same name.
REPLACED = {"/web/connection.js": "/web/offline/connection.js"}
EXTENDED = {"/web/api.js": "/web/offline/api.js"}

_IMPORT = re.compile(r'^import (?:\{([^}]*)\}|\* as (\w+)) from "([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*?|const|class) (\w+)", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
_LINK = re.compile(r'\s*<link rel="([a-z -]+)"[^>]*?href="([^"]*)"[^>]*>')
_SCRIPT = re.compile(r"\s*<script\b[^>]*></script>")


class Module(NamedTuple):
    needs: tuple[str, ...]
    names: tuple[str, ...]  #: its exports
    body: str  #: as the body of a function


def page_file(data: Mapping[str, Any], title: str) -> str:
    """Return the file. `data`: what `offline/api.js` answers from."""
    sheets, page = _page()
    style = "\n".join(_read(path) for path in (*sheets, "/web/offline/offline.css"))
    script = bundle(ENTRY)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}';"
        " base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta charset="utf-8">\n    <meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"\n    <title>{html.escape(title)}</title>\n    <style>{style}</style>"
    )
    inside = f'<script type="application/json" id="clutch-data">{embedded(data)}</script>'
    page = re.sub(r"<title>.*?</title>", "", page)
    return page.replace('<meta charset="utf-8">', head, 1).replace(
        "</body>", f'{inside}\n    <script type="module">{script}</script>\n  </body>', 1
    )


def embedded(data: Mapping[str, Any]) -> str:
    """Return JSON that can stand in an element: it neither ends it nor begins a comment, and a line is a line."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    # A surrogate without its other half, which a model can write, has no encoding.
    text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return re.sub("[<>&\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", text)


@cache
def bundle(entry: str) -> str:
    """Return the modules that `entry` needs, and itself, as one script."""
    done: dict[str, Module] = {}
    parts = ["const modules = {};"]

    def add(path: str) -> None:
        source = REPLACED.get(path, path)
        if path in done:
            return
        made = done[path] = module(source, _read(source))
        for needed in made.needs:
            add(needed)
        parts.append(f"modules[{json.dumps(path)}] = {_function(made)};")
        if path in EXTENDED:
            over = module(EXTENDED[path], _read(EXTENDED[path]))
            parts.append(
                f"modules[{json.dumps(path)}] = {{ ...modules[{json.dumps(path)}], ...{_function(over)} }};"
            )
            done[path] = made._replace(names=(*made.names, *over.names))

    add(entry)
    script = "\n".join(parts)
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError("a module of the page contains the end of a script element; write it in two parts")
    return script


def module(path: str, text: str) -> Module:
    """Take a module apart. Raises ValueError for a form of import or export that an export cannot have."""
    needs: list[str] = []

    def imported(found: re.Match[str]) -> str:
        names, whole, needed = found[1], found[2], found[3]
        needs.append(needed)
        wanted = whole or "{ " + re.sub(r"\s+as\s+", ": ", (names or "").strip().rstrip(",")) + " }"
        return f"const {wanted} = modules[{json.dumps(needed)}];"

    names = tuple(found[2] for found in _EXPORT.finditer(text))
    body = _EXPORT.sub(r"\1 \2", _IMPORT.sub(imported, text))
    left = _LEFT.search(body)
    if left:
        raise ValueError(
            f"{path}: {left[0][:80]!r} cannot be exported: use `import {{ … }}` and `export const`"
        )
    return Module(tuple(needs), names, body)


def _function(made: Module) -> str:
    return f"await (async () => {{\n{made.body}\nreturn {{ {', '.join(made.names)} }};\n}})()"


def _page() -> tuple[list[str], str]:
    """Return the style sheets of the page, and the page without anything that it would load."""
    page = _read("/web/page.html")
    sheets = [found[2] for found in _LINK.finditer(page) if found[1] == "stylesheet"]
    page = _SCRIPT.sub("", _LINK.sub("", page)).replace('href="/"', 'href="#"')
    return sheets, page


def _read(path: str) -> str:
    found = resources.files("clutch.surfaces.web")
    for name in path.removeprefix("/web/").split("/"):
        found = found.joinpath(name)
    return found.read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


Object = dict[str, Any]


def gathered(here: Source, tops: Iterable[Object], title: str) -> Object:
    """Return what the page shows: of each task below `tops` its transcript, its result and why it is in its state."""
    timelines: dict[str, Object] = {}
    tasks: dict[str, Object] = {}
    for top in tops:
        found = here.timeline(top["taskId"])
        timelines[found["root"]] = found
        for lane in found["lanes"]:
            tasks[lane["task"]["taskId"]] = {**_about(here, lane["task"]), "root": found["root"]}
    now = moment(datetime.now(UTC).timestamp())
    return {"exportedAt": now, "version": __version__, "title": title, "timelines": timelines, "tasks": tasks}


def _about(here: Source, task: Object) -> Object:
    name = task["taskId"]
    why = here.why(name)
    if why["stuck"]:
        # The command names the state directory, and there is no gateway to run it on.
        why = {**why, "text": "", "stuck": {**why["stuck"], "command": None}}
    return {
        "transcript": list(messages(lambda after: here.transcript(name, after))),
        "result": here.result(name) if task["outcome"] is not None else None,
        "why": why,
    }


def write(data: Object, output: Path, *, with_secrets: bool) -> int:
    """Write the page to a new file that only its owner can read, and return its size. A reader finds all of it."""
    shown = data if with_secrets else redact_all(data)
    content = page_file(shown, f"Clutch: {shown['title']}").encode()
    fresh = output.with_name(f".{output.name}.{secrets.token_hex(4)}")
    try:
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(file)
        # A link fails if there is such a file; a rename would replace it.
        os.link(fresh, output)
    except OSError as error:
        raise InvalidInput(
            "--output", f"{output} cannot be created: {error.strerror}; name a new file"
        ) from error
    finally:
        with suppress(OSError):
            fresh.unlink()
    return len(content)
