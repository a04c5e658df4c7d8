"""Queries for the engine and the surfaces. `targets.py` and `transcripts.py` also write (see ARCHITECTURE.md)."""

from __future__ import annotations
