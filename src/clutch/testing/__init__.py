"""What users need to test their own agents.

`FakeClock`, `ScriptedModel`, `RecordingChannel` and `CrashAt` are small implementations for tests of your own.
`simulate(seed)` runs the real engine in virtual time with faults; `python -m clutch.testing replay` prints its log.
"""

from __future__ import annotations

from clutch.testing.channels import RecordingChannel
from clutch.testing.clock import FakeClock
from clutch.testing.crash import CrashAt
from clutch.testing.models import ScriptedModel, prompt_of, results_of

__all__ = ["CrashAt", "FakeClock", "RecordingChannel", "ScriptedModel", "prompt_of", "results_of", "simulate"]


def __getattr__(name: str) -> object:
    """Load the simulation on first use: it imports the whole product, which a test with a clock does not need."""
    if name == "simulate":
        from clutch.testing.simulation.world import simulate

        return simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
