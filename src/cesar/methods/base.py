"""What every method says of itself, and the choices that methods have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, Self

import networkx as nx

from cesar.base.errors import ConfigError
from cesar.graph.neighbourhood import Owners
from cesar.indices import Code
from cesar.methods.sparsify import Choice, Sparsifier

if TYPE_CHECKING:
    from cesar.methods.cells import Cells
    from cesar.methods.paper import Cesar

Coordination = Literal["relay", "direct"]
Dropout = Literal["parameter", "abort"]
Weights = Literal["arrived", "neighbours"]
"""How sums become models: the mean of the own value and what arrived, or the mean over all neighbours, where the own
value stands for what did not arrive."""

SET_CODES = (Code.BITMAP, Code.PATTERNS, Code.RICE, Code.ELIAS_GAMMA)
"""Codes that can write any set."""

SETTLE_ROUNDS, SETTLE_SHARE = 8, 0.3
"""How long and with what share peers settle by default; docs/design/012-settling.md has the figures."""


class Method(Protocol):
    """A way to average. It is a value; drivers and engines ask it and never look at its class.

    Its rounds are of one of two kinds, `edges` or `cells`. Nodes of the two have different engines, so the places that make
    nodes take the one that is given. Nobody else has to know.
    """

    @property
    def edges(self) -> EdgeMethod | None:
        """Itself, where nodes average along the edges of a graph."""

    @property
    def cells(self) -> Cells | None:
        """Itself, where nodes are divided into cells, and a graph of nodes tells it nothing but their number."""

    @property
    def masked(self) -> Cesar | None:
        """The masked exchange along edges that its rounds are, if they are one."""

    @property
    def weights(self) -> Weights:
        """How what arrives becomes a model."""

    @property
    def sparsifier(self) -> Choice:
        """What a node or a cell selects with."""

    @property
    def weighted(self) -> bool:
        """Whether nodes count by the number of their samples."""

    def check_samples(self, samples: int | None) -> None:
        """Refuse a node's number of samples that this method cannot use, or the lack of one.

        Raises:
            ConfigError: says what to do.
        """

    def for_graph(self, graph: nx.Graph, *, owners: Owners | None = None) -> Self:
        """This method as the nodes of a graph need it.

        Raises:
            PrivacyError: it would not protect there what it promises, or nothing could be sent.
        """

    def expected_share(
        self, degree: int, *, graph: nx.Graph | None = None, owners: Owners | None = None
    ) -> float:
        """β: the fraction of its parameters that a node is expected to send a receiver with that many neighbours.

        Args:
            graph: where s follows from the graph and this method has not seen it yet.
            owners: who runs which node of it.
        """

    def sharing(
        self, share: float, degree: int, *, graph: nx.Graph | None = None, owners: Owners | None = None
    ) -> Self:
        """The same with the α that is expected to share that much."""

    def settled(self, share: float, degree: int) -> Self:
        """How to average at the end, without training: by the same rules, but with random subsampling of that share.

        Ranking by change makes no sense where nothing is trained, and random positions mix most for their bytes.
        Methods that share everything go on to, and cells average their models in full.
        """


class EdgeMethod(Method, Protocol):
    """What the engine of a node that averages along edges asks besides."""

    @property
    def index_code(self) -> Code | None:
        """The code of index sets, if one is to be used whether it suits them or not."""

    @property
    def sparsifier(self) -> Sparsifier:
        """What a node selects with."""

    @property
    def has_one_scale(self) -> bool:
        """Whether all tensors of a model share one scale."""

    @property
    def scale_bits(self) -> int:
        """Neighbours' values may be 2^this times one's own, or 1: what is sent can hold that and still tell small
        values apart.
        """


def check_sparsifier(value: object) -> None:
    """Refuse what cannot select."""
    if not hasattr(value, "select"):
        raise ConfigError(f"{value!r} is not a sparsifier; use TopK(α), RandomSubsampling(α) or another one")


def check_no_samples(samples: int | None) -> None:
    """Refuse samples where all nodes count alike."""
    if samples is not None:
        raise ConfigError('samples goes with Cells(weight="samples") only; leave it out')


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse what is none of the choices."""
    if value not in choices or isinstance(value, float):
        raise ConfigError(f"{name} is {value!r}, but it must be one of {', '.join(map(repr, choices))}")
