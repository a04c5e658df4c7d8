"""Clutch with `adapter: "direct"`, its own client for OpenAI-compatible endpoints. All else is as in `clutch.py`."""

from __future__ import annotations

from functools import partial

from benchmarks.peers.clutch import opened
from benchmarks.peers.worker import serve
from clutch.models.provider import AdapterKind

if __name__ == "__main__":
    serve(partial(opened, adapter=AdapterKind.DIRECT))
