"""What a peer must still know after a crash: a small file that is on disk before a round begins."""

from __future__ import annotations

import fcntl
import hashlib
import json
import operator
import os
import struct
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cesar.base import files
from cesar.base.errors import ConfigError, LocalProtocolError
from cesar.base.types import Entropy, NodeId

FILE = "state.json"
LOCK = "state.lock"


@dataclass(frozen=True, slots=True)
class State:
    """Counters that never go back, except that rounds are counted anew under a newer roster.

    Attributes:
        attempts: how many rounds were begun, ever, whether they ended or not. It goes into the entropy of every
            round, with the time of day: a machine that is restored from a snapshot has its counters and its random
            generator in an old state, and only the time is another.
        next_round: no round below this one is ever begun again under this roster.
        roster: the newest version of the roster that was seen.
    """

    attempts: int = 0
    next_round: int = 0
    roster: int = 0


class StateFile:
    """The state on disk. Each change is durable when the call returns."""

    def __init__(self, path: Path) -> None:
        self._path, self.folder = path, path.parent
        self.state = self._read()

    @property
    def written(self) -> float:
        """When it was last written, in seconds since 1970; 0 if never."""
        try:
            return self._path.stat().st_mtime
        except OSError:
            return 0.0

    def reload(self) -> None:
        """Read it again, now that nobody else writes it."""
        self.state = self._read()

    def change(self, **fields: int) -> None:
        """Write new values.

        Raises:
            OSError: they could not be made durable; then nothing may be sent.
            LocalProtocolError: a counter would go back.
        """
        anew = fields.get("roster", 0) > self.state.roster
        for name, value in fields.items():
            if value < getattr(self.state, name) and not (anew and name == "next_round"):
                raise LocalProtocolError(f"{name} cannot go back from {getattr(self.state, name)} to {value}")
        state = replace(self.state, **fields)
        _write(self._path, asdict(state))
        self.state = state

    def _read(self) -> State:
        try:
            return _parse(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return State()
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}") from None
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise ConfigError(
                f"{self._path} is damaged; remove it to start over (masks are fresh either way), and make sure "
                "that the roster beside it is the newest"
            ) from None


def _write(path: Path, content: object) -> None:
    files.write(path, json.dumps(content), mode=0o600)


def lock(folder: Path) -> int:
    """A descriptor that no second process can hold; closing it, or dying, releases it.

    Two processes with one identity would take each other's connections away.

    Raises:
        ConfigError: another process runs this peer, or nothing can be written there.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {folder}: {error.strerror}; CESAR_STATE, or state in peer.toml, names a folder for what a peer writes"
        ) from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise ConfigError(f"another process runs the peer of {folder} at this moment; end it first") from None
    return held


def _parse(text: str) -> State:
    """Exactly what `change` writes: a file that lacks a counter must not set it back to zero."""
    state = State(**{name: operator.index(value) for name, value in json.loads(text).items()})
    if json.dumps(asdict(state)) != text or not all(0 <= value < 1 << 32 for value in asdict(state).values()):
        raise ValueError(text)
    return state


def fresh_entropy(node: NodeId, attempt: int) -> Entropy:
    """Randomness of the system, bound to the time and to a counter that goes up: two attempts never share a byte stream."""
    label = struct.pack("<IQQQ", node, attempt, time.time_ns(), time.monotonic_ns())
    key = hashlib.sha512(b"cesar attempt" + label + os.urandom(64)).digest()
    stream = hashlib.shake_256(key)
    drawn = 0

    def draw(count: int) -> bytes:
        nonlocal drawn
        drawn += count
        return stream.digest(drawn)[-count:] if count else b""

    return draw
