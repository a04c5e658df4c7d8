"""New numbers and new secrets. Numbers come from a block the database gave to this process alone."""

from __future__ import annotations

import os
import uuid
from typing import Protocol

BLOCK_BITS = 31  # ids of one process; 2^22 process starts still fit a double's 53 bits


class Ids(Protocol):
    def take_block(self, number: int) -> None: ...

    def next(self) -> int: ...

    def uuid4(self) -> str: ...

    def nonce(self) -> str: ...


class BlockIds:
    def __init__(self) -> None:
        self._next = 0

    def take_block(self, number: int) -> None:
        self._next = number << BLOCK_BITS

    def next(self) -> int:
        self._next += 1
        return self._next

    def uuid4(self) -> str:
        return str(uuid.uuid4())

    def nonce(self) -> str:
        return os.urandom(16).hex()
