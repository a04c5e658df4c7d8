"""The engine claims sessions, drives turns and fires timers: it awaits, and `core` decides."""
