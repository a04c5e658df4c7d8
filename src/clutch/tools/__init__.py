"""What an agent can do in the world: tools, and the box that checks their arguments and runs them."""

from __future__ import annotations
