"""What we are made of, and what we hand on: locked with hashes, few, and nothing from where we happen to stand."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from clutch.errors import NoGateway
from clutch.surfaces import discovery
from tests.security import sbom

ROOT = Path(__file__).parents[2]
#: Direct dependencies that are installed with the package; a new one is a decision, not an accident.
DIRECT_MAX = 20


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock", "requirements-lowest.lock"])
def test_s29_every_locked_package_has_one_version_and_hashes(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text  # no index, no direct address
    packages = re.split(r"(?m)^(?=[a-z0-9])", text)[1:]
    assert len(packages) > 20
    for package in packages:
        assert re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==\S+", package), package[:80]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", package), package[:80]


def test_s29_the_bill_of_materials_has_every_locked_file() -> None:
    lock = sbom.LOCK.read_text()
    parts = sbom.document(lock)["components"]
    assert len(parts) == len(re.findall(r"^[^ #]+==", lock, re.MULTILINE)) > 20
    digests = [
        one["content"] for part in parts for file in part["externalReferences"] for one in file["hashes"]
    ]
    assert digests == re.findall(r"sha256:([0-9a-f]{64})", lock)


def test_s29_what_is_declared_is_locked_and_bounded() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    locked = (ROOT / "requirements.lock").read_text()
    assert len(declared) <= DIRECT_MAX
    for one in declared:
        name = re.split(r"[\[><=]", one)[0]
        assert ">=" in one, one
        assert "<" in one, one
        assert re.search(rf"(?m)^{re.escape(name)}(\[[a-z,]+\])?==", locked), one


def test_s29_a_gateway_is_started_without_code_of_the_directory_we_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clutch.py").write_text("raise SystemExit('hijacked')")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").touch()  # so that it ends at once, with our own words
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoGateway, match="holds other files"):
        discovery.start(tmp_path / "home")


def test_s17_sql_made_from_strings_is_an_error_of_the_linter() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in settings["select"]
    assert not any(code.startswith("S6") for code in settings["ignore"])
    own = [codes for where, codes in settings["per-file-ignores"].items() if where.startswith("src/")]
    assert not any(code in ("S", "S6", "S608") for codes in own for code in codes)
