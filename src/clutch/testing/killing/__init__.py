"""Real processes that are killed with -9 and raced against each other, judged by a witness outside."""

from __future__ import annotations
