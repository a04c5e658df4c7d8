"""Durable background subagents for Python. Importing this package has no side effects."""

from __future__ import annotations

__version__ = "0.1.0"
