"""Runs transactions on SQLite and PostgreSQL, many to a commit, and knows nothing of what they mean."""

from __future__ import annotations
