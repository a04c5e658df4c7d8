"""What must hold, asked after every commit of a simulated world: T1–T18 and N1–N33, as far as they apply."""

from __future__ import annotations
