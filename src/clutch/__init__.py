"""Durable background subagents for Python. Importing this package has no side effects.

The public names are loaded when first used: a program that only asks for the version loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clutch.gateway.api import Task, TaskResult
    from clutch.wiring import Clutch

__all__ = ["Clutch", "Task", "TaskResult", "__version__"]

__version__ = "0.1.0"

_HOMES = {"Clutch": "clutch.wiring", "Task": "clutch.gateway.api", "TaskResult": "clutch.gateway.api"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
