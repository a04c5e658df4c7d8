"""Why a setting is what it is: the `#:` beside its field, read from the source where it stands, so that it is
written once."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from functools import lru_cache

_BESIDE = re.compile(r"  #: (.*)$")
_ABOVE = re.compile(r"^\s*#: (.*)$")


def reason_of(owner: type, field: str) -> str:
    """Empty: its name says it all. In the words of the config, where nothing is null."""
    return re.sub(r"\bNone\b", "null", _reasons(owner).get(field, ""))


@lru_cache(maxsize=64)
def _reasons(owner: type) -> Mapping[str, str]:
    source = textwrap.dedent(inspect.getsource(owner))
    lines = source.splitlines()
    (declared,) = ast.parse(source).body
    assert isinstance(declared, ast.ClassDef)
    found: dict[str, str] = {}
    for node in declared.body:
        name = _declared(node)
        if name is not None:
            beside = _BESIDE.search(lines[(node.end_lineno or node.lineno) - 1])
            reason = beside or _ABOVE.match(lines[node.lineno - 2])
            found |= {name: reason[1]} if reason is not None else {}
    return found


def _declared(node: ast.stmt) -> str | None:
    """A field of a dataclass or a member of an enum."""
    match node:
        case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
            return name
        case _:
            return None
