"""The ways to average, and what they select with. Begin with `base`: what every method says of itself.

`paper` has CESAR and plain secure aggregation, `plain` the unprotected baseline, `sparsify` what nodes select with,
`settings` the same as tables of a TOML file. Imports graphs, index sets and kernels; nothing here sends anything.
"""

from cesar.methods.base import SETTLE_ROUNDS, SETTLE_SHARE, Method
from cesar.methods.paper import Cesar, SecureAggregation
from cesar.methods.plain import DPSGD

__all__ = ["DPSGD", "SETTLE_ROUNDS", "SETTLE_SHARE", "Cesar", "Method", "SecureAggregation"]
