"""JSON and server-sent events, as the formats share them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Not ASCII only: real providers send UTF-8, whose characters can be torn apart on the way.
encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def event(name: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {name}\ndata: {encode(data)}\n\n".encode()
