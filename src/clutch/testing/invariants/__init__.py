"""The invariants T1-T18 and N1-N34, checked after every commit of a simulated world as far as they apply."""

from __future__ import annotations
