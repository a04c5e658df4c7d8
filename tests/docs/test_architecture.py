"""ARCHITECTURE.md stays true: its diagram is the core's, and what it points at is there."""

from __future__ import annotations

import re
from pathlib import Path

from clutch.core.diagram import mermaid

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_the_phase_diagram_is_the_one_the_core_draws() -> None:
    shown = re.search(r"<!-- phases -->\n(.*?)\n<!-- /phases -->", TEXT, re.DOTALL)
    wanted = f"```mermaid\n{mermaid().strip()}\n```"
    assert shown is not None
    assert shown[1] == wanted, f"put this between the marks in ARCHITECTURE.md:\n{wanted}"


def test_every_file_and_folder_it_names_exists() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:py|sql))?)", TEXT))
    assert len(named) >= 10
    missing = [
        name for name in named if not (ROOT / "src/clutch" / name).exists() and not (ROOT / name).exists()
    ]
    assert not missing


def test_every_function_it_names_in_a_module_exists() -> None:
    for folder, module, name in re.findall(r"`((?:[a-z]+/)+)([a-z_]+)\.([a-z_]+|[A-Z_]+)`", TEXT):
        if name in ("py", "sql"):
            continue
        source = ROOT / "src/clutch" / folder / f"{module}.py"
        assert source.exists(), f"{folder}{module}.{name}"
        assert re.search(
            rf"^(?:async )?(?:def|class) {name}\b|^{name}\b", source.read_text(), re.MULTILINE
        ), name


def test_every_folder_of_the_product_has_a_line() -> None:
    folders = {path.name for path in (ROOT / "src/clutch").iterdir() if (path / "__init__.py").exists()}
    assert {name for name in folders if f"`{name}/`" not in TEXT} == set()
