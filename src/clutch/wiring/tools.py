"""What agents work with: the rooms of the built-in tools, and what this machine has to wall them off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from clutch.core.policy import Policy
from clutch.ports import Toolbox, ToolFailed
from clutch.tools.rooms import ToolRooms, ToolSettings
from clutch.tools.sandbox.box import Sandbox
from clutch.tools.sandbox.probe import walls


@asynccontextmanager
async def standard_toolbox(policy: Policy, state: Path, *, boxed: bool = True) -> AsyncIterator[Toolbox]:
    """The built-in tools, closed at the end."""
    rooms = ToolRooms(policy.limits, ToolSettings(sandbox=Sandbox.ON if boxed else Sandbox.OFF), state)
    try:
        yield rooms
    finally:
        await rooms.close()


@dataclass(frozen=True, slots=True)
class SandboxOffer:
    is_ok: bool
    detail: str
    remedy: str | None


def sandbox_offer() -> SandboxOffer:
    """What this machine has to wall off commands and file tools. Starts a process."""
    try:
        return SandboxOffer(True, f"{walls(Sandbox.ON, for_shell=True)} holds commands and file tools", None)
    except ToolFailed as error:
        detail, _, remedy = str(error).partition(". ")
        return SandboxOffer(False, detail, remedy)


def can_box_files() -> bool:
    """Whether this machine has anything that can wall off the file tools."""
    try:
        walls(Sandbox.ON, for_shell=False)
    except ToolFailed:
        return False
    return True
