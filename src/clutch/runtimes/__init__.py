"""Alternatives to the built-in agent loop: each implements `ports.Runtime`."""
