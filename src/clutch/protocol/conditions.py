"""Which tasks count as what, as conditions in SQL: constant words made from the phases of the core."""

from __future__ import annotations

from collections.abc import Iterable

from clutch.core.model import UNTOLD, WORKING, Phase


def _phases(phases: Iterable[Phase]) -> str:
    return "(" + ", ".join(f"'{phase}'" for phase in sorted(phases)) + ")"


#: for `phase IN …`
WORKING_PHASES = _phases(WORKING)
#: Conditions on tasks. SQLite uses `tasks_untold` and `tasks_alive` only where their words are repeated exactly;
#: as a list of phases they made every update of a task three times as dear.
IS_UNTOLD = " AND ".join(f"phase <> '{phase}'" for phase in sorted(set(Phase) - UNTOLD))
IS_WORKING = f"{IS_UNTOLD} AND phase <> 'announcing'"
