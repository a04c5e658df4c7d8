"""Keep modules that an agent may have written out of this process.

A program that is started in its workspace has the workspace on `sys.path`: the next import of `html` would load a file
`html.py` that an agent wrote, with all rights of this process. As soon as agents can write, no module is loaded from
their workspaces: a name is looked up everywhere else first, and one that exists only in a workspace is refused with an
error that names the fix.

Modules are still loaded from outside every workspace, and from the Python and Clutch that run here even if they lie in
a workspace, because no agent can write there (`bubblewrap.python_inside`). The guard stays for the life of the process:
the files are still there when the last agent has ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clutch.tools.sandbox.bubblewrap import python_inside
from clutch.tools.sandbox.policy import is_beneath

if TYPE_CHECKING:
    from clutch.ports import OperatorNotice

#: Starts a module of ours with this process's own path, whatever the environment and the current folder are.
_RUN = "import runpy, sys; sys.path[:] = sys.argv[2:]; runpy.run_module(sys.argv[1], run_name='__main__')"


class ImportGuard(MetaPathFinder):
    """The first finder of this process: it asks all others and passes on modules from trusted places only."""

    def __init__(self) -> None:
        self._roots: tuple[str, ...] = ()

    def protect(self, roots: Iterable[str]) -> None:
        """`roots`: folders that agents can write to."""
        new = {os.path.realpath(root) for root in roots} - set(self._roots)
        if not new:
            return
        self._roots = (*self._roots, *sorted(new))
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def problems(self) -> Iterator[OperatorNotice]:
        """Report folders of `sys.path` where agents write: harmless in this process, dangerous at its next start."""
        # Imported here, because the file worker loads this module and must start quickly.
        from clutch.ports import OperatorNotice

        exposed = [entry or "." for entry in sys.path if self.is_exposed(entry or ".")]
        if exposed:
            yield OperatorNotice(
                "import-path",
                f"Python looks for modules in {', '.join(dict.fromkeys(exposed))}, where agents write: what is not "
                "loaded yet is not loaded from there, and a new start could load what an agent wrote",
                "keep the program outside of the workspace, start it with `python -P`, or unset PYTHONPATH",
                is_error=False,
            )

    def is_exposed(self, path: str) -> bool:
        """Whether an agent may have written what lies at `path`."""
        real = os.path.realpath(path)
        return any(is_beneath(real, root) and not _is_held(real, root) for root in self._roots)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        refused: str | None = None
        for finder in [one for one in sys.meta_path if one is not self]:
            spec = self._asked(finder, fullname, path, target)
            place = None if spec is None else next(filter(self.is_exposed, _places(spec)), None)
            if spec is not None and place is None:
                return spec
            refused = refused or place
        if refused is None:
            refused = self._hidden(fullname, path)
        if refused is not None:
            raise ModuleNotFoundError(
                f"module {fullname!r} is not loaded: {refused} is in a workspace, where an agent may have written it; "
                "import it before Clutch is opened, or give the agents another workspace (docs/operate/security.md)",
                name=fullname,
                path=refused,
            )
        return None

    def _asked(self, finder: Any, name: str, path: Sequence[str] | None, target: Any) -> ModuleSpec | None:
        if finder is PathFinder:
            return PathFinder.find_spec(name, trusted_path(path), target)
        asked = getattr(finder, "find_spec", None)  # an old finder without it is skipped by Python, too
        found: ModuleSpec | None = None if asked is None else asked(name, path, target)
        return found

    def _hidden(self, name: str, path: Sequence[str] | None) -> str | None:
        """Where an exposed folder has a module of this name that is nowhere else."""
        entries = sys.path if path is None else path
        exposed = [entry for entry in entries if self.is_exposed(entry or ".")]
        spec = PathFinder.find_spec(name, exposed) if exposed else None
        return None if spec is None else next(_places(spec), name)


def _places(spec: ModuleSpec) -> Iterator[str]:
    if spec.has_location and spec.origin is not None:
        yield spec.origin
    yield from spec.submodule_search_locations or ()


def _is_held(real: str, root: str) -> bool:
    """Whether no agent can write there: file tools refuse it, and the sandbox of a command mounts it read-only."""
    return any(is_beneath(real, place) for place in python_inside(root))


GUARD = ImportGuard()


def trusted_path(path: Sequence[str] | None = None) -> list[str]:
    """Return `sys.path`, or the path of a package, without the folders that agents can write to."""
    entries = sys.path if path is None else path
    return [entry for entry in entries if not GUARD.is_exposed(entry or ".")]


def python_command(module: str) -> list[str]:
    """Return the command that runs a module of ours as a process of its own, with the same trusted path."""
    entries = [os.path.abspath(entry) for entry in trusted_path()]
    return [sys.executable, "-I", "-c", _RUN, module, *entries]
