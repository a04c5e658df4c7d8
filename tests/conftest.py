"""Rules for every test: asyncio behind anyio, repeatable Hypothesis runs, and no silent skips in CI.

It knows nothing of Clutch itself; fixtures that do live beside the tests that use them.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.examples import scaled
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# A shell that starts the tests in the background lets them ignore Ctrl-C, and their processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("CLUTCH_NO_START", "1")  # no test leaves a gateway behind that it did not mean to start

IN_MEMORY = "/dev/shm"  # noqa: S108 - a private folder is made below it
IN_CI = os.environ.get("CI") == "true"

# A deadline per example would measure the machine, not the code. `make trust` runs four times as many examples.
settings.register_profile("local", deadline=None, max_examples=scaled(100))
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if IN_CI else "local")

POSTGRES_FIXTURES = {"own_server", "postgres_server", "shared_postgres"}


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """Four workers for two cores: tests wait for processes, browsers and timers during half of their time."""
    return max(2, (os.cpu_count() or 2) * 2)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without collecting garbage, and never look at them again: all of them live until the end.

    Every worker of pytest-xdist imports all modules. A third of that time went into searching them for garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test that needs a PostgreSQL server, so that `make test-fast` can leave it out.

    A worker of pytest-xdist takes whole files (`--dist loadfile`), the slowest first: so none is idle at the end.
    """
    if hasattr(config, "workerinput"):
        cost: Counter[Path] = Counter()
        for item in items:
            cost[item.path] += sum(map(seconds, item.iter_markers("slow")))
        items.sort(key=lambda item: -cost[item.path])  # stable: a file stays in one piece
    for item in items:
        callspec = getattr(item, "callspec", None)
        parameters = callspec.params.values() if callspec else ()
        if "postgres" in parameters or POSTGRES_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("postgres")


def seconds(slow: pytest.Mark) -> int:
    found: int = slow.args[0] if slow.args else 2
    return found


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_REQUESTS = (
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start the Chromium of the machine. It ends with the module: its event loop would disturb asynchronous tests."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(
        timeout=PATIENCE_S * 1000
    )  # five seconds, its default, is not enough on a busy machine
    if CHROMIUM is None:
        pytest.skip("no Chromium here; Debian, Ubuntu: apt install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, chromium_sandbox=os.geteuid() != 0, args=list(NO_REQUESTS)
        )
        yield started
        started.close()


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder for a database, in memory where the system has such a file system.

    On a disk a test of transactions spends most of its time in fsync, and no test cuts the power. The sandbox hides
    /dev/shm by itself, so tests of the sandbox must not use this folder.
    """
    if not os.access(IN_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test writes in the home directory of the developer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state-home")))
        yield


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
