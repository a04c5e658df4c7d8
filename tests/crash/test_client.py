"""The client of the kill tests: what it has acknowledged is on disk, whoever dies."""

from __future__ import annotations

import json
import threading
from itertools import count
from pathlib import Path

import pytest

from tests.trust.kills.client import LEDGER, Ledger, Teller, client_process


def written(directory: Path) -> list[str]:
    return [json.loads(line)["task"] for line in (directory / LEDGER).read_text().splitlines()]


def test_an_acknowledged_id_survives_the_death_of_the_client_itself(tmp_path: Path) -> None:
    acknowledged = []
    with client_process() as (address, process):
        teller = Teller(address, tmp_path)
        threading.Timer(0.1, process.kill).start()
        with pytest.raises(ConnectionError):  # noqa: PT012 - it dies some time in here
            for number in count():
                teller.accepted("key", [f"t_{number}"])
                acknowledged.append(f"t_{number}")
        teller.close()
    assert len(acknowledged) > 5
    assert written(tmp_path)[: len(acknowledged)] == acknowledged


def test_an_id_is_synced_before_it_is_acknowledged_and_once(tmp_path: Path) -> None:
    synced: list[list[str]] = []
    ledger = Ledger(sync=lambda _: synced.append(written(tmp_path)))
    ledger.accepted(str(tmp_path), "key", ["t_1", "t_2"])
    ledger.accepted(str(tmp_path), "key", ["t_2"])
    ledger.accepted(str(tmp_path), "key", ["t_3"])
    assert synced == [["t_1", "t_2"], ["t_1", "t_2", "t_3"]]


def test_a_disk_that_fails_is_not_acknowledged(tmp_path: Path) -> None:
    def fail(_: int) -> None:
        raise OSError("input/output error")

    with pytest.raises(OSError, match="input/output"):
        Ledger(sync=fail).accepted(str(tmp_path), "key", ["t_1"])
