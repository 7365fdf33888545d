"""CESAR: secure aggregation for sparsified decentralised learning.

>>> import cesar, networkx as nx, numpy as np
>>> models = np.eye(5, 8, dtype=np.float32)
>>> method = cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.6))
>>> result = cesar.aggregate(models, nx.complete_graph(5), method, seed=1)
>>> result.vectors.shape
(5, 8)
"""

from cesar import theory
from cesar.errors import (
    CesarError,
    ConfigError,
    DataError,
    EncodingError,
    LocalProtocolError,
    PrivacyError,
    ProtocolError,
    RemoteProtocolError,
)
from cesar.methods import DPSGD, Cesar, Method, SecureAggregation
from cesar.sim import Ensemble, RoundResult, aggregate
from cesar.sparsify import CoordinatedSubsampling, RandomSubsampling, TopK

__version__ = "0.1.0"

__all__ = [
    "DPSGD",
    "Cesar",
    "CesarError",
    "ConfigError",
    "CoordinatedSubsampling",
    "DataError",
    "EncodingError",
    "Ensemble",
    "LocalProtocolError",
    "Method",
    "PrivacyError",
    "ProtocolError",
    "RandomSubsampling",
    "RemoteProtocolError",
    "RoundResult",
    "SecureAggregation",
    "TopK",
    "__version__",
    "aggregate",
    "theory",
]
