"""`make scenarios`: which acceptance scenarios have a test, and do they pass?

Runs every test marked `@pytest.mark.scenario(N)` and compares with the list beside this file. Prints a
table, writes `build/scenarios.json`, and ends with one JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("scenarios.md")
REPORT = Path("build") / "scenarios.json"
_LINE = re.compile(r"^(\d+)\. (.+)$", re.MULTILINE)
_BACKENDS = ("sqlite", "postgres")


class Witness:
    """A pytest plugin that remembers which scenario each test covers and how it ended."""

    def __init__(self, backend: str | None) -> None:
        self.backend = backend
        self.covers: dict[str, set[int]] = {}
        self.outcomes: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if self._is_wanted(item)]
        for item in chosen:
            self.covers[item.nodeid] = {mark.args[0] for mark in item.iter_markers("scenario")}
        items[:] = chosen

    def _is_wanted(self, item: pytest.Item) -> bool:
        if not any(item.iter_markers("scenario")):
            return False
        named = backends_of(item.nodeid)
        return self.backend is None or not named or self.backend in named

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome


def backends_of(nodeid: str) -> list[str]:
    return [backend for backend in _BACKENDS if backend in nodeid.partition("[")[2]]


def judge(texts: dict[int, str], witness: Witness) -> dict[int, dict[str, object]]:
    tests = defaultdict(list)
    for nodeid, numbers in sorted(witness.covers.items()):
        for number in numbers:
            tests[number].append(nodeid)
    return {number: _verdict(text, tests[number], witness.outcomes) for number, text in texts.items()}


def _verdict(text: str, tests: list[str], outcomes: dict[str, str]) -> dict[str, object]:
    ended = {outcomes.get(nodeid, "failed") for nodeid in tests}
    status = "missing" if not tests else "passed" if ended == {"passed"} else "failed"
    backends = sorted({backend for nodeid in tests for backend in backends_of(nodeid)})
    return {"text": text, "tests": tests, "backends": backends, "status": status}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make scenarios", description=__doc__)
    parser.add_argument("--backend", choices=[*_BACKENDS, "all"], default="all")
    chosen = parser.parse_args()
    texts = {int(number): text for number, text in _LINE.findall(LIST.read_text(encoding="utf-8"))}
    witness = Witness(None if chosen.backend == "all" else chosen.backend)
    with contextlib.redirect_stdout(sys.stderr):
        pytest.main(["-q", "-m", "scenario", "tests"], plugins=[witness])
    report = judge(texts, witness)
    unknown = sorted({number for numbers in witness.covers.values() for number in numbers} - set(texts))
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=1, ensure_ascii=False), encoding="utf-8")
    for number, entry in report.items():
        print(f"{number:>4} {entry['status']:<8} {str(entry['text'])[:100]}")
    for number in unknown:
        print(f"{number:>4} unknown  a test claims this number, which is not in the list")
    return _summary(report, unknown, witness)


def _summary(report: dict[int, dict[str, object]], unknown: list[int], witness: Witness) -> int:
    by_status = defaultdict(list)
    for number, entry in report.items():
        by_status[entry["status"]].append(number)
    skipped = sorted(nodeid for nodeid, outcome in witness.outcomes.items() if outcome == "skipped")
    is_ok = not (by_status["failed"] or by_status["missing"] or skipped or unknown)
    line = {
        "schema": "clutch.scenarios/1",
        "ok": is_ok,
        "total": len(report),
        "covered": len(report) - len(by_status["missing"]),
        "passing": len(by_status["passed"]),
        "failing": by_status["failed"],
        "missing": by_status["missing"],
        "skipped": skipped,
    }
    print(json.dumps(line))
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
