"""What cannot be avoided: the keystream of all masks, made with the cipher alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from cesar.crypto.keystream import Keystream

BLOCK = 65_536
"""Words made at a time: 256 KiB, which stays in the cache."""


def seconds(job: Callable[[], object]) -> float:
    """How long a job takes."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def keystream_seconds(masks: int, words: int) -> float:
    """Seconds to make this number of masks, of `words` 32-bit words each, on all cores."""

    def make(mask: int) -> None:
        stream = Keystream(mask.to_bytes(32, "little"))
        block = np.empty(min(BLOCK, words), dtype=np.uint32)
        for start in range(0, words, BLOCK):
            stream.fill(block[: words - start])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return seconds(lambda: list(pool.map(make, range(masks))))
