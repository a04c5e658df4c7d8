"""What a person or a program may ask of a running engine, in their words."""

from __future__ import annotations
