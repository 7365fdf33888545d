"""The round as a machine without I/O: frames in, frames and events out; time and entropy are arguments."""

from cesar.protocol.base import AggregateReady, Contribution, Deadlines, Event, FrameRejected, Outbound
from cesar.protocol.engine import Engine, PairSecrets

__all__ = [
    "AggregateReady",
    "Contribution",
    "Deadlines",
    "Engine",
    "Event",
    "FrameRejected",
    "Outbound",
    "PairSecrets",
]
