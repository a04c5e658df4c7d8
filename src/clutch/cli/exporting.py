"""`clutch export`: a task, a session or a whole tree, as JSON Lines for programs or as Markdown for people.

Lines of JSON say in `kind` what they are: `task`, `message`, `result`; each names its task, or its session. It leaves
the state directory, so what looks like a secret is taken out unless somebody asks for it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from clutch.cli import screen
from clutch.cli.asking import answering, say
from clutch.cli.reading import Source, source
from clutch.core.redaction import redact_all
from clutch.core.shown import plain_json
from clutch.errors import InvalidInput, NotFound
from clutch.surfaces.client import Declined

Object = dict[str, Any]
PAGE = 200


def export(
    state: Path | None,
    target: str,
    *,
    with_tree: bool,
    is_markdown: bool,
    output: Path | None,
    with_secrets: bool,
    as_json: bool,
) -> None:
    if as_json and is_markdown:
        raise InvalidInput("--json", "and --format markdown are two forms; choose one")
    with answering("export", as_json=as_json), source(state) as here:
        parts = _parts(here, target, with_tree=with_tree)
        first = next(parts)  # what there is not is said before a file is made
        with _opened(output) as out:
            for found in (first, *parts):
                part = found if with_secrets else redact_all(found)
                text = screen.plain(_markdown(part)) if is_markdown else _line(part)
                print(text, file=out)
        if output is not None:
            say(f"written: {output}")


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput("--output", f"{output} cannot be made: {error.strerror}") from error
    with os.fdopen(file, "w", encoding="utf-8") as out:
        yield out


def _parts(here: Source, target: str, *, with_tree: bool) -> Iterator[Object]:
    task = _task(here, target)
    if task is not None:
        yield from _of_task(here, task)
        if with_tree:
            for below in _below(here.tree(task["taskId"])["root"]["nodes"]):
                yield from _of_task(here, below)
        return
    messages = _messages(lambda after: here.session_transcript(target, after), {"sessionKey": target})
    first = next(messages, None)  # or there is no such session
    yield {"kind": "session", "sessionKey": target}
    yield from messages if first is None else (first, *messages)
    if with_tree:
        for one in _of_root(here, target):
            yield from _of_task(here, one)


def _task(here: Source, target: str) -> Object | None:
    """None: perhaps a main session, which is nobody's task."""
    try:
        return here.task(target)
    except NotFound:
        return None
    except Declined as error:
        if error.code != "not_found":
            raise
        return None


def _of_task(here: Source, task: Object) -> Iterator[Object]:
    name = {"taskId": task["taskId"]}
    yield {"kind": "task", **task}
    yield from _messages(lambda after: here.transcript(task["taskId"], after), name)
    if task["outcome"] is not None:
        yield {"kind": "result", **here.result(task["taskId"])}


def _messages(read: Callable[[int], Object], name: Object) -> Iterator[Object]:
    page: Object = {"next": 0}
    while page["next"] is not None:
        page = read(page["next"])
        for line in page["messages"]:
            yield {**name, **line, "role": line["kind"], "kind": "message"}


def _below(nodes: list[Object]) -> Iterator[Object]:
    for node in nodes:
        yield node["task"]
        yield from _below(node["nodes"])


def _of_root(here: Source, target: str) -> Iterator[Object]:
    """Everything below a main session, oldest first."""
    wanted = {"root": target, "phase": None, "recentMinutes": None, "undelivered": False, "limit": PAGE}
    page: Object = {"next": None}
    while True:
        page = here.tasks(**wanted, cursor=page["next"])
        yield from page["tasks"]
        if page["next"] is None:
            return


def _line(part: Object) -> str:
    return plain_json(json.dumps({"schema": "clutch.export/1", "ok": True, **part}, ensure_ascii=False))


def _markdown(part: Object) -> str:
    match part["kind"]:
        case "session":
            return f"# {part['sessionKey']}\n"
        case "task":
            about = screen.one_line(part, screen.now())
            return f"\n# {part['label']}\n\n{about}\n"
        case "result":
            return f"\n**Result** ({part['outcome']})\n\n{part['text'] or ''}\n"
        case _:
            return f"- {screen.log_line({**part, 'kind': part['role']})}"
