"""Runs things: claims sessions, drives turns, rings timers. Awaits, and owns no rule."""
