"""The rules, as pure functions: no clock, no randomness, no I/O. Everything else asks here."""
