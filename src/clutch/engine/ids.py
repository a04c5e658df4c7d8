"""New numbers and new secrets. Numbers come from a block the database gave to this process alone."""

from __future__ import annotations

import os
import uuid
from typing import Protocol

BLOCK_BITS = 31  # ids of one process; 2^22 process starts still fit a double's 53 bits
NONCES = 64  # read at a time: asking the system for each took a tenth of the event loop's time


class Ids(Protocol):
    def take_block(self, number: int) -> None: ...

    def next(self) -> int: ...

    def uuid4(self) -> str: ...

    def nonce(self) -> str: ...


class BlockIds:
    def __init__(self) -> None:
        self._next = 0
        self._nonces: list[str] = []

    def take_block(self, number: int) -> None:
        self._next = number << BLOCK_BITS

    def next(self) -> int:
        self._next += 1
        return self._next

    def uuid4(self) -> str:
        return str(uuid.uuid4())

    def nonce(self) -> str:
        if not self._nonces:
            digits = os.urandom(16 * NONCES).hex()
            self._nonces = [digits[at : at + 32] for at in range(0, len(digits), 32)]
        return self._nonces.pop()
