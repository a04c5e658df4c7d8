"""The Python API, and the actions, reads and JSON objects that all surfaces share."""

from __future__ import annotations
