"""Worlds in virtual time: the real engine of several gateways over one real SQLite, with faults, from a seed."""

from __future__ import annotations
