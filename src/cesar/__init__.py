"""CESAR: secure aggregation for sparsified decentralised learning.

>>> import cesar, networkx as nx, numpy as np
>>> models = np.eye(5, 8, dtype=np.float32)
>>> method = cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.6))
>>> result = cesar.aggregate(models, nx.complete_graph(5), method, seed=1)
>>> result.vectors.shape
(5, 8)
"""

from importlib import import_module
from typing import TYPE_CHECKING

from cesar import theory
from cesar.errors import (
    CesarError,
    ConfigError,
    DataError,
    EncodingError,
    LocalProtocolError,
    MembershipError,
    PrivacyError,
    ProtocolError,
    RemoteProtocolError,
)
from cesar.grouping import groups
from cesar.methods import DPSGD, Cesar, Method, SecureAggregation
from cesar.sim import Ensemble, RoundResult, aggregate
from cesar.sparsify import CoordinatedSubsampling, FullSharing, RandomSubsampling, TopK
from cesar.types import __version__

if TYPE_CHECKING:
    from cesar.peer.peer import Peer
    from cesar.peer.report import Report
    from cesar.peer.runtime import AsyncPeer

_PEERS = {"Peer": "cesar.peer.peer", "AsyncPeer": "cesar.peer.runtime", "Report": "cesar.peer.report"}


def __getattr__(name: str) -> object:
    """Real peers need more libraries than the rest, so they are imported when first used."""
    if name not in _PEERS:
        raise AttributeError(f"module 'cesar' has no attribute {name!r}")
    try:
        return getattr(import_module(_PEERS[name]), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"cesar.{name} needs {error.name}: pip install 'cesar-learning[peers]'"
        ) from None


__all__ = [
    "DPSGD",
    "AsyncPeer",
    "Cesar",
    "CesarError",
    "ConfigError",
    "CoordinatedSubsampling",
    "DataError",
    "EncodingError",
    "Ensemble",
    "FullSharing",
    "LocalProtocolError",
    "MembershipError",
    "Method",
    "Peer",
    "PrivacyError",
    "ProtocolError",
    "RandomSubsampling",
    "RemoteProtocolError",
    "Report",
    "RoundResult",
    "SecureAggregation",
    "TopK",
    "__version__",
    "aggregate",
    "groups",
    "theory",
]
