"""Reproducible randomness: one tree of named streams, so that no two purposes ever share numbers.

Only simulations draw keys and seeds from here; a real peer takes them from the operating system.
"""

from __future__ import annotations

import hashlib

import numpy as np

from cesar.base.types import Entropy


class SeedTree:
    """Streams derived from one seed and a path of names.

    >>> SeedTree(7).bytes(4, "keys", 0) == SeedTree(7).bytes(4, "keys", 0)
    True
    >>> SeedTree(7).bytes(4, "keys", 0) == SeedTree(7).bytes(4, "keys", 1)
    False
    """

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)

    def _hash(self, path: tuple[str | int, ...]) -> hashlib.shake_256:  # type: ignore[valid-type]
        plain = tuple(name if isinstance(name, str) else int(name) for name in path)
        label = repr((self.seed, *plain)).encode()
        return hashlib.shake_256(b"cesar seeds" + label)

    def bytes(self, count: int, *path: str | int) -> bytes:
        """That many bytes, always the same for the same path."""
        return self._hash(path).digest(count)  # type: ignore[attr-defined, no-any-return]

    def generator(self, *path: str | int) -> np.random.Generator:
        """A numpy generator for data, initial models and schedules (never for masks)."""
        return np.random.Generator(np.random.PCG64(int.from_bytes(self.bytes(16, *path), "little")))

    def entropy(self, *path: str | int) -> Entropy:
        """A source of bytes that never repeats itself, and starts again the same for the same path."""
        draws = 0

        def draw(count: int) -> bytes:
            nonlocal draws
            draws += 1
            return self.bytes(count, *path, "draw", draws)

        return draw
