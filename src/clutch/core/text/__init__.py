"""Every sentence that models and users read, built from values."""

from __future__ import annotations
