"""What users need to test their own agents, and what the project's own trust tests run on.

`FakeClock`, `ScriptedModel`, `RecordingChannel` and `CrashAt` are small real things for tests of your own.
`simulate(seed)` runs the real engine in virtual time with faults; `python -m clutch.testing --help` has the rest.
"""

from __future__ import annotations

from clutch.testing.channels import RecordingChannel
from clutch.testing.clock import FakeClock
from clutch.testing.crash import CrashAt
from clutch.testing.models import ScriptedModel

__all__ = ["CrashAt", "FakeClock", "RecordingChannel", "ScriptedModel", "simulate"]


def __getattr__(name: str) -> object:
    """The simulation knows the whole product; who wants only a clock need not wait for it."""
    if name == "simulate":
        from clutch.testing.simulation.world import simulate

        return simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
