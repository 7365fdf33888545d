"""D-PSGD: the baseline, which protects nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, get_args

import networkx as nx

from cesar.graph.neighbourhood import Owners
from cesar.indices import Code
from cesar.methods.base import SET_CODES, Weights, check_choice, check_no_samples, check_sparsifier
from cesar.methods.sparsify import FullSharing, RandomSubsampling, Sparsifier, selecting


@dataclass(frozen=True, slots=True, kw_only=True)
class DPSGD:
    """D-PSGD with Metropolis–Hastings weights. It is for comparisons in simulations; real peers refuse it.

    Attributes:
        sparsifier: which parameters a node sends; by default all of them.
        index_code: write index sets with this code instead of the one that suits them.
        weights: "neighbours" gives every neighbour its Metropolis–Hastings weight, with the own value for what it did
            not send; "arrived" averages the own value with what arrived.
    """

    weighted: ClassVar[bool] = False
    sparsifier: Sparsifier = field(default_factory=FullSharing)
    weights: Weights = "neighbours"
    index_code: Code | None = None

    def __post_init__(self) -> None:
        check_sparsifier(self.sparsifier)
        check_choice("weights", self.weights, get_args(Weights))
        check_choice("index_code", self.index_code, (None, *SET_CODES))

    @classmethod
    def paper(cls, *, sparsifier: Sparsifier = FullSharing(), weights: Weights = "neighbours") -> Self:  # noqa: B008
        """With Elias-gamma indices, as the paper measures it."""
        return cls(sparsifier=sparsifier, weights=weights, index_code=Code.ELIAS_GAMMA)

    @property
    def edges(self) -> DPSGD:
        return self

    @property
    def cells(self) -> None:
        """There are none."""

    @property
    def masked(self) -> None:
        """Values go in the clear."""

    @property
    def has_one_scale(self) -> bool:
        return False

    @property
    def scale_bits(self) -> int:
        return 16

    def check_samples(self, samples: int | None) -> None:
        check_no_samples(samples)

    def for_graph(self, graph: nx.Graph, *, owners: Owners | None = None) -> Self:
        """The same on every graph: nothing is protected on any."""
        return self

    def expected_share(
        self, degree: int, *, graph: nx.Graph | None = None, owners: Owners | None = None
    ) -> float:
        """What a node selects, all of which it sends."""
        return self.sparsifier.alpha

    def sharing(
        self, share: float, degree: int, *, graph: nx.Graph | None = None, owners: Owners | None = None
    ) -> Self:
        return replace(self, sparsifier=selecting(self.sparsifier, share))

    def settled(self, share: float, degree: int) -> Self:
        if self.sparsifier.alpha == 1.0:
            return self
        return replace(self, sparsifier=RandomSubsampling(share))
