"""Rules for every test: asyncio behind anyio, repeatable Hypothesis runs, and no silent skips in CI.

It knows nothing of Clutch itself; fixtures that do live beside the tests that use them.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

os.environ.setdefault("CLUTCH_NO_START", "1")  # no test leaves a gateway behind that it did not mean to start

IN_CI = os.environ.get("CI") == "true"

# A deadline per example would measure the machine, not the code.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if IN_CI else "local")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The engine runs on asyncio only; session scope lets fixtures of every scope be async."""
    return "asyncio"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test is a promise nobody checked, so the whole run fails.

    Under xdist only the controller has a terminal reporter, and it has the reports of all workers.
    """
    if skipped_in_ci(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = skipped_in_ci(config)
    if not skipped:
        return
    terminalreporter.section(f"{len(skipped)} SKIPPED: a failure when CI=true", red=True, bold=True)
    for line in skipped:
        terminalreporter.line(line, red=True)


def skipped_in_ci(config: pytest.Config) -> list[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not IN_CI or reporter is None:
        return []
    return sorted(f"{report.nodeid}: {reason_of(report)}" for report in reporter.getreports("skipped"))


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """A skip is reported as (file, line, reason); anything else speaks for itself."""
    match report.longrepr:
        case (_, _, str(reason)):
            return reason.removeprefix("Skipped: ")
        case other:
            return str(other)
