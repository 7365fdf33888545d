"""All that can be reproduced: the paper's tables and figures in its order, then ours."""

from __future__ import annotations

from cesar.errors import ConfigError
from cesar.reproduce.figures.approaches import APPROACHES
from cesar.reproduce.figures.budget import BUDGET
from cesar.reproduce.figures.collusion import COLLUSION
from cesar.reproduce.figures.datasets import DATASETS_RANDOM, DATASETS_TOPK
from cesar.reproduce.figures.degree import DEGREE
from cesar.reproduce.figures.dropouts import DROPOUTS
from cesar.reproduce.figures.groups import GROUPS
from cesar.reproduce.figures.masking import MASKING
from cesar.reproduce.figures.membership import MEMBERSHIP
from cesar.reproduce.figures.nodes import NODES
from cesar.reproduce.figures.ring import RING
from cesar.reproduce.figures.settings import SETTINGS
from cesar.reproduce.figures.shares import SHARES
from cesar.reproduce.figures.subsampling import SUBSAMPLING
from cesar.reproduce.reproduction import Reproduction

_ALL = (
    APPROACHES,
    DATASETS_RANDOM,
    DATASETS_TOPK,
    SETTINGS,
    BUDGET,
    COLLUSION,
    MASKING,
    MEMBERSHIP,
    DROPOUTS,
    NODES,
    DEGREE,
    RING,
    SUBSAMPLING,
    GROUPS,
    SHARES,
)
CATALOGUE = {one.name: one for one in _ALL}


def find(name: str) -> Reproduction:
    """The reproduction of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in CATALOGUE:
        raise ConfigError(f"nothing is called {name!r}; choose one of {', '.join(CATALOGUE)}")
    return CATALOGUE[name]
