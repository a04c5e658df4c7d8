"""What is handed on can be checked by whoever gets it: built again, hashed again, and signed by a known key only."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.security import audit, release

LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("first")
    release.build(release.ROOT, dist, "c0ffee", 1_700_000_000)
    return dist


def test_s29_whoever_builds_the_same_commit_gets_the_same_bytes(made: Path, tmp_path: Path) -> None:
    """Another folder, other times of its files, other rights for new ones."""
    copy = Path(shutil.copytree(release.ROOT, tmp_path / "elsewhere", ignore=LEFT_OUT))
    for file in (copy / "src").rglob("*.py"):
        os.utime(file, (1, 1))
    before = os.umask(0o077)
    try:
        release.build(copy, tmp_path / "dist", "c0ffee", 1_700_000_000)
    finally:
        os.umask(before)
    sums = (made / release.SUMS).read_text()
    assert (tmp_path / "dist" / release.SUMS).read_text() == sums
    assert [line.split()[1].rpartition(".")[2] for line in sums.splitlines()] == ["whl", "gz", "json", "json"]
    checked = subprocess.run(
        ["/usr/bin/env", "sha256sum", "--check", release.SUMS], cwd=made, capture_output=True, check=False
    )
    assert checked.returncode == 0


def test_s29_a_signature_holds_for_its_key_and_for_these_bytes_only(made: Path, tmp_path: Path) -> None:
    ours, theirs = _key(tmp_path / "ours"), _key(tmp_path / "theirs")
    release.sign(made, tmp_path / "ours")
    sums = (made / release.SUMS).read_bytes()
    assert _is_signed(made, tmp_path, ours, sums)
    assert not _is_signed(made, tmp_path, theirs, sums)
    assert not _is_signed(made, tmp_path, ours, sums.replace(b"a", b"b"))
    with pytest.raises(SystemExit, match="not signed"):
        release.sign(made, tmp_path / "no-such-key")
    assert not (made / release.SIGNATURE).exists()


def _key(file: Path) -> str:
    subprocess.run(
        ["/usr/bin/env", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True
    )
    return file.with_suffix(".pub").read_text()


def _is_signed(dist: Path, folder: Path, key: str, sums: bytes) -> bool:
    """As docs/operate/security.md says it."""
    (folder / "release.keys").write_text(f"release {key}")
    known = ("-f", str(folder / "release.keys"), "-I", "release", "-n", release.NAMESPACE)
    command = ["/usr/bin/env", "ssh-keygen", "-Y", "verify", *known, "-s", str(dist / release.SIGNATURE)]
    return subprocess.run(command, input=sums, capture_output=True, check=False).returncode == 0


def test_s29_an_audit_that_could_not_be_made_is_an_error_that_names_the_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert audit.main("http://127.0.0.1:9/list") == 1
    said = capsys.readouterr().err
    assert "NOT AUDITED: 127.0.0.1:9" in said
    assert "Run `make audit` on a machine with the network" in said
