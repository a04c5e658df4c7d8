"""External agents as children: a real process that speaks ACP, under the real engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clutch.runtimes.acp import AcpAgent, AcpRuntime
from clutch.testing.runtimes import CHECKS, Check
from clutch.tools.sandbox.programs import BoxedPrograms

pytestmark = pytest.mark.anyio

AGENT = Path(__file__).with_name("acp_agent.py")


def agent(*args: str, **settings: object) -> AcpAgent:
    known: dict[str, object] = {"command": sys.executable, "args": (str(AGENT), *args), **settings}
    return AcpAgent(name="tested", **known)  # type: ignore[arg-type]


def runtime(home: Path, *args: str, **settings: object) -> AcpRuntime:
    return AcpRuntime(agent(*args, **settings), home, BoxedPrograms())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_external_agent_conforms(check: Check, tmp_path: Path) -> None:
    await check(lambda: runtime(tmp_path))
