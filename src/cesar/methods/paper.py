"""CESAR, and secure aggregation without sparsification."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, get_args

import networkx as nx

from cesar.base.errors import ConfigError
from cesar.graph import shares
from cesar.graph.neighbourhood import Owners, check_degrees, check_strict, strict_requirement
from cesar.indices import Code
from cesar.kernels.ring import RING_BITS
from cesar.methods.base import (
    SET_CODES,
    Coordination,
    Dropout,
    Weights,
    check_choice,
    check_no_samples,
    check_sparsifier,
)
from cesar.methods.sparsify import FullSharing, RandomSubsampling, Sparsifier, selecting

USUAL_RING_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Cesar:
    """Masked sparse averaging.

    Attributes:
        sparsifier: which parameters a node selects.
        masking_requirement: s, the pairwise masks that a parameter must carry to be sent; 1, or with
            `collusion` what the graph asks for.
        collusion: k, how many nodes may pool what they know of one round without reading anybody's value (strict mode).
        weights: "arrived" averages the own value with what arrived; "neighbours" over all neighbours, with the own
            value for what did not arrive.
        ring_bits: b, the bits of a value on the wire: 16, 20, 24 or 32.
        coordination: "relay" through common neighbours, or "direct" to all of View2 as in the paper.
        dropout: "parameter" drops what a missing node had selected; "abort" keeps the own model.
        index_code: write index sets with this code instead of the one that suits them.
        explicit_indices: send the indices again beside the values, as the paper does.
        decimals: fixed decimal places instead of a scale that follows the model.
    """

    weighted: ClassVar[bool] = False
    sparsifier: Sparsifier
    masking_requirement: int | None = None
    collusion: int | None = None
    weights: Weights = "arrived"
    ring_bits: int = USUAL_RING_BITS
    coordination: Coordination = "relay"
    dropout: Dropout = "parameter"
    index_code: Code | None = field(default=None)
    explicit_indices: bool = False
    decimals: int | None = None

    def __post_init__(self) -> None:
        check_sparsifier(self.sparsifier)
        if self.collusion is None and self.masking_requirement is None:
            object.__setattr__(self, "masking_requirement", 1)
        s = self.masking_requirement
        if self.collusion is not None and (not isinstance(self.collusion, int) or self.collusion < 1):
            raise ConfigError(f"collusion is {self.collusion}, but it must be an integer of at least 1")
        if s is not None and (not isinstance(s, int) or s < 1):
            raise ConfigError(
                f"masking_requirement is {s}, but it must be an integer of at least 1: "
                "a parameter without a mask would be sent in the clear"
            )
        check_choice("ring_bits", self.ring_bits, RING_BITS)
        check_choice("coordination", self.coordination, get_args(Coordination))
        check_choice("dropout", self.dropout, get_args(Dropout))
        check_choice("weights", self.weights, get_args(Weights))
        check_choice("index_code", self.index_code, (None, *SET_CODES))
        if self.decimals is not None and self.ring_bits != 32:
            raise ConfigError("fixed decimals need ring_bits=32")

    @classmethod
    def paper(
        cls,
        *,
        sparsifier: Sparsifier,
        masking_requirement: int = 1,
        weights: Weights = "arrived",
        dropout: Dropout = "abort",
    ) -> Cesar:
        """The exchange of the paper, byte for byte in kind: direct coordination with all of View2,
        Elias-gamma indices, indices again beside the values, six decimals in 32-bit words.

        `dropout="parameter"` adds what the paper prints in blue: sets go to direct neighbours too.
        """
        return Cesar(
            sparsifier=sparsifier,
            masking_requirement=masking_requirement,
            weights=weights,
            coordination="direct",
            dropout=dropout,
            index_code=Code.ELIAS_GAMMA,
            explicit_indices=True,
            decimals=6,
        )

    def check_samples(self, samples: int | None) -> None:
        check_no_samples(samples)

    def for_graph(self, graph: nx.Graph, *, owners: Owners | None = None) -> Self:
        """This method as a graph needs it: with s as given or as `collusion` demands there.

        Args:
            owners: who runs which node. An owner's nodes count as one colluder, and one is assumed at the least.

        Raises:
            PrivacyError: the colluders would not be stopped, or a receiver would get nothing.
        """
        collusion = self.collusion or (1 if owners else None)
        if collusion is None:
            check_degrees(graph, self.masks)
            return self
        s = self.masking_requirement or strict_requirement(graph, collusion, owners)
        check_strict(graph, collusion, s, owners)
        return replace(self, masking_requirement=s)

    @property
    def masks(self) -> int:
        """s, once it is known.

        Raises:
            ConfigError: it depends on a graph that this method has not seen.
        """
        if self.masking_requirement is None:
            raise ConfigError("with collusion, s follows from the graph: use method.for_graph(graph)")
        return self.masking_requirement

    @property
    def has_terms(self) -> bool:
        """Whether a receiver tells its senders who takes part and at what scale (a relay frame)."""
        return self.coordination == "relay" or self.decimals is None

    @property
    def edges(self) -> Cesar:
        return self

    @property
    def cells(self) -> None:
        """There are none."""

    @property
    def masked(self) -> Cesar:
        return self

    @property
    def has_one_scale(self) -> bool:
        return self.decimals is not None

    @property
    def scale_bits(self) -> int:
        return 16 if self.ring_bits == 32 else 6

    def expected_share(
        self, degree: int, *, graph: nx.Graph | None = None, owners: Owners | None = None
    ) -> float:
        """β: what a node and s other neighbours of the receiver selected."""
        return shares.expected_share(self.sparsifier.alpha, degree, self._masks_on(graph, owners))

    def sharing(
        self, share: float, degree: int, *, graph: nx.Graph | None = None, owners: Owners | None = None
    ) -> Self:
        alpha = shares.required_alpha(share, degree, self._masks_on(graph, owners))
        return replace(self, sparsifier=selecting(self.sparsifier, alpha))

    def settled(self, share: float, degree: int) -> Self:
        if self.sparsifier.alpha == 1.0:
            return self
        return replace(self, sparsifier=RandomSubsampling(share)).sharing(share, degree)

    def _masks_on(self, graph: nx.Graph | None, owners: Owners | None) -> int:
        """s, from the graph if it is not known yet."""
        if self.collusion is not None and graph is not None:
            return self.for_graph(graph, owners=owners).masks
        return self.masks

    @property
    def receivers_need_sets(self) -> bool:
        """Whether a receiver must hold its neighbours' announcements to read and check their shares."""
        return self.has_terms or not self.explicit_indices or self.dropout == "parameter"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureAggregation(Cesar):
    """CESAR without sparsification: every parameter, masked by all other neighbours of the receiver."""

    sparsifier: Sparsifier = field(default=FullSharing(), init=False)
