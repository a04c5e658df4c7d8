"""The rules, as pure functions without clock, randomness or I/O: all other packages ask them."""
