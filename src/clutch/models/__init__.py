"""Model adapters: providers, router, rate limiter, prices and the demo model."""

from __future__ import annotations
