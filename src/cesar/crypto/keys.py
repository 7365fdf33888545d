"""Key agreement and key derivation: every derived key has a purpose and its whole context in its label.

    X25519(own private, peer's public) ──HKDF-Extract──▶ static secret        once per pair and session
    static secret, X25519(ephemerals)  ──HKDF-Extract──▶ pair secret          once per pair of ephemeral keys
    pair secret ──HKDF-Expand(label)──▶ mask key ‖ mask check                 once per pair, attempt and receiver

A node replaces its ephemeral key at every start and every `EPOCH_ROUNDS` rounds, and forgets the old private half.
Whoever takes a node's long-lived key later cannot make the masks of the past again: that needs a private half that
is gone. Whoever exchanges an ephemeral key on its way gets masks that do not cancel, for it lacks the static secret.

The label of a mask names everything that must never give the same mask twice: protocol version, session,
round, the two ids in ascending order, the receiver, and the fresh 16-byte seeds that the two drew for this
attempt. A node that restarts and repeats a round draws a new seed, so its masks are unrelated to the old.

It also names everything that the two must have been told alike: the receiver's terms (its scale and its
group) and a digest of the positions that they have in common. Masks made from different stories do not
cancel. Without this a receiver could tell all but one sender a scale at which their values round to zero,
and read the last one; and a relay could shift one mask against the other.

HKDF is RFC 5869 with SHA-512. One block of it gives 64 bytes: 32 for the cipher, 4 for the check (a
receiver compares the checks of two shares to see that both carry the same mask), the rest unused.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from cesar.errors import DataError
from cesar.types import BitWords, Entropy, NodeId, RoundNo

VERSION = 2
SEED_BYTES = 16
PUBLIC_BYTES = 32
EPOCH_ROUNDS = 64
SESSION_BYTES = 16
CHECK_BYTES = 4
FACTS_BYTES = 8


def hkdf_extract(salt: bytes, secret: bytes) -> bytes:
    """RFC 5869, section 2.2, with SHA-512."""
    return hmac.digest(salt, secret, "sha512")


def hkdf_expand_block(key: bytes, label: bytes) -> bytes:
    """The first block, 64 bytes, of RFC 5869 section 2.3 with SHA-512: all that we ever need."""
    return hmac.digest(key, label + b"\x01", "sha512")


@dataclass(frozen=True, slots=True)
class PairSecret:
    """What two nodes share and nobody else knows."""

    key: bytes = field(repr=False)


class MaskKey(NamedTuple):
    """The key of one mask, and a public word that two equal masks have in common."""

    key: bytes
    check: bytes

    def __repr__(self) -> str:
        return f"MaskKey(check={self.check!r})"


class KeyPair:
    """A node's agreement key. The private half never leaves this object."""

    __slots__ = ("_private", "public")

    def __init__(self, private: X25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, entropy: Entropy) -> KeyPair:
        """A key from fresh entropy: `os.urandom` for a peer, a seeded stream for a simulated node."""
        return cls(X25519PrivateKey.from_private_bytes(entropy(32)))

    def agree(self, peer_public: bytes, session: bytes) -> PairSecret:
        """The static secret of this node and the owner of `peer_public`, for one session.

        Raises:
            DataError: the public key is not a valid X25519 key.
        """
        low, high = sorted((self.public, peer_public))
        return PairSecret(hkdf_extract(b"cesar pair" + session, self.exchange(peer_public) + low + high))

    def exchange(self, peer_public: bytes) -> bytes:
        """The bare X25519 agreement, which is key material and not yet a key.

        Raises:
            DataError: the public key is not a valid X25519 key.
        """
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(peer_public))
        except ValueError as error:
            raise DataError(f"a peer's public key is not a usable X25519 key: {error}") from None

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()[:16]}…)"


class Keyring:
    """A node's keys in one session: long-lived ones that it is given, ephemeral ones that it makes and forgets.

    Args:
        static: gives the static secret with a peer.
        entropy: epoch → 32 fresh bytes for the ephemeral key of these rounds.
        exchange: agrees with a peer's public key; a simulation, which has both sides, need not do it twice.
    """

    def __init__(
        self,
        static: Callable[[NodeId], PairSecret],
        entropy: Callable[[int], bytes],
        epoch_rounds: int = EPOCH_ROUNDS,
        exchange: Callable[[KeyPair, bytes], bytes] = KeyPair.exchange,
    ) -> None:
        self._static, self._entropy, self._length = static, entropy, epoch_rounds
        self._exchange = exchange
        self._epoch = -1
        self._own: KeyPair | None = None
        self._secrets: dict[tuple[NodeId, bytes], PairSecret] = {}

    def public(self, round_: RoundNo) -> bytes:
        """The public half to announce in this round; a new epoch makes a new key and forgets the old one."""
        epoch = round_ // self._length
        if self._own is None or epoch != self._epoch:
            self._own = KeyPair.generate(lambda _: self._entropy(epoch))
            self._epoch = epoch
            self._secrets.clear()
        return self._own.public

    def secret(self, peer: NodeId, public: bytes) -> PairSecret:
        """The pair secret with a peer that announced this ephemeral key.

        Raises:
            DataError: it is not a usable X25519 key.
        """
        assert self._own is not None, "announced before anything is agreed"
        if (peer, public) not in self._secrets:
            for known in [key for key in self._secrets if key[0] == peer]:
                del self._secrets[known]  # a peer has one ephemeral key at a time
            low, high = sorted((self._own.public, public))
            material = self._static(peer).key + self._exchange(self._own, public) + low + high
            self._secrets[peer, public] = PairSecret(hkdf_extract(b"cesar ephemeral", material))
        return self._secrets[peer, public]

    def __repr__(self) -> str:
        return "Keyring()"


class RoundId(NamedTuple):
    """Which round of which session: what all masks of it have in common."""

    session: bytes
    round_: RoundNo


_MASK = b"cesar mask" + struct.pack("<B", VERSION)
_MASK_IDS = struct.Struct("<IIII")


def digest_positions(words: BitWords) -> bytes:
    """SHA-256 of a bitmap, for comparing what two nodes believe about a set."""
    return hashlib.sha256(words.astype("<u8", copy=False).view(np.uint8).data).digest()


def facts_of(token: bytes, terms: bytes, partners: Mapping[NodeId, tuple[bytes, bytes]]) -> bytes:
    """What a share rests on: its sender's token, the receiver's terms, and what is known of each partner.

    The receiver computes the same from what it has said and from the announcements that it holds. If a
    node, or the receiver itself, restarted in mid-round, the two differ and the share is refused.

    Args:
        partners: partner → (its token, digest of the common positions).
    """
    parts = [b"cesar facts", token, terms]
    for node in sorted(partners):
        parts += partners[node]
    return hashlib.sha256(b"".join(parts)).digest()[:FACTS_BYTES]


def mask_key(
    secret: PairSecret,
    attempt: RoundId,
    *,
    nodes: tuple[NodeId, NodeId],
    seeds: tuple[bytes, bytes],
    receiver: NodeId,
    terms: bytes,
    common: bytes,
) -> MaskKey:
    """The key of the mask that the pair puts on what it sends to one receiver.

    Args:
        nodes: the two ids; `seeds` are theirs in the same order. Either order gives the same key.
        terms: what the receiver said about its sum, as both heard it.
        common: digest of the positions that both believe to have selected.
    """
    (low, high), (seed_low, seed_high) = nodes, seeds
    if low > high:
        low, high, seed_low, seed_high = high, low, seed_high, seed_low
    context = b"".join(
        (
            _MASK,
            attempt.session,
            _MASK_IDS.pack(attempt.round_, low, high, receiver),
            seed_low,
            seed_high,
            common,
            terms,  # last, because its length follows from the receiver's degree
        )
    )
    block = hkdf_expand_block(secret.key, context)
    return MaskKey(block[:32], block[32 : 32 + CHECK_BYTES])
