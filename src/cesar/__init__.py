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

from cesar.base.errors import (
    CanaryError,
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
from cesar.base.types import __version__
from cesar.graph import shares as theory
from cesar.methods import DPSGD, Cesar, Method, SecureAggregation
from cesar.methods.cells import BlockTopK, Cells
from cesar.methods.noise import NoiseSpec
from cesar.methods.sparsify import FullSharing, RandomSubsampling, TopK
from cesar.sim import Ensemble, RoundResult, aggregate

if TYPE_CHECKING:
    from cesar.peer.api.peer import Peer
    from cesar.peer.driver.report import Report
    from cesar.peer.driver.runtime import AsyncPeer

_PEERS = {
    "Peer": "cesar.peer.api.peer",
    "AsyncPeer": "cesar.peer.driver.runtime",
    "Report": "cesar.peer.driver.report",
}


def __getattr__(name: str) -> object:
    """Real peers need more libraries than the rest, so they are imported when first used."""
    if name not in _PEERS:
        raise AttributeError(f"module 'cesar' has no attribute {name!r}")
    try:
        return getattr(import_module(_PEERS[name]), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"cesar.{name} needs {error.name}; in a copy of cesar's repository: pip install '.[peers]'"
        ) from None


__all__ = [
    "DPSGD",
    "AsyncPeer",
    "BlockTopK",
    "CanaryError",
    "Cells",
    "Cesar",
    "CesarError",
    "ConfigError",
    "DataError",
    "EncodingError",
    "Ensemble",
    "FullSharing",
    "LocalProtocolError",
    "MembershipError",
    "Method",
    "NoiseSpec",
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
    "theory",
]
