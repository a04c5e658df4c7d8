"""Who answers: adapters that turn a transcript into the next answer of a model."""

from __future__ import annotations
