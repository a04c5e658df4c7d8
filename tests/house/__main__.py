"""`make house`: the figures that keep the product readable, beside their limits (limits.py).

Prints one JSON line. Each missed limit has a line on stderr; then the exit code is 1.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.house import figures, limits
from tests.house.figures import PRODUCT

Walks = Callable[[], tuple[Collection[str], Collection[str]]]


@dataclass(frozen=True, slots=True)
class Missed:
    """A limit that does not hold: what was measured, its value, and what was allowed."""

    what: str
    value: object
    limit: object

    def __str__(self) -> str:
        return f"{self.what}: {json.dumps(self.value)} (limit: {self.limit})"


def measure(root: Path, record: Walks) -> tuple[dict[str, Any], list[Missed]]:
    """The JSON line, and the limits that do not hold."""
    spawn, kill = (sorted(walk) for walk in record())
    found = figures.sources(root)
    files = sorted(((source.path, source.line_count) for source in found), key=_by_size)
    functions = sorted((one for source in found for one in figures.function_lengths(source)), key=_by_size)
    many = [one for source in found for one in figures.many_parameters(source)]
    line_count = sum(size for _, size in files)
    ing, classes = figures.ing_modules(found), figures.classes_twice(found)
    tables, untyped = figures.tables_with_two_writers(found), figures.untyped_tx_calls(found)
    bare = figures.bare_tasks(found)
    missed = [
        *_too_many("product_lines", line_count, limits.LINES_MAX),
        *_too_many("product_files", len(files), limits.FILES_MAX),
        *_listed("largest_file", _over(files, limits.FILE_LINES_MAX), limits.FILE_LINES_MAX),
        *_listed("longest_function", _over(functions, limits.FUNCTION_LINES_MAX), limits.FUNCTION_LINES_MAX),
        *_listed("positional_parameters", many, limits.POSITIONAL_MAX),
        *_listed("ing_modules", ing, "none"),
        *_listed("class_names_twice", classes, "unique"),
        *_listed("module_names_twice_in_a_layer", figures.modules_twice(found), "unique"),
        *_listed("tables_with_two_writers", tables, "one writing module per table"),
        *_longer("untyped_tx_calls", untyped, limits.UNTYPED_TX_CALLS_MAX),
        *_longer("bare_tasks", bare, limits.BARE_TASKS_MAX),
        *_longer("spawn_walk_files", spawn, limits.SPAWN_WALK_FILES_MAX),
        *_longer("kill_walk_files", kill, limits.KILL_WALK_FILES_MAX),
    ]
    line = {
        "schema": "clutch.house/1",
        "ok": not missed,
        "product_lines": line_count,
        "product_files": len(files),
        "largest_file": files[0] if files else None,
        "longest_function": functions[0] if functions else None,
        "ing_modules": ing,
        "class_names_twice": list(classes),
        "tables_with_two_writers": tables,
        "untyped_tx_calls": len(untyped),
        "bare_tasks": len(bare),
        "spawn_walk_files": len(spawn),
        "kill_walk_files": len(kill),
        "comment_share": figures.comment_share(found),
    }
    return line, missed


def _by_size(one: tuple[str, int]) -> tuple[int, str]:
    return -one[1], one[0]


def _over(sized: Iterable[tuple[str, int]], limit: int) -> list[tuple[str, int]]:
    return [one for one in sized if one[1] > limit]


def _too_many(what: str, value: int, limit: int) -> list[Missed]:
    return [Missed(what, value, limit)] if value > limit else []


def _longer(what: str, places: Collection[str], limit: int) -> list[Missed]:
    return [Missed(what, [len(places), *places], limit)] if len(places) > limit else []


def _listed(what: str, found: Collection[object], limit: object) -> list[Missed]:
    return [Missed(what, found, limit)] if found else []


def main() -> int:
    from tests.house import walks  # here, because it loads the product

    gc.disable()  # the syntax trees are millions of objects, and searching them for garbage takes seconds
    line, missed = measure(PRODUCT, walks.record)
    for one in missed:
        print(one, file=sys.stderr)
    print(json.dumps(line))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
