"""Cells: members of a cell add up what they train under masks, and cells average their models in the clear."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import ClassVar, Literal, Protocol, Self, runtime_checkable

import networkx as nx
import numpy as np

from cesar.base.errors import ConfigError, DataError
from cesar.base.types import ByteArray, NodeId
from cesar.crypto.keys import RoundId
from cesar.graph.cells import EXPONENTIAL, CellPlan, divide, graph_of
from cesar.graph.neighbourhood import Owners
from cesar.indices import IndexSet
from cesar.kernels.ring import RING_BITS
from cesar.kernels.slicing import expand_blocks
from cesar.methods.base import Weights
from cesar.methods.noise import NoiseSpec
from cesar.methods.positions import CellPositions
from cesar.methods.sparsify import Choice, FullSharing, selecting

PATIENCE = 10
"""Rounds of absence after which the others of a cell go on, if they are enough."""

Weight = Literal["equal", "samples"]
"""What counts in a mean: every member alike, or by the number of its samples."""

MOST_SAMPLES = 100_000
"""The bound on a member's samples that networks agree on unless they say otherwise."""

HIGHEST_SAMPLES = 4_000_000
"""Up to here a sum of samples is exact: w / most_samples has the 24 bits of a float32."""

Best = Literal["highest", "lowest"]
"""Which value of a metric is the best one."""

METRIC_EXPONENT = 13
METRIC_RANGE = 1 << METRIC_EXPONENT
"""No metric is larger in magnitude. Up to here the whole parts of 255 members' metrics add up exactly in 32 bits."""

BLOCKS = (8, 16, 32, 64)
"""Lengths of blocks: slices end at multiples of 64 positions, and a block is in one slice."""


@runtime_checkable
class CellSparsifier(Choice, Protocol):
    """Chooses what a cell hands in, from public data alone."""

    @property
    def block(self) -> int:
        """Members add up scores of blocks of this length; 0 if it needs none."""

    def for_cell(self, attempt: RoundId, size: int, scores: ByteArray) -> CellPositions:
        """The positions of a round; `scores` are the cell's sums, one for each block, as codes that rank alike."""


@dataclass(frozen=True, slots=True)
class BlockTopK:
    """The blocks of positions in which a cell has most to hand in, by the sum of its members' scores.

    A member's score of a block is Σ|v| over what it has not handed in there. Members add scores up under masks like
    values, so nobody sees a single node's score, and no index is sent. They travel with the sums of a round and
    count in the next. What is not handed in stays with its node and counts until it is.

    Attributes:
        alpha: the share of blocks.
        block: positions in a block: 8, 16, 32 or 64.
    """

    name: ClassVar[str] = "blocks"
    ranks: ClassVar[bool] = False
    memory: ClassVar[bool] = False
    alpha: float
    block: int = 64

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha <= 1.0:
            raise ConfigError(f"alpha is {self.alpha}, but the share of blocks must be above 0 and at most 1")
        if self.block not in BLOCKS:
            raise ConfigError(f"block is {self.block!r}, but it must be one of {', '.join(map(str, BLOCKS))}")

    def for_cell(self, attempt: RoundId, size: int, scores: ByteArray) -> CellPositions:
        """The blocks with the largest scores; the round decides between equal ones, as in the first round all are."""
        label = b"cesar cell blocks" + attempt.session + struct.pack("<I", attempt.round_)
        ties = np.frombuffer(hashlib.shake_256(label).digest(4 * len(scores)), dtype="<u4")
        wanted = max(1, round(self.alpha * len(scores)))
        chosen = np.zeros(len(scores), dtype=np.bool_)
        chosen[np.lexsort((ties, -scores.astype(np.int16)))[:wanted]] = True
        return CellPositions(IndexSet.of_words(expand_blocks(chosen, self.block, size), size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Averaging in cells: every number that a node trains is in one sum, over its whole cell.

    Attributes:
        size: m, the least number of members of a cell.
        sparsifier: what a cell hands in: `FullSharing()`, `RandomSubsampling(share)` or `BlockTopK(share)`.
        collusion: k, how many owners may pool what they know.
        graph: which cells hear which: "exponential", "regular:3" and other short names, or a networkx graph of cells.
        ring_bits: b, the bits of a value on the wire.
        patience: rounds of absence after which the others of a cell go on without a member, if they are enough.
        robust: members vote on what they add up, and what other cells say is scaled down where it is far away, so that a liar can
            hold up its own cell and not spoil a model. Two more trips and, in full, (m − 1)/m more values in a round.
        noise: Gaussian noise that members add together, for (ε, δ) of samples; None for none. Each round then trains from the common model
            alone, and what is not handed in is forgotten.
        weight: "equal", or "samples": every member counts by the number of its samples, which only its cell's sum shows, once
            (docs/design/022-weights-by-data.md).
        most_samples: no member may have more; the nearer it is to the largest, the finer is the grid of the first sum.
        metric: members may hand in a validation metric with a model; only its mean over the whole cell is seen
            (docs/design/025-the-best-model.md).
        best: whether the highest mean is the best one, or the lowest, as of a loss.
        roll_call: while they settle, cells say which cells are in their models.
        settling: nobody trains: cells average their models, in full and without sums.
        division: the plan, once it is made (`for_nodes`).
    """

    weights: ClassVar[Weights] = "arrived"
    size: int = 4
    sparsifier: CellSparsifier = field(default_factory=FullSharing)
    collusion: int = 1
    graph: str | nx.Graph = EXPONENTIAL
    ring_bits: int = 16
    patience: int = PATIENCE
    robust: bool = False
    noise: NoiseSpec | None = None
    weight: Weight = "equal"
    most_samples: int = MOST_SAMPLES
    metric: bool = False
    best: Best = "highest"
    roll_call: bool = False
    settling: bool = False
    division: CellPlan | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.sparsifier, CellSparsifier):
            raise ConfigError(
                f"{self.sparsifier!r} cannot choose for a cell, where no single node's set is shown; use "
                "FullSharing(), RandomSubsampling(share) or BlockTopK(share)"
            )
        if not isinstance(self.collusion, int) or self.collusion < 0:
            raise ConfigError(f"collusion is {self.collusion}, but it must be an integer of at least 0")
        if not isinstance(self.size, int) or not 2 <= self.size <= 255:
            raise ConfigError(f"size is {self.size}, but a cell has 2 to 255 members")
        if self.size < self.collusion + 2:
            raise ConfigError(
                f"cells of {self.size} do not stop {self.collusion} colluding owner(s): two honest members must be left. "
                f"Use size={self.collusion + 2} or more"
            )
        if self.ring_bits not in RING_BITS or isinstance(self.ring_bits, float):
            raise ConfigError(
                f"ring_bits is {self.ring_bits!r}, but it must be one of {', '.join(map(str, RING_BITS))}"
            )
        if not isinstance(self.patience, int) or self.patience < 1:
            raise ConfigError(f"patience is {self.patience}, but it must be an integer of at least 1")
        if self.noise is not None and self.sparsifier.block:
            raise ConfigError(
                "noise does not go with BlockTopK: which blocks are chosen depends on the data, and nothing hides that; use "
                "FullSharing() or RandomSubsampling(share)"
            )
        if self.noise is not None and self.robust:
            raise ConfigError(
                "noise does not go with robust: members vote by their updates without noise, and the number of objections would "
                "say more than (ε, δ) allows; leave one of them out"
            )

        if self.weight not in ("equal", "samples"):
            raise ConfigError(f'weight is {self.weight!r}, but it must be "equal" or "samples"')
        if not isinstance(self.most_samples, int) or not 1 <= self.most_samples <= HIGHEST_SAMPLES:
            raise ConfigError(
                f"most_samples is {self.most_samples}, but it must be an integer from 1 to {HIGHEST_SAMPLES}"
            )
        if self.weighted and self.noise is not None:
            raise ConfigError(
                'noise does not go with weight = "samples": the number of samples is itself data, and no noise hides its sum; use '
                'weight = "equal"'
            )
        if self.weighted and self.robust:
            raise ConfigError(
                'robust does not go with weight = "samples": in a vote each member has one voice, and a liar could claim most of the '
                'weight; use weight = "equal"'
            )

        if self.best not in ("highest", "lowest"):
            raise ConfigError(f'best is {self.best!r}, but it must be "highest" or "lowest"')
        if self.metric and self.noise is not None:
            raise ConfigError(
                "noise does not go with metric: a metric is computed from data, and no noise hides its mean; leave one of them out"
            )

    @property
    def weighted(self) -> bool:
        """Whether members count by their samples."""
        return self.weight == "samples"

    def check_samples(self, samples: int | None) -> None:
        """Refuse a number of samples that this method cannot use, or the lack of one.

        Raises:
            ConfigError: says what to do.
        """
        if not self.weighted:
            if samples is not None:
                raise ConfigError(
                    'samples would change nothing, since all members count alike here; sign weight = "samples" in [method], or '
                    "leave samples out"
                )
            return
        if isinstance(samples, bool) or not isinstance(samples, int | np.integer):
            raise ConfigError(
                f'samples is {samples!r}, but this network weighs members by their data (weight = "samples"): give the number '
                "of training samples of this site, samples=1200"
            )
        if not 1 <= samples <= self.most_samples:
            raise ConfigError(
                f"samples is {samples}, but it must be from 1 to {self.most_samples}; if sites have more, all of them sign a larger "
                "most_samples in [method]"
            )

    def check_metric(self, metric: float | None) -> None:
        """Refuse a metric that cannot be added up; None is always right, and stands for none.

        Raises:
            ConfigError: this network adds up none.
            DataError: it is not finite, or too large.
        """
        if metric is None:
            return
        if not self.metric:
            raise ConfigError(
                "this network adds up no metric; sign metric = true in [method], or leave metric out"
            )
        if isinstance(metric, bool) or not isinstance(metric, int | float | np.integer | np.floating):
            raise DataError(f"metric is {metric!r}, but it must be a number; use metric=float(value)")
        if not isfinite(metric) or abs(metric) > METRIC_RANGE:
            raise DataError(
                f"metric is {metric}, but it must be a number from -{METRIC_RANGE} to {METRIC_RANGE}; leave it out where there is none, and "
                "divide it where it is larger, at all sites alike"
            )

    def plan(self, nodes: int | Iterable[int], owners: Owners | None = None, *, seed: int = 0) -> CellPlan:
        """Divide nodes into cells, from public data and a seed. Fewer than 2m nodes are one cell.

        Args:
            nodes: how many, or which.
            owners: who runs which node; an owner's nodes count as one.

        Raises:
            ConfigError: fewer nodes than m, or a graph of cells on which nothing can be averaged.
            PrivacyError: the owners cannot be spread so that every cell has members of k + 2 of them.
        """
        names: Sequence[int] = range(nodes) if isinstance(nodes, int) else sorted(nodes)
        return self.plan_of(divide(names, self.size, self.collusion, owners, seed), owners, seed=seed)

    def plan_of(
        self, cells: Iterable[Iterable[int]], owners: Owners | None = None, *, seed: int = 0
    ) -> CellPlan:
        """A division that is given, checked."""
        division = tuple(tuple(NodeId(node) for node in sorted(cell)) for cell in cells)
        return CellPlan(
            division,
            graph_of(self.graph, len(division), seed),
            self.size,
            self.collusion,
            dict(owners or {}),
        )

    def for_nodes(self, nodes: int | Iterable[int], owners: Owners | None = None, *, seed: int = 0) -> Self:
        """This method with its plan."""
        return replace(self, division=self.plan(nodes, owners, seed=seed))

    @property
    def scale_bits(self) -> int:
        """Members' values may be 2^this times one's own, or 1: a sum can hold that and still tell small values apart."""
        return 16 if self.ring_bits == 32 else 6

    @property
    def edges(self) -> None:
        """Neighbours do not average; cells do."""

    @property
    def cells(self) -> Cells:
        return self

    @property
    def masked(self) -> None:
        """Its masks are within cells."""

    def for_graph(self, graph: nx.Graph, *, owners: Owners | None = None) -> Self:
        """This method with a plan for the nodes of a graph; its edges do not matter."""
        return self if self.division is not None else self.for_nodes(graph, owners)

    def expected_share(
        self, degree: int, *, graph: nx.Graph | None = None, owners: Owners | None = None
    ) -> float:
        """The share that a cell hands in; it does not depend on who hears it."""
        return self.sparsifier.alpha

    def sharing(
        self, share: float, degree: int, *, graph: nx.Graph | None = None, owners: Owners | None = None
    ) -> Self:
        return replace(self, sparsifier=selecting(self.sparsifier, share))

    def settled(self, share: float = 1.0, degree: int = 0) -> Self:
        """How to average at the end, without training: everything, between cells only.

        `division.graph.settling_rounds` says for how long. The sparsifier stays: what a member missed before is read with it.
        """
        return replace(self, settling=True)

    def blocks(self, size: int) -> int:
        """How many blocks have scores."""
        return -(-size // self.sparsifier.block) if self.sparsifier.block else 0
