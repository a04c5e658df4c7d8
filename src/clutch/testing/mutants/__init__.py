"""Planted bugs, each of which a named promise must find. They show that the simulation has teeth."""

from __future__ import annotations
