"""Directories of children that work in isolation, beneath one root, named by the task's number and nothing else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clutch.ports import WorkspaceFailed
from clutch.tools.isolation import IsolationFailed, isolated_workspace, remove_workspace
from clutch.tools.making import alone


class LocalWorkspaces:
    """`is_boxed`: tools see their workspace only. Without that, a directory of one's own isolates nobody."""

    def __init__(self, root: Path, *, is_boxed: bool) -> None:
        self._root, self._is_boxed = root, is_boxed

    def _place(self, task_id: int) -> Path:
        return self._root / str(task_id)

    def _mark(self, task_id: int) -> Path:
        """Written last: a directory without it was left half-made by a crash."""
        return self._root / f"{task_id}.made"

    async def make(self, task_id: int, source: str) -> str:
        if not self._is_boxed:
            raise WorkspaceFailed("workspace: isolated needs the sandbox, which is off here")
        try:
            await asyncio.to_thread(self._make, task_id, source)
        except (IsolationFailed, OSError) as error:
            raise WorkspaceFailed(f"workspace: {error}") from error
        return str(self._place(task_id))

    def _make(self, task_id: int, source: str) -> None:
        self._root.mkdir(0o700, parents=True, exist_ok=True)
        with self._alone(task_id):
            if self._mark(task_id).exists():
                return
            remove_workspace(str(self._place(task_id)))
            isolated_workspace(source, str(self._place(task_id)))
            self._mark(task_id).touch(0o600)
            self._lock(task_id).unlink(missing_ok=True)  # whoever waits for it finds the mark

    def _lock(self, task_id: int) -> Path:
        return self._root / f"{task_id}.making"

    @contextmanager
    def _alone(self, task_id: int) -> Iterator[None]:
        file = os.open(self._lock(task_id), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with alone(file):
                yield
        finally:
            os.close(file)

    async def kept(self) -> list[int]:
        return await asyncio.to_thread(self._kept)

    def _kept(self) -> list[int]:
        if not self._root.exists():
            return []
        return sorted(int(place.name) for place in self._root.iterdir() if place.name.isdecimal())

    async def remove(self, task_id: int) -> None:
        try:
            await asyncio.to_thread(self._remove, task_id)
        except IsolationFailed as error:
            raise WorkspaceFailed(f"workspace: {error}") from error

    def _remove(self, task_id: int) -> None:
        self._mark(task_id).unlink(missing_ok=True)
        self._lock(task_id).unlink(missing_ok=True)
        remove_workspace(str(self._place(task_id)))
