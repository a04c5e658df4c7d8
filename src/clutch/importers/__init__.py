"""Importers read tasks of other systems and store them as tasks of Clutch."""

from __future__ import annotations
