"""Whoever waits for a task does not lose it with the gateway: it is found again, and the wait goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer

from clutch.cli import source
from clutch.cli.source import resumable
from clutch.surfaces import discovery
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, served
from tests.surfaces.test_http_tasks import seen, spawned
from tests.surfaces.typed import typed


@contextmanager
def restarted(home: Path) -> Iterator[str]:
    """A gateway that goes when somebody asks about its task, and another that ends it."""
    is_up, is_over, task = threading.Event(), threading.Event(), ""

    def restart() -> None:
        nonlocal task
        with served(home, policy=FAST) as here:
            task = spawned(here.client, "slow one", idempotencyKey="one")
            seen(here.client, task, lambda one: one["phase"] == "running")
            is_up.set()
            threading.Event().wait(0.5)
        with served(home, policy=FAST) as here:
            here.let_go()
            assert is_over.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as pool:
        restarting = pool.submit(restart)
        assert is_up.wait(PATIENCE_S)
        try:
            yield task
        finally:
            is_over.set()
            restarting.result(PATIENCE_S)


def test_a_wait_goes_on_at_the_gateway_that_comes_back(tmp_path: Path) -> None:
    with restarted(tmp_path / "state") as task:
        done = typed("run", "slow one", "--wait", "--key", "one", state=tmp_path / "state")
    assert (done.code, task in done.err, done.out.startswith("heard: ")) == (0, True, True)
    assert done.err.index("reconnecting") < done.err.index("Reconnected")


def test_a_log_goes_on_after_the_last_line_that_was_printed(tmp_path: Path) -> None:
    with restarted(tmp_path / "state") as task:
        done = typed("logs", "-f", task, state=tmp_path / "state")
    assert (done.code, done.out.count("> task:"), done.out.count("heard: ")) == (0, 1, 1)
    assert "Reconnected" in done.err


def test_a_log_of_what_nobody_works_on_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUTCH_NO_START", "1")
    with served(tmp_path / "state", policy=FAST) as here:
        task = spawned(here.client, "slow one")
    done = typed("logs", "-f", task, state=tmp_path / "state")
    assert (done.code, "clutch serve" in done.err) == (9, True)


def test_one_that_does_not_come_back_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "AWAY_S", 0.0)
    with restarted(tmp_path / "state") as task:
        done = typed("logs", "-f", task, state=tmp_path / "state")
    assert (done.code, "no gateway came back" in done.err) == (9, True)


def test_a_file_that_was_left_behind_tells_a_death_from_a_stop(tmp_path: Path) -> None:
    with served(tmp_path / "state"):
        assert not discovery.has_died(tmp_path / "state")
        left = (tmp_path / "state" / discovery.GATEWAY_FILE).read_text()
    assert not discovery.has_died(tmp_path / "state")
    (tmp_path / "state" / discovery.GATEWAY_FILE).write_text(left)
    (tmp_path / "state" / discovery.GATEWAY_FILE).chmod(0o600)
    assert discovery.has_died(tmp_path / "state")


def test_ctrl_c_says_how_to_watch_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left, resumable(None, "logs", "-f", "t_1"):
        raise KeyboardInterrupt
    assert (left.value.exit_code, "`clutch logs -f t_1`" in capsys.readouterr().err) == (130, True)
