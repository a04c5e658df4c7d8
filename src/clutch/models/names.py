"""Names of models: `provider:model` as people write it, and what providers report of themselves."""

from __future__ import annotations

import re
from typing import NamedTuple

#: How providers pin a name they were asked for: 2026-01-01, 20260101, 2026-01, 2601, 01-31, 0131 or build 002.
_SNAPSHOT = re.compile(r"[-@](?:20\d\d-?[01]\d(?:-?[0-3]\d)?|2\d[01]\d|[01]\d-?[0-3]\d|00\d)$")


class ModelName(NamedTuple):
    provider: str  #: empty for a plain name such as `offline`
    model: str


def parse(text: str) -> ModelName:
    """Only the first colon divides: `ollama:qwen3:8b` is the model `qwen3:8b` of `ollama`."""
    provider, colon, model = text.partition(":")
    return ModelName(provider, model) if colon else ModelName("", text)


def same_model(requested: str, effective: str) -> bool:
    """A dated snapshot of what was asked for is the same model, and so is its `latest`. Anything else is not."""
    wanted, got = _bare(requested), _bare(effective)
    return wanted in (got, _SNAPSHOT.sub("", got))


def _bare(name: str) -> str:
    """Without what says where a model lies (`models/…`) and which tag is meant by default."""
    return name.removeprefix("models/").removesuffix(":latest").removesuffix("-latest").casefold()
