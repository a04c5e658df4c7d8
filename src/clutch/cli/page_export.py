"""`clutch export --format html`: a task with its subagents, or all tasks of a session, as a page to click through."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clutch import __version__
from clutch.api.views import moment
from clutch.cli.source import Source, messages
from clutch.core.redaction import redact_all
from clutch.errors import InvalidInput
from clutch.surfaces.page_file import page_file

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
