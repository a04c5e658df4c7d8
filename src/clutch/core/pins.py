"""A tool of an MCP server that is not what a person approved. Definitions are the server's own words, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Definition: TypeAlias = Mapping[str, Any]

HOUSE: Final = 0  #: in the place of a session: what belongs to none, such as the tools of all


@dataclass(frozen=True, slots=True)
class ToolOffer:
    tool: str
    before: Definition | None  #: as it was approved; None = it is new
    after: Definition
    text: str  #: what is different, for whoever decides


def canonical(definition: object) -> str:
    """The same text for the same meaning, whatever the order of keys."""
    return json.dumps(definition, sort_keys=True, separators=(",", ":"))
