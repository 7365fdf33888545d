"""Key agreement and key derivation: every derived key has a purpose and its whole context in its label.

    X25519(own private, peer's public) ──HKDF-Extract──▶ static secret        once per pair and session
    static secret, X25519(ephemerals)  ──HKDF-Extract──▶ pair secret          once per pair of ephemeral keys
    pair secret ──HKDF-Expand(label)──▶ mask key ‖ mask check                 once per pair, attempt and receiver

A peer has another ephemeral key in every round, and forgets its private half when the round is over; a simulated node, which
protects nothing, has one for `EPOCH_ROUNDS` rounds.
A thief of a node's long-lived key cannot make the masks of the past again: that needs a private half that
is gone. Somebody who exchanges an ephemeral key on its way gets masks that do not cancel, for it lacks the static secret.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from cesar.base.errors import DataError
from cesar.base.types import BitWords, Buffer, Entropy, NodeId, RoundNo

VERSION = 3
SEED_BYTES = 16
PUBLIC_BYTES = 32
EPOCH_ROUNDS = 64
SESSION_BYTES = 16
CHECK_BYTES = 4
FACTS_BYTES = 8
LOSSES_BYTES = 8


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
        # A new epoch forgets the private half, and with it every secret that it made: what was recorded before stays closed even
        # if this machine is taken tomorrow.
        if self._own is None or epoch != self._epoch:
            self._own = KeyPair.generate(lambda _: self._entropy(epoch))
            self._epoch = epoch
            self._secrets.clear()
        return self._own.public

    def ended(self) -> None:
        """A round is over. Where each has a key of its own, that goes now, and not only when the next one begins."""
        if self._length == 1:
            self._own = None
            self._secrets.clear()

    def secret(self, peer: NodeId, public: bytes) -> PairSecret:
        """The pair secret with a peer that announced this ephemeral key.

        Raises:
            DataError: it is not a usable X25519 key.
        """
        assert self._own is not None, "announced before anything is agreed"
        if (peer, public) not in self._secrets:
            for known in [key for key in self._secrets if key[0] == peer]:
                del self._secrets[known]  # a peer has one ephemeral key at a time
            # Both halves go in, in an order that both ends know, so that the secret is bound to these two keys. The static secret goes
            # in, too: somebody who swaps an ephemeral key on its way does not have it.
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
    round_id: RoundId,
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
            round_id.session,
            _MASK_IDS.pack(round_id.round_, low, high, receiver),
            seed_low,
            seed_high,
            common,
            terms,  # last, because its length follows from the receiver's degree
        )
    )
    block = hkdf_expand_block(secret.key, context)
    return MaskKey(block[:32], block[32 : 32 + CHECK_BYTES])


# ── cells ───────────────────────────────────────────────────────────────────────────────────────────────

DIGEST_BYTES = 32
_CELL_MASK = b"cesar cell mask" + struct.pack("<B", VERSION)


def cell_terms(cell: int, members: Sequence[NodeId], scale: bytes, positions: bytes, chain: bytes) -> bytes:
    """Digest of all that the members of a sum have agreed on, but for their tokens.

    Args:
        scale: the exponents of the sum.
        positions: digest of U.
        chain: names the common model that everybody has trained from.
    """
    ids = struct.pack(f"<II{len(members)}I", cell, len(members), *members)
    return hashlib.sha256(
        b"".join((b"cesar cell terms", ids, positions, chain, scale))
    ).digest()  # the scale comes last: its length follows from the network's settings


def cell_losses(*parts: bytes) -> bytes:
    """What a member of a cell has thrown away so far, in a few bytes: equal if it was the same in the same rounds."""
    return hashlib.sha256(b"".join((b"cesar cell losses", *parts))).digest()[:LOSSES_BYTES]


def cell_facts(terms: bytes, tokens: Iterable[bytes]) -> bytes:
    """What a masked slice rests on: the terms, and the tokens of all members in ascending order."""
    return hashlib.sha256(b"".join((b"cesar cell facts", terms, *tokens))).digest()[:FACTS_BYTES]


def cell_mask_key(
    secret: PairSecret,
    round_id: RoundId,
    *,
    nodes: tuple[NodeId, NodeId],
    seeds: tuple[bytes, bytes],
    cell: int,
    terms: bytes,
) -> MaskKey:
    """The key of the mask that two members of a cell put on what they hand in in a round, all slices of it.

    Args:
        nodes: the two ids; `seeds` are theirs in the same order. Either order gives the same key.
        terms: from `cell_terms`; members that hold different models, or were told different things, get other masks.
    """
    (low, high), (seed_low, seed_high) = nodes, seeds
    if low > high:
        low, high, seed_low, seed_high = high, low, seed_high, seed_low
    ids = _MASK_IDS.pack(round_id.round_, low, high, cell)
    block = hkdf_expand_block(
        secret.key, b"".join((_CELL_MASK, round_id.session, ids, seed_low, seed_high, terms))
    )
    return MaskKey(block[:32], block[32 : 32 + CHECK_BYTES])


def chain_start(model: NDArray[np.float32]) -> bytes:
    """The first link: names the model that a cell begins with."""
    return hashlib.sha256(b"cesar cell start" + model.astype("<f4", copy=False).tobytes()).digest()


def chain_link(base: bytes, round_: int, keepers: Sequence[NodeId], digests: Sequence[bytes]) -> bytes:
    """The next link: what was gathered in a round, slice by slice; an empty digest stands for a slice nobody has."""
    ids = struct.pack(f"<II{len(keepers)}I", round_, len(keepers), *keepers)
    named = b"".join(digest or bytes(DIGEST_BYTES) for digest in digests)
    return hashlib.sha256(b"".join((b"cesar cell chain", base, ids, named))).digest()


def slice_digest(body: Buffer) -> bytes:
    """Names what one keeper has sent."""
    digest = hashlib.sha256(b"cesar cell slice")
    digest.update(body)
    return digest.digest()


def model_digest(body: Buffer) -> bytes:
    """Names a whole common model, for a member that has to be given it."""
    digest = hashlib.sha256(b"cesar cell model")
    digest.update(body)
    return digest.digest()
