"""What users need to test their own agents, and what the project's own trust tests run on."""

from __future__ import annotations
