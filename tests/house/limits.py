"""Limits that keep the product readable, each with its reason. A limit changes here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# More modules than this cannot be learned in an afternoon of reading.
FILES_MAX: Final = 200

# A fifth less than when this limit was set: the same behaviour can be said in fewer lines.
LINES_MAX: Final = 46_000

# A longer file holds more than one subject and cannot be reviewed in one sitting.
FILE_LINES_MAX: Final = 600

# A longer function does not fit on one screen.
FUNCTION_LINES_MAX: Final = 60

# A call with more arguments by position cannot be read without the signature beside it. `self` and `cls` do not count.
POSITIONAL_MAX: Final = 5
# A function with one of these decorators may take more; the reason beside it.
MANY_PARAMETERS: Final[Mapping[str, str]] = {
    "command": "the parameters are the options of a command; typer calls it with keywords",
}

# A module is named after the thing it holds; a name in -ing names an activity and says nothing about its content.
VERB_ENDING: Final = "ing"

# A module name may repeat across layers, for the same noun: core/spawn.py has the rule, transactions/spawn.py the rows.
# Each top-level package is one layer with all packages below it, except for these packages.
INNER_LAYERS: Final[Mapping[str, str]] = {
    "transactions/read": "reading a table and writing it are two layers over the same noun",
}

# A class name in two modules makes every reader ask which of the two is meant.
# An exception names the modules that may define the class, and the reason.
SHARED_CLASSES: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    "Clutch": (
        frozenset({"sync.py", "wiring/clutch.py"}),
        "clutch.sync.Clutch is the public blocking twin of clutch.Clutch",
    ),
    "Task": (
        frozenset({"sync.py", "api/handles.py", "core/model.py"}),
        "clutch.Task and its blocking twin are public handles; core/model.py has the record that the rules step",
    ),
}

# With one writing module, all states of a row can be read in one file.
# An exception names the modules that may write the table together, and the reason.
SHARED_TABLES: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    "inbox": (
        frozenset({"transactions/inbox.py", "transactions/delivery.py"}),
        "inbox.py posts, moves and voids letters; delivery.py takes, answers and refuses them",
    ),
}

# A module whose statements name their table in a variable, and the reason.
COPIERS: Final[Mapping[str, str]] = {
    "transactions/move.py": "copies every table to another database, row by row, and gives no row a new meaning",
}

# mypy cannot check the arguments that pass through `Callable[..., Tx[T]], *args: Any`.
UNTYPED_TX_CALLS_MAX: Final = 0

# A task without an owner loses its exception and outlives its caller; this module owns those a task group cannot.
TASK_HELPER: Final = "contain.py"
BARE_TASKS_MAX: Final = 0

# Each file on the path of one action is a file to open for the reader who follows it.
SPAWN_WALK_FILES_MAX: Final = 45
KILL_WALK_FILES_MAX: Final = 24

# Limits that the product has not reached yet. `make check` runs `make house` when this is empty; until then a test
# keeps every other limit.
NOT_REACHED: Final = frozenset({"product_lines", "product_files", "spawn_walk_files", "kill_walk_files"})
