"""The round as a machine without I/O: frames in, frames and events out; time and entropy are arguments."""

from cesar.protocol.engine import Engine
from cesar.protocol.events import AggregateReady, Contribution, Deadlines, Event, FrameRejected, Outbound

__all__ = [
    "AggregateReady",
    "Contribution",
    "Deadlines",
    "Engine",
    "Event",
    "FrameRejected",
    "Outbound",
]
