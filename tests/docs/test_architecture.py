"""ARCHITECTURE.md stays true: what it points at is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.house import limits

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/clutch"
LINES_MAX = 220
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_every_file_and_folder_it_names_exists() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_-]+\.(?:py|sql|md))?)", TEXT))
    assert len(named) >= 10
    missing = [
        name for name in named if not (ROOT / "src/clutch" / name).exists() and not (ROOT / name).exists()
    ]
    assert not missing


def test_every_function_it_names_in_a_module_exists() -> None:
    for folder, module, name in re.findall(r"`((?:[a-z]+/)+)([a-z_]+)\.([a-z_]+|[A-Z_]+)`", TEXT):
        if name in ("py", "sql", "md"):
            continue
        source = ROOT / "src/clutch" / folder / f"{module}.py"
        assert source.exists(), f"{folder}{module}.{name}"
        assert re.search(
            rf"^(?:async )?(?:def|class) {name}\b|^{name}\b", source.read_text(), re.MULTILINE
        ), name


def test_every_folder_of_the_product_has_a_line() -> None:
    folders = {path.name for path in (ROOT / "src/clutch").iterdir() if (path / "__init__.py").exists()}
    assert {name for name in folders if f"`{name}/`" not in TEXT} == set()


def _writers() -> dict[str, set[str]]:
    """Return each table of the schema with the modules of `transactions` whose SQL writes it."""
    schema = "".join(path.read_text() for path in (PACKAGE / "store/schema").glob("*.sql"))
    writers: dict[str, set[str]] = {name: set() for name in re.findall(r"CREATE TABLE (\w+)", schema)}
    for path in (PACKAGE / "transactions").rglob("*.py"):
        if str(path.relative_to(PACKAGE)) in limits.COPIERS:
            continue
        texts = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        written = set(re.findall(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)", "\n".join(texts)))
        if any(text.endswith("DELETE FROM ") for text in texts):
            written |= texts  # f"DELETE FROM {table}": the names of its tables stand in the same module
        for table in written & writers.keys():
            writers[table].add(str(path.relative_to(PACKAGE / "transactions").with_suffix("")))
    return writers


def test_the_table_of_tables_lists_exactly_the_modules_that_write_each_of_them() -> None:
    rows = TEXT.partition("## The tables")[2].partition("\n## ")[0]
    shown = {
        table: {
            name.removeprefix("transactions/").removesuffix(".py") for name in re.findall(r"`([^`]+)`", cells)
        }
        for table, cells in re.findall(r"(?m)^\| `(\w+)` \|[^|]*\|(.*)\|$", rows)
    }
    assert shown == _writers()


def test_it_stays_short() -> None:
    assert len(TEXT.splitlines()) <= LINES_MAX
