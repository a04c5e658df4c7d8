"""Ways to a person: adapters that show one text and say whether it arrived."""

from __future__ import annotations
