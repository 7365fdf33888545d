"""Many nodes on one machine: the same nodes and the same frames as between real peers."""

from cesar.sim.ensemble import CrashPoint, Ensemble, RoundResult, aggregate

__all__ = ["CrashPoint", "Ensemble", "RoundResult", "aggregate"]
