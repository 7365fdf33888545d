"""The ways to average: CESAR, plain secure aggregation, and the unprotected baseline D-PSGD."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, cast, get_args

import networkx as nx

from cesar.errors import ConfigError
from cesar.grouping import (
    Draws,
    Groups,
    check_group_collusion,
    check_group_size,
    check_plan,
    groups,
    plan,
)
from cesar.indices import Code
from cesar.ring import RING_BITS
from cesar.sparsify import AnySparsifier, CoordinatedSubsampling, FullSharing, RandomSubsampling
from cesar.theory import required_alpha
from cesar.topology import Owners, check_degrees, check_strict, strict_requirement

Coordination = Literal["relay", "direct"]
Dropout = Literal["parameter", "abort"]
Weights = Literal["arrived", "neighbours"]
"""How sums become models: the mean of the own value and what arrived, or the mean over all neighbours, where the own
value stands for what did not arrive."""


SET_CODES = (Code.BITMAP, Code.PATTERNS, Code.RICE, Code.ELIAS_GAMMA, Code.ENTROPY)
"""Codes that can write any set."""


def _check_sparsifier(value: object) -> None:
    if not isinstance(value, CoordinatedSubsampling) and not hasattr(value, "select"):
        raise ConfigError(f"{value!r} is not a sparsifier; use TopK(α), RandomSubsampling(α) or another one")


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices or isinstance(value, float):
        raise ConfigError(f"{name} is {value!r}, but it must be one of {', '.join(map(repr, choices))}")


def usual_ring_bits(group_size: int | None) -> int:
    """16 bits learn as much as 32 where values are rounded after they were masked (design/015-how-wide-a-ring.md)."""
    return 32 if group_size is None else 16


def usual_scale_bits(method: Method) -> int:
    """Neighbours' values may be 2^this times one's own, or 1: what a ring can hold and still tell small values apart."""
    return 16 if isinstance(method, DPSGD) or method.ring_bits == 32 else 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Cesar:
    """Masked sparse averaging.

    Attributes:
        sparsifier: which parameters a node selects.
        masking_requirement: s, the pairwise masks that a parameter must carry to be sent; 1, or with
            `collusion` what the graph asks for.
        collusion: k, how many nodes may pool what they know without reading anybody's value (strict mode).
        group_size: m; a receiver then sees sums over whole groups of its neighbours only, always the same ones, of at
            least m members each. Everybody in a group sends what any of its members selected (or, with random
            subsampling, what is drawn for the group). Takes the place of `masking_requirement`.
        regroup_after: the rest of a group may go on without a member, but sums with different members are so many rounds
            apart, when it leaves and when it comes back. Off by default: the difference of two such sums is its value,
            but for what the others changed in these rounds.
        weights: "arrived" averages the own value with what arrived; "neighbours" over all neighbours, with the own
            value for what did not arrive.
        ring_bits: b, the bits of a value on the wire: 16, 20, 24 or 32. Left out it is 16 with groups and 32 without.
        coordination: "relay" through common neighbours, or "direct" to all of View2 as in the paper.
        dropout: "parameter" drops what a missing node had selected; "abort" keeps the own model.
        index_code: write index sets with this code instead of the one that suits them.
        explicit_indices: send the indices again beside the values, as the paper does.
        decimals: fixed decimal places instead of a scale that follows the model.
        groups: the groups of every receiver, once they are settled for a graph (`for_graph`).
    """

    sparsifier: AnySparsifier
    masking_requirement: int | None = None
    collusion: int | None = None
    group_size: int | None = None
    regroup_after: int | None = None
    weights: Weights = "arrived"
    ring_bits: int = None  # type: ignore[assignment]  # a number once it is made
    coordination: Coordination = "relay"
    dropout: Dropout = "parameter"
    index_code: Code | None = field(default=None)
    explicit_indices: bool = False
    decimals: int | None = None
    groups: Groups | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_sparsifier(self.sparsifier)
        if self.group_size is not None or self.regroup_after is not None:
            self._check_groups()
        elif self.collusion is None and self.masking_requirement is None:
            object.__setattr__(self, "masking_requirement", 1)
        s = self.masking_requirement
        if self.collusion is not None and (not isinstance(self.collusion, int) or self.collusion < 1):
            raise ConfigError(f"collusion is {self.collusion}, but it must be an integer of at least 1")
        if s is not None and (not isinstance(s, int) or s < 1):
            raise ConfigError(
                f"masking_requirement is {s}, but it must be an integer of at least 1: "
                "a parameter without a mask would be sent in the clear"
            )
        if cast("int | None", self.ring_bits) is None:
            object.__setattr__(self, "ring_bits", usual_ring_bits(self.group_size))
        _check_choice("ring_bits", self.ring_bits, RING_BITS)
        _check_choice("coordination", self.coordination, get_args(Coordination))
        _check_choice("dropout", self.dropout, get_args(Dropout))
        _check_choice("weights", self.weights, get_args(Weights))
        _check_choice("index_code", self.index_code, (None, *SET_CODES))
        if self.decimals is not None and self.ring_bits != 32:
            raise ConfigError("fixed decimals need ring_bits=32")

    def _check_groups(self) -> None:
        """Refuse what does not go with groups."""
        if self.group_size is None:
            raise ConfigError("regroup_after is about groups; set group_size, too")
        check_group_size(self.group_size)
        if self.masking_requirement is not None:
            raise ConfigError(
                f"group_size={self.group_size} decides how many masks a value carries (one less); "
                "leave masking_requirement out"
            )
        if isinstance(self.sparsifier, CoordinatedSubsampling):
            raise ConfigError(
                "groups coordinate their members already; use RandomSubsampling with group_size"
            )
        if self.coordination == "direct" or self.explicit_indices or self.decimals is not None:
            raise ConfigError(
                "groups are not part of the paper's exchange; drop group_size or the paper's settings"
            )
        after = self.regroup_after
        if after is not None and (not isinstance(after, int) or after < 1):
            raise ConfigError(
                f"regroup_after is {after}, but it must be an integer of at least 1, or left out"
            )
        if self.collusion is not None and isinstance(self.collusion, int):
            check_group_collusion(self.group_size, self.collusion)

    @classmethod
    def paper(
        cls, *, sparsifier: AnySparsifier, masking_requirement: int = 1, dropout: Dropout = "abort"
    ) -> Cesar:
        """The exchange of the paper, byte for byte in kind: direct coordination with all of View2,
        Elias-gamma indices, indices again beside the values, six decimals in 32-bit words.

        `dropout="parameter"` adds what the paper prints in blue: sets go to direct neighbours too.
        """
        return cls(
            sparsifier=sparsifier,
            masking_requirement=masking_requirement,
            coordination="direct",
            dropout=dropout,
            index_code=Code.ELIAS_GAMMA,
            explicit_indices=True,
            decimals=6,
        )

    def for_graph(
        self,
        graph: nx.Graph,
        *,
        network: bytes = b"",
        draws: Draws | None = None,
        owners: Owners | None = None,
    ) -> Cesar:
        """This method settled for a graph: with its groups, or with s as given or as `collusion` demands there.

        Args:
            network: the network's name, which the groups depend on.
            draws: which division each receiver uses; without them they are planned where `collusion` asks for it.
            owners: who runs which node. An owner's nodes count as one colluder, and one is assumed at the least.

        Raises:
            PrivacyError: the colluders would not be stopped, or a receiver would get nothing.
        """
        collusion = self.collusion or (1 if owners else None)
        if self.group_size is not None:
            given = draws is not None
            if draws is None and collusion is not None:
                draws = plan(graph, self.group_size, collusion, network=network, owners=owners)
            table = groups(graph, self.group_size, network=network, draws=draws)
            if given and collusion is not None:
                check_plan(graph, table, collusion, owners)
            return replace(self, groups=table)
        if collusion is None:
            check_degrees(graph, self.masks)
            return self
        s = self.masking_requirement or strict_requirement(graph, collusion, owners)
        check_strict(graph, collusion, s, owners)
        return replace(self, masking_requirement=s)

    @property
    def masks(self) -> int:
        """s, once it is settled.

        Raises:
            ConfigError: it depends on a graph that this method has not seen.
        """
        if self.group_size is not None:
            return self.group_size - 1
        if self.masking_requirement is None:
            raise ConfigError("with collusion, s follows from the graph: use method.for_graph(graph)")
        return self.masking_requirement

    @property
    def has_terms(self) -> bool:
        """Whether a receiver tells its senders who takes part and at what scale (a relay frame)."""
        return self.coordination == "relay" or self.decimals is None

    @property
    def receiver_decides(self) -> bool:
        """Whether nobody selects: what is sent to a receiver follows from the receiver and the round."""
        if self.group_size is not None:
            return isinstance(self.sparsifier, RandomSubsampling | FullSharing)
        return isinstance(self.sparsifier, CoordinatedSubsampling)

    @property
    def receivers_need_sets(self) -> bool:
        """Whether a receiver must hold its neighbours' announcements to read and check their shares."""
        return self.has_terms or not self.explicit_indices or self.dropout == "parameter"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureAggregation:
    """Plain secure aggregation: every parameter, masked by all other neighbours of the receiver, or of its group."""

    group_size: int | None = None
    collusion: int | None = None
    regroup_after: int | None = None
    weights: Weights = "arrived"
    ring_bits: int = None  # type: ignore[assignment]  # a number once it is made
    dropout: Dropout = "parameter"
    groups: Groups | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ring_bits", self.as_cesar().ring_bits)

    def as_cesar(self) -> Cesar:
        """It is CESAR without sparsification."""
        return Cesar(
            sparsifier=FullSharing(),
            collusion=self.collusion,
            group_size=self.group_size,
            regroup_after=self.regroup_after,
            weights=self.weights,
            ring_bits=self.ring_bits,
            dropout=self.dropout,
            groups=self.groups,
        )

    def for_graph(
        self,
        graph: nx.Graph,
        *,
        network: bytes = b"",
        draws: Draws | None = None,
        owners: Owners | None = None,
    ) -> SecureAggregation:
        """The same with its groups, on a graph where every receiver has neighbours enough."""
        settled = self.as_cesar().for_graph(graph, network=network, draws=draws, owners=owners)
        return replace(self, groups=settled.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class DPSGD:
    """D-PSGD with Metropolis–Hastings weights: the baseline, which protects nothing.

    With noise it is the approach of Muffliato (Cyffers et al., 2022): each node adds Gaussian noise to its model, and
    several gossip steps follow in which the noise averages out. Both are for comparisons in simulations; real
    peers refuse them.

    Attributes:
        sparsifier: which parameters a node sends; None sends all of them.
        index_code: write index sets with this code instead of the one that suits them.
        noise: σ, the standard deviation of the noise on every parameter that is shared.
        gossip_steps: how often neighbours average in a round.
        weights: "neighbours" gives every neighbour its Metropolis–Hastings weight, with the own value for what it did
            not send; "arrived" averages the own value with what arrived.
    """

    sparsifier: AnySparsifier | None = None
    weights: Weights = "neighbours"
    index_code: Code | None = None
    noise: float = 0.0
    gossip_steps: int = 1

    def __post_init__(self) -> None:
        if self.sparsifier is not None:
            _check_sparsifier(self.sparsifier)
        if not 0.0 <= self.noise < float("inf"):
            raise ConfigError(f"noise is {self.noise}, but a standard deviation is 0 or more")
        if not isinstance(self.gossip_steps, int) or self.gossip_steps < 1:
            raise ConfigError(f"gossip_steps is {self.gossip_steps}, but it must be an integer of at least 1")
        _check_choice("weights", self.weights, get_args(Weights))
        if self.sparsifier is not None and (self.noise or self.gossip_steps > 1):
            raise ConfigError("noise and gossip steps go with full sharing; drop the sparsifier")
        _check_choice("index_code", self.index_code, (None, *SET_CODES))

    @classmethod
    def paper(cls, *, sparsifier: AnySparsifier | None = None) -> DPSGD:
        """With Elias-gamma indices, as the paper measures it."""
        return cls(sparsifier=sparsifier, index_code=Code.ELIAS_GAMMA)

    def for_graph(
        self,
        graph: nx.Graph,
        *,
        network: bytes = b"",
        draws: Draws | None = None,
        owners: Owners | None = None,
    ) -> DPSGD:
        """The same on every graph: nothing is protected on any."""
        return self


Method = Cesar | SecureAggregation | DPSGD


SETTLE_ROUNDS, SETTLE_SHARE = 8, 0.3
"""How long and with what share peers settle by default; docs/design/012-settling.md has the figures."""


def settling(method: Method, share: float, degree: int) -> Method:
    """How to average at the end, without training: by the same rules, but with random subsampling of that share.

    Ranking by change makes no sense where nothing is trained, and random positions mix most for their bytes. Methods
    that share everything go on to.

    Args:
        degree: δ, from which α follows where groups are not fixed.
    """
    if isinstance(method, SecureAggregation) or method.sparsifier is None or method.sparsifier.alpha == 1.0:
        return method
    if isinstance(method.sparsifier, CoordinatedSubsampling):
        return replace(method, sparsifier=CoordinatedSubsampling(share))
    if isinstance(method, DPSGD) or method.group_size is not None:
        return replace(method, sparsifier=RandomSubsampling(share))
    return replace(method, sparsifier=RandomSubsampling(required_alpha(share, degree, method.masks)))
