"""A worker that is stopped for longer than its lease and then goes on: it changes nothing any more."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.trust.kills.checks import Line, check, evidence
from tests.trust.kills.client import client_process
from tests.trust.kills.tables import PostgresReader, Rows, after_death
from tests.trust.kills.victim import QUIET, prepare

pytestmark = pytest.mark.slow


@contextmanager
def worker(directory: Path, dsn: str, client: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        *(sys.executable, "-m", "tests.trust.kills.victim"),
        *("--state", str(directory), "--database", dsn, "--client", client),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def said_by(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def lines_until(process: subprocess.Popen[bytes], word: str) -> list[Line]:
    lines: list[Line] = []
    for line in said_by(process):
        lines.append(json.loads(line))
        if word in lines[-1]:
            return lines
    raise AssertionError(f"it ended without {word!r}: {lines}")


def what_is_true(reader: PostgresReader) -> list[Rows]:
    """All that a stale write could change. A late word may be noted in the timeline, and only there."""
    return [
        reader.rows("SELECT session_id, seq, body FROM messages ORDER BY session_id, seq"),
        reader.rows("SELECT session_id, seq, idx FROM calls ORDER BY session_id, seq, idx"),
        reader.rows(
            "SELECT id, phase, generation, outcome, result, delivery, attempts FROM tasks ORDER BY id"
        ),
        reader.rows("SELECT id, ended_at, stop_reason FROM runs ORDER BY id"),
        reader.rows("SELECT id, state, taken_run, taken_seq FROM inbox ORDER BY id"),
        reader.rows("SELECT id, owner, head, due, hold, run_id FROM sessions ORDER BY id"),
    ]


def test_a_worker_frozen_past_its_lease_changes_nothing_when_it_wakes(
    tmp_path: Path, postgres_dsn: str
) -> None:
    prepare(tmp_path)
    with closing(PostgresReader(postgres_dsn)) as reader, client_process() as (client, _):
        with worker(tmp_path, postgres_dsn, client) as frozen:
            # The other one starts after this: on a busy machine it could take all of the work before.
            lines = lines_until(frozen, "begun")
            frozen.send_signal(signal.SIGSTOP)
            interrupted = after_death(reader)
            with worker(tmp_path, postgres_dsn, client) as healthy:
                lines += [json.loads(line) for line in said_by(healthy)]
                assert healthy.wait(30) == QUIET
                before = what_is_true(reader)
                frozen.send_signal(signal.SIGCONT)
                lines += [json.loads(line) for line in said_by(frozen)]
                assert frozen.wait(30) == QUIET
        assert what_is_true(reader) == before
        result = check(evidence(tmp_path, reader, lines, deaths=[interrupted]))
    assert result.complaints == []
