"""Uniform words from a stream cipher: AES in counter mode, with 256-bit keys for masks.

On processors with AES instructions it is about twice as fast as ChaCha20 (5.9 against 3.2 GB/s per core
where this was written), and OpenSSL falls back to constant-time code elsewhere. Each key makes one stream
and is used for nothing else, so the counter starts at zero.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from cesar.base.types import BitWords, RingWords

_ZEROS = memoryview(bytes(1 << 20))
_BLOCK = 16


def stream_cipher(key: bytes) -> CipherContext:
    """Encrypts or decrypts one text with a key that is used for nothing else."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK))).encryptor()


class Keystream:
    """The words of one key, in order; each is given out once, unless somebody seeks."""

    __slots__ = ("_cipher",)

    def __init__(self, key: bytes) -> None:
        self._cipher = stream_cipher(key)

    def seek(self, start: int) -> None:
        """Go on at this byte. The caller sees to it that no two parts overlap."""
        counter, rest = divmod(start, _BLOCK)
        self._cipher.reset_nonce(counter.to_bytes(_BLOCK, "big"))
        if rest:
            self._cipher.update(bytes(rest))

    def fill(self, out: RingWords | BitWords) -> None:
        """Overwrite `out` with the next words of the stream (little end first)."""
        view = out.view(np.uint8).data
        for start in range(0, len(view), len(_ZEROS)):
            part = view[start : start + len(_ZEROS)]
            self._cipher.update_into(_ZEROS[: len(part)], part)

    def words(self, count: int) -> RingWords:
        """The next `count` 32-bit words."""
        out = np.empty(count, dtype="<u4")
        self.fill(out)
        return out.astype(np.uint32, copy=False)
