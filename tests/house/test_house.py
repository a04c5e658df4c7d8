"""Each figure of `make house` is right on a small product in which it is wrong, and fails its limit there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.house import limits
from tests.house.__main__ import Missed, measure

KEYS = [
    "schema",
    "ok",
    "product_lines",
    "product_files",
    "largest_file",
    "longest_function",
    "ing_modules",
    "class_names_twice",
    "tables_with_two_writers",
    "untyped_tx_calls",
    "bare_tasks",
    "spawn_walk_files",
    "kill_walk_files",
    "comment_share",
]


@pytest.fixture
def product(tmp_path: Path) -> Path:
    return tmp_path


def planted(
    root: Path, files: Mapping[str, str], spawn: int = 0, kill: int = 0
) -> tuple[dict[str, Any], dict[str, Missed]]:
    """The figures of a product of these files, with walks of so many files; and the limits it misses."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    line, missed = measure(
        root, lambda: ([f"{n}.py" for n in range(spawn)], [f"{n}.py" for n in range(kill)])
    )
    assert line["ok"] is (not missed)
    return line, {one.what: one for one in missed}


def test_a_small_product_is_within_all_limits(product: Path) -> None:
    line, missed = planted(product, {"core/spawn.py": "A = 1\n", "engine/spawn.py": "class B:\n    pass\n"})
    assert list(line) == KEYS
    assert (line["schema"], line["ok"], missed) == ("clutch.house/1", True, {})
    assert (line["product_files"], line["product_lines"]) == (2, 3)


def test_testing_is_not_part_of_the_product(product: Path) -> None:
    line, _ = planted(product, {"testing/waiting.py": "A = 1\n", "core/testing_clock.py": "A = 1\n"})
    assert (line["product_files"], line["ing_modules"]) == (1, [])


@pytest.mark.parametrize("folder", ["src/clutch/testing", "tests/trust"])
def test_modules_that_are_not_part_of_the_product_are_named_after_things_too(folder: str) -> None:
    modules = (Path(__file__).parents[2] / folder).rglob("*.py")
    assert [path.name for path in modules if path.stem.endswith(limits.VERB_ENDING)] == []


def test_too_many_lines_and_files(product: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILES_MAX", 1)
    monkeypatch.setattr(limits, "LINES_MAX", 2)
    _, missed = planted(product, {"a.py": "A = 1\n", "b.py": "\n\n"})
    assert str(missed["product_files"]) == "product_files: 2 (limit: 1)"
    assert str(missed["product_lines"]) == "product_lines: 3 (limit: 2)"


@pytest.mark.parametrize(("line_count", "is_ok"), [(600, True), (601, False)])
def test_a_long_file(product: Path, line_count: int, is_ok: bool) -> None:
    line, missed = planted(product, {"core/a.py": "\n" * line_count, "b.py": "\n"})
    assert line["largest_file"] == ("core/a.py", line_count)
    assert ("largest_file" not in missed) is is_ok


@pytest.mark.parametrize(("line_count", "is_ok"), [(60, True), (61, False)])
def test_a_long_function_without_its_decorators(product: Path, line_count: int, is_ok: bool) -> None:
    body = "        pass\n" * (line_count - 1)
    line, missed = planted(
        product, {"core/a.py": f"class A:\n    @staticmethod\n    async def run():\n{body}"}
    )
    assert line["longest_function"] == ("core.a.A.run", line_count)
    assert ("longest_function" not in missed) is is_ok


def test_too_many_positional_parameters(product: Path) -> None:
    text = (
        "def five(a, b, c, d, e, *, f): ...\n"
        "def six(a, b, /, c, d, e, f): ...\n"
        "class A:\n"
        "    def five(self, a, b, c, d, e): ...\n"
        "    async def six(self, a, b, c, d, e, f): ...\n"
        "    @staticmethod\n"
        "    def static(a, b, c, d, e, f): ...\n"
        "@tasks.command('ps')\n"
        "def ps(a, b, c, d, e, f): ...\n"
    )
    _, missed = planted(product, {"core/a.py": text})
    found = ["core/a.py:2 six (6)", "core/a.py:5 six (6)", "core/a.py:7 static (6)"]
    assert missed["positional_parameters"].value == found


def test_a_module_named_after_an_activity(product: Path) -> None:
    line, missed = planted(product, {"core/wording.py": "", "wiring/engine.py": "", "wiring/__init__.py": ""})
    assert line["ing_modules"] == ["core/wording.py"]
    assert "ing_modules" in missed


def test_a_public_class_name_twice(product: Path) -> None:
    text = "class Said:\n    class Inner:\n        pass\nclass _Own:\n    pass\n"
    line, missed = planted(product, {"core/a.py": text, "engine/b.py": text})
    assert line["class_names_twice"] == ["Said"]
    assert missed["class_names_twice"].value == {"Said": ["core/a.py", "engine/b.py"]}


def test_a_class_name_that_modules_may_share(product: Path) -> None:
    name, (modules, _) = next(iter(limits.SHARED_CLASSES.items()))
    text = f"class {name}:\n    pass\n"
    line, _ = planted(product, dict.fromkeys(modules, text))
    assert line["class_names_twice"] == []
    line, _ = planted(product, {"core/other.py": text})
    assert line["class_names_twice"] == [name]


def test_a_module_name_twice_in_one_layer(product: Path) -> None:
    names = ["tools/policy.py", "tools/sandbox/policy.py", "core/policy.py", "tools/mcp/__init__.py"]
    reads = ["transactions/tasks.py", "transactions/read/tasks.py"]
    _, missed = planted(product, dict.fromkeys([*names, *reads, "tools/__init__.py"], ""))
    found = {"tools:policy": ["tools/policy.py", "tools/sandbox/policy.py"]}
    assert missed["module_names_twice_in_a_layer"].value == found


@pytest.mark.parametrize(
    "statement",
    [
        '"INSERT INTO tasks(id) VALUES(?)"',
        '"INSERT OR IGNORE INTO tasks(id) VALUES(?)"',
        '"REPLACE INTO tasks(id) VALUES(?)"',
        '"DELETE FROM tasks"',
        '"WITH one AS (SELECT 1) UPDATE tasks AS t SET a = 1"',
        '("UPDATE "\n "tasks SET a = 1")',
        '"UPDATE " + "tasks" + f" SET {1} = 2"',
        'f"UPDATE tasks SET {1} = 2"',
        '[f"DELETE FROM {table}" for table in WORDS]',
        'f"DELETE FROM {NAME} WHERE id = ?"',
    ],
)
def test_a_table_with_two_writers(product: Path, statement: str) -> None:
    other = f'"""A file."""\nWORDS = ("tasks", "runs")\nNAME = "tasks"\nA = {statement}\n'
    files = {"transactions/tasks.py": 'A = "UPDATE tasks SET a = 1"\n', "transactions/read/b.py": other}
    line, missed = planted(product, files)
    both = ["transactions/read/b.py", "transactions/tasks.py"]
    assert line["tables_with_two_writers"] == {"tasks": both}
    assert "tables_with_two_writers" in missed


@pytest.mark.parametrize(
    "text",
    [
        '"""UPDATE tasks SET a = 1, in a docstring."""',
        'A = "SELECT id FROM tasks FOR UPDATE"',
        'A = "SELECT id FROM tasks FOR UPDATE SKIP LOCKED"',
        'A = "INSERT INTO runs(id) VALUES(?) ON CONFLICT(id) DO UPDATE SET a = 1"',
        "A = \"SELECT REPLACE(a, 'x', 'y') FROM tasks\"",
    ],
)
def test_what_does_not_write_a_table(product: Path, text: str) -> None:
    writer = 'A = "DELETE FROM tasks"\n'
    line, _ = planted(product, {"transactions/tasks.py": writer, "transactions/b.py": text})
    assert line["tables_with_two_writers"] == {}


def test_only_the_listed_modules_share_a_table(product: Path) -> None:
    text = 'A = "UPDATE inbox SET a = 1"\n'
    shared = {"transactions/inbox.py": text, "transactions/delivery.py": text, "store/schema.py": text}
    assert planted(product, shared)[0]["tables_with_two_writers"] == {}
    line, _ = planted(product, {"transactions/wake.py": text})
    assert line["tables_with_two_writers"]["inbox"] == sorted([*list(shared)[:2], "transactions/wake.py"])


def test_a_table_name_that_is_computed_is_listed(product: Path) -> None:
    line, _ = planted(product, {"transactions/a.py": 'def f(table):\n    return f"DELETE FROM {table}"\n'})
    assert line["tables_with_two_writers"] == {"{table}": ["transactions/a.py"]}


def test_untyped_calls_of_transactions(product: Path) -> None:
    text = (
        "async def tx(self, fn: Callable[..., Tx[T]], *args: Any) -> T: ...\n"
        "async def typed(fn: Callable[P, Tx[T]], *args: P.args) -> T: ...\n"
        "def later(callback: Callable[..., None], *args: Any) -> None: ...\n"
    )
    line, missed = planted(product, {"engine/a.py": text})
    assert line["untyped_tx_calls"] == 1
    assert missed["untyped_tx_calls"].value == [1, "engine/a.py:1 tx"]


def test_tasks_outside_of_a_group(product: Path) -> None:
    bare = [
        "asyncio.create_task(work())",
        "self._loop.create_task(work())",
        "asyncio.get_running_loop().create_task(work())",
        "asyncio.ensure_future(work())",
        "create_task(work())",
    ]
    files = {"a.py": "\n".join([*bare, "group.create_task(work())"]), limits.TASK_HELPER: bare[0]}
    line, missed = planted(product, files)
    assert line["bare_tasks"] == len(bare)
    assert missed["bare_tasks"].value == [5, *(f"a.py:{number}" for number in range(1, 6))]


def test_long_walks(product: Path) -> None:
    assert planted(product, {}, spawn=45, kill=24)[1] == {}
    line, missed = planted(product, {}, spawn=46, kill=25)
    assert (line["spawn_walk_files"], line["kill_walk_files"]) == (46, 25)
    assert set(missed) == {"spawn_walk_files", "kill_walk_files"}


def test_the_share_of_comments(product: Path) -> None:
    line, _ = planted(product, {"a.py": '# one\nA = 1  # two\nB = "# none"\n'})
    assert line["comment_share"] == 0.667


@pytest.mark.slow(5)
def test_the_real_product_is_measured() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.house"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    line = json.loads(ended.stdout.splitlines()[-1])
    assert list(line) == KEYS
    assert line["ok"] is (ended.returncode == 0) is (not ended.stderr)
    missed = {text.split(":", 1)[0] for text in ended.stderr.splitlines()}
    assert missed == limits.NOT_REACHED, "a limit that held is broken, or one that was not reached holds now"
    # A spawn passes the store, the transactions and the engine; a kill passes the HTTP surface as well.
    assert line["spawn_walk_files"] > line["kill_walk_files"] > 10
