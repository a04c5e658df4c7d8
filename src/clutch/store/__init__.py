"""The store runs transactions on SQLite and PostgreSQL, many per commit, without knowing their meaning."""

from __future__ import annotations
