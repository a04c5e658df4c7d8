"""A git repository with three problems, to be reviewed."""

from __future__ import annotations

import subprocess
from pathlib import Path

APP = """\
def export(path):  # TODO: large files
    try:
        return open(path).read()
    except:
        return None


def untested(rows):
    return sorted(rows)
"""


def make_repository(path: Path) -> Path:
    """Create the repository if it does not exist, and return its path."""
    if not path.exists():
        path.mkdir()
        (path / "app.py").write_text(APP)
        author = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        for command in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "-m", "Export")):
            subprocess.run(["git", *command], cwd=path, check=True)
    return path
