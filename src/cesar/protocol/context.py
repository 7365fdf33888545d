"""What all parts of one node's attempt at a round have in common: who it is, what it brings, and its keys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import Reason, RemoteProtocolError
from cesar.base.types import Entropy, NodeId
from cesar.crypto.keys import SEED_BYTES, Keyring, MaskKey, RoundId, mask_key
from cesar.graph.neighbourhood import Neighbourhood
from cesar.indices import IndexSet
from cesar.kernels import ring
from cesar.methods import Cesar
from cesar.protocol.events import Contribution, Outbound
from cesar.protocol.sender import dither_for
from cesar.protocol.wire import Announce, Header, Kind, Token


class Announced(NamedTuple):
    """What a neighbour has said about itself."""

    token: Token
    exponents: tuple[int, ...]
    indices: IndexSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One masked attempt at a round.

    Attributes:
        token: drawn for this attempt and announced.
        edges: where each tensor of the model ends.
        scale_bits: a neighbour's values may be 2^this times as large as this model's, or as 1; None: as large as any.
    """

    method: Cesar
    round_id: RoundId
    hood: Neighbourhood
    own: Contribution
    keys: Keyring
    edges: NDArray[np.int64] = field(repr=False)
    token: Token
    dither: bytes = field(repr=False)
    scale_bits: int | None = None
    me: NodeId = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "me", self.hood.node)
        object.__setattr__(self, "size", len(self.own.vector))

    @classmethod
    def drawn(
        cls,
        method: Cesar,
        round_id: RoundId,
        hood: Neighbourhood,
        own: Contribution,
        keys: Keyring,
        edges: NDArray[np.int64],
        entropy: Entropy,
        scale_bits: int | None = None,
    ) -> Context:
        """With fresh seeds."""
        token = Token(entropy(SEED_BYTES), keys.public(round_id.round_))
        return cls(
            method=method,
            round_id=round_id,
            hood=hood,
            own=own,
            keys=keys,
            edges=edges,
            token=token,
            dither=entropy(SEED_BYTES),
            scale_bits=scale_bits,
        )

    @property
    def everybody(self) -> int:
        """Over how many values a mean goes, with the own one for those missing; 0 for those that arrived."""
        return len(self.hood.view) + 1 if self.method.weights == "neighbours" else 0

    def header(self, kind: Kind) -> Header:
        return Header(kind, self.round_id, self.me)

    def refusal(self, sender: NodeId, reason: Reason, detail: str) -> RemoteProtocolError:
        return RemoteProtocolError(sender, reason, detail, self.round_id.round_)

    @contextlib.contextmanager
    def blaming(self, peer: NodeId) -> Iterator[None]:
        """What fails in here is the doing of what this node said, though it passed for a frame."""
        try:
            yield
        except RemoteProtocolError:
            raise
        except Exception as error:
            raise RemoteProtocolError.fault(peer, error, self.round_id.round_) from error

    def check_scale(self, sender: NodeId, announced: tuple[int, ...]) -> None:
        """Refuse a neighbour whose values could be so large that the sum would mean nothing."""
        bits = self.scale_bits
        if bits is not None and any(
            e > max(own, 0) + bits for e, own in zip(announced, self.own.exponents, strict=True)
        ):
            raise self.refusal(
                sender,
                Reason.UNSAFE_SCALE,
                f"it announces values up to 2^{max(announced)}, over 2^{bits} times those of this model",
            )

    def announcement(self, recipients: Iterable[NodeId]) -> Outbound:
        """What this node says about itself."""
        indices = self.method.sparsifier.write(self.own.selected, self.method.index_code)
        message = Announce(token=self.token, exponents=self.own.exponents, indices=indices)
        return Outbound(
            recipients=tuple(sorted(recipients)), frame=message.encode(self.header(Kind.ANNOUNCE))
        )

    def mask(self, receiver: NodeId, j: NodeId, token: Token, terms: bytes, common: bytes) -> MaskKey:
        """The key of the mask that this node and j put on what they send to a receiver.

        Raises:
            DataError: j's token holds no usable key.
        """
        return mask_key(
            self.keys.secret(j, token.ephemeral),
            self.round_id,
            nodes=(self.me, j),
            seeds=(self.token.seed, token.seed),
            receiver=receiver,
            terms=terms,
            common=common,
        )

    def grid(self, exponents: tuple[int, ...], contributors: int) -> ring.Grid:
        """The grid on which this number of values is added up."""
        if self.method.decimals is not None:
            return ring.decimal_grid(self.method.decimals, self.size)
        return ring.binary_grid(self.method.ring_bits, self.edges, exponents, contributors)

    def dither_for(self, receiver: NodeId, grid: ring.Grid) -> int:
        """The seed of rounding towards a receiver; 0 where it is to nearest."""
        return dither_for(self.dither, receiver) if grid.stochastic else 0
