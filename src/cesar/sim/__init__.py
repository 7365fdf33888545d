"""Many nodes on one machine: the same nodes and the same frames as between real peers."""

from cesar.sim.ensemble import Ensemble, RoundResult, aggregate
from cesar.sim.faults import CrashPoint

__all__ = ["CrashPoint", "Ensemble", "RoundResult", "aggregate"]
