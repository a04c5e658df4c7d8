"""Planted bugs in the checks of a result: a failure that passes, and a repair that is forgotten."""

from __future__ import annotations

from functools import wraps
from typing import Any

from clutch.core.checks import CheckReport, Conclusion
from tests.trust.mutants.mutant import Mutant


def _always_done(conclusion: Any) -> tuple[Any, ...]:
    @wraps(conclusion)
    def bug(report: CheckReport, repairs: int) -> Conclusion:
        del report, repairs
        return Conclusion.DONE

    return (bug,)


def _no_repair(conclusion: Any) -> tuple[Any, ...]:
    @wraps(conclusion)
    def bug(report: CheckReport, repairs: int) -> Conclusion:
        del repairs
        return Conclusion(conclusion(report, 1))

    return (bug,)


def _keeps_old_results(taken_up: Any) -> tuple[Any, ...]:
    @wraps(taken_up)
    def bug(report: CheckReport | None, generation: int, seq: int, total: int) -> Any:
        return report or taken_up(report, generation, seq, total)

    return (bug,)


def _mutant(name: str, target: str, plant: Any, about: str) -> Mutant:
    return Mutant(name, (f"clutch.engine.checks.{target}",), frozenset({"checked-results"}), (), plant, about)


MUTANTS = (
    _mutant("failed_check_passes", "conclusion", _always_done, "a task with a failed check is done"),
    _mutant("repair_is_forgotten", "conclusion", _no_repair, "the first failed check ends the task"),
    _mutant(
        "results_of_another_answer", "taken_up", _keeps_old_results, "a corrected result keeps its old checks"
    ),
)
