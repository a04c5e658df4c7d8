"""Where a path of an agent leads: into its workspace, or to the files of a task.

A call that names `/task/…` or `/tasks/…` runs with that side of the task as its root, so the guards of `workspace`
hold there as anywhere. Who may read whose files was decided before: `ToolContext.reached`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from clutch.core.attachments import Side, task_path
from clutch.ports import ToolContext, ToolFailed

WRITING = frozenset(("write", "edit"))


async def found(name: str, args: Mapping[str, Any], context: ToolContext) -> tuple[Mapping[str, Any], str]:
    """The arguments of a file tool, and the directory that its path is beneath. Raises ToolFailed, InvalidInput."""
    named = task_path(args.get("path"))
    if named is None:
        return args, context.workspace
    directory = context.files if named.task_id is None else context.reached
    if directory is None:
        raise ToolFailed("path: only a task has files of its own here")
    if name in WRITING:
        if named.task_id is not None or named.side is not Side.OUT:
            raise ToolFailed("path: only /task/out can be written; what was given is there to be read")
        await asyncio.to_thread(made, directory, Side.OUT)
    root = f"{directory}/{named.side}"
    if not await asyncio.to_thread(_is_folder, root):
        raise ToolFailed(f"path: there are no files in {_shown(args)}")
    return {**args, "path": named.path}, root


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _shown(args: Mapping[str, Any]) -> str:
    return "/".join(str(args["path"]).split("/")[:4])[:80]


def made(directory: str, side: Side) -> str:
    """The side of a task, for the first file in it. Blocks."""
    path = Path(directory)
    for folder in (path.parent, path, path / side):
        with suppress(FileExistsError):
            folder.mkdir(0o700)
    return str(path / side)
