"""peer.toml: everything that one peer is told, checked before anything is opened or sent."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from cesar.base.errors import ConfigError
from cesar.crypto.keys import SESSION_BYTES
from cesar.graph.cells import CELLS
from cesar.methods import Cesar, SecureAggregation
from cesar.methods.cells import Cells
from cesar.methods.paper import USUAL_RING_BITS
from cesar.methods.settings import MethodSection, Section, check, read_toml
from cesar.peer.trust.address import check_address
from cesar.peer.trust.changes import Consent
from cesar.peer.trust.keyfiles import read_private
from cesar.peer.trust.roster import Roster, SettingValue

FILE = "peer.toml"
LEAST_TOKEN = 16
Purpose = Literal["train", "check", "canary"]


ENVIRONMENT = {name: f"CESAR_{name.upper()}" for name in ("keys", "state", "checkpoints", "status_token")}
"""Variables that name a path in place of the file: where an orchestrator mounts secrets and volumes."""


class PeerSection(Section):
    """Who this peer is and where it listens. What is not named elsewhere lies beside the file.

    Attributes:
        proxy: dial through the HTTP proxy that the environment names.
        keys: the folder of the keys and the certificates; it is only read.
        state: the folder of all that a peer writes.
        checkpoints: the folder of the checkpoint; by default that of the state.
        approve: which newer rosters wait until somebody at this site has approved them: those that change cells ("cells"), all ("ask"),
            none ("auto"); or all, for a time ("wait:24h").
        status_token: a private file. With its content one may look at the status page from elsewhere.
    """

    id: Annotated[int, Field(ge=0)]
    listen: str | None = None
    proxy: bool = False
    status: str | None = None
    transcript: Path | None = None
    keys: Path | None = None
    state: Path | None = None
    checkpoints: Path | None = None
    status_token: Path | None = None
    approve: str = "cells"

    @field_validator("approve")
    @classmethod
    def _is_a_consent(cls, value: str) -> str:
        return Consent(value).mode

    @field_validator("listen", "status")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        return None if value is None else check_address(value)


class RoundsSection(Section):
    """When to average, how long to wait for the others (seconds, between `floor` and `ceiling`), and how large their
    values may be: 2^`scale_bits` times this model's, or 1 if that is more; left out, what the ring can hold.

    In a network of cells `average` waits for the sum for `floor` seconds, or as long as the local phases here take if that is more, and
    a partner that hangs while the cell adds up holds it up for `ceiling` seconds. All peers have the other settings in common:

    Attributes:
        patience_minutes: a partner that is gone is given up after these, and after `method.patience` rounds, if the others are
            enough.
        settle_minutes: `settle` waits for the cells that it hears until these are over.
        settle_quorum: the share of all cells that must be in the final model; 0 asks for none. While they settle, cells then say which are in
            theirs.
    """

    every: Annotated[int, Field(gt=0)] = 1
    floor: Annotated[float, Field(gt=0)] = 2.0
    ceiling: Annotated[float, Field(gt=0)] = 120.0
    buffers: Literal["local", "average"] = "local"
    scale_bits: Annotated[int, Field(ge=1, le=255)] | None = None
    patience_minutes: Annotated[float, Field(ge=0)] = 60.0
    settle_minutes: Annotated[float, Field(ge=0)] = 1440.0
    settle_quorum: Annotated[float, Field(ge=0, le=1)] = 0.0

    @model_validator(mode="after")
    def _in_order(self) -> RoundsSection:
        if self.floor > self.ceiling:
            raise ValueError(f"floor = {self.floor} is above ceiling = {self.ceiling}")
        return self


class PeerFile(Section):
    """The tables of the file."""

    peer: PeerSection
    method: MethodSection
    rounds: RoundsSection = RoundsSection()


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """A checked file and the folder in which it lies.

    Attributes:
        scratch: a folder for all that is written, in place of the one that the file or the environment names; for rounds that leave no trace.
    """

    folder: Path
    tables: PeerFile
    scratch: Path | None = None

    @classmethod
    def load(cls, path: str | Path) -> PeerConfig:
        """Read a peer.toml, or that of a folder.

        Raises:
            ConfigError: says which key is wrong, or why real peers cannot use the method.
        """
        file = Path(path)
        if file.is_dir():
            file /= FILE
        tables = check(PeerFile, read_toml(file, "peer file"))
        method = tables.method
        if method.name == "dpsgd":
            raise ConfigError(
                "method.name: dpsgd would show this peer's parameters to its neighbours; real peers take cesar or "
                "secagg (compare with dpsgd in the simulator: `cesar run`)"
            )
        if method.coordination == "direct" or method.paper:
            raise ConfigError(
                'method.coordination: "direct" needs connections to neighbours of neighbours; real peers talk to '
                'their own neighbours only, so leave it out (it is "relay" by default) and drop paper = true'
            )
        if method.name != CELLS and tables.rounds.settle_quorum > 0:
            raise ConfigError(f"rounds.settle_quorum counts cells, and {method.name} has none; leave it out")
        return cls(file.parent, tables)

    def _place(self, name: str) -> Path | None:
        """A path that the environment names, or the file, relative to the file."""
        said = os.environ.get(ENVIRONMENT[name]) or getattr(self.tables.peer, name)
        return None if said is None else self.folder / said

    @property
    def keys(self) -> Path:
        """The folder of the keys and the certificates."""
        return self._place("keys") or self.folder

    @property
    def state(self) -> Path:
        """The folder of all that this peer writes."""
        return self.scratch or self._place("state") or self.folder

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoint."""
        return self._place("checkpoints") or self.state

    @property
    def status_token(self) -> str | None:
        """What must be known to look at the status page from elsewhere; None if nobody may.

        Raises:
            ConfigError: others can read the file, or guess what is in it.
        """
        path = self._place("status_token")
        if path is None:
            return None
        token = read_private(path).decode(errors="replace").strip()
        if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable():
            raise ConfigError(
                f"{path} must hold a token of at least {LEAST_TOKEN} plain characters, such as `openssl rand -hex 32` makes"
            )
        return token

    def method(self, roster: Roster, purpose: Purpose = "train") -> Cesar:
        """The method on the roster's graph. A check shares everything, so that anybody can say what the average must
        be.

        Raises:
            PrivacyError, ConfigError: nothing could be shared on it, or not safely.
        """
        section = self.tables.method
        self._check_settings(roster)
        if section.name == CELLS:
            return SecureAggregation(ring_bits=32)  # a check is among neighbours, in a network of cells, too
        built = section.for_graph(roster.graph, owners=roster.owners).masked
        if built is None:
            raise ConfigError(f"{section.title} does not mask what it shares")
        return built if purpose == "train" else SecureAggregation(ring_bits=32)

    def cells(self, roster: Roster) -> Cells:
        """The method in a network of cells, with the division that the roster lists.

        Raises:
            ConfigError: the roster was signed for other settings, or for none with cells.
        """
        self._check_settings(roster)
        roll_call = self.tables.rounds.settle_quorum > 0
        return replace(self.tables.method.cells(), division=roster.plan, roll_call=roll_call)

    def _check_settings(self, roster: Roster) -> None:
        if unlike := differences(roster.settings, self.settings()):
            raise ConfigError(
                f"the roster was signed for other settings than those of peer.toml: {'; '.join(unlike)}. Make [method] and "
                "buffers in peer.toml what the network agreed on, or ask the authority"
            )

    def settings(self) -> dict[str, SettingValue]:
        """What must be the same at all peers."""
        return promise(self.tables.method, self.tables.rounds)


def promise(section: MethodSection, rounds: RoundsSection) -> dict[str, SettingValue]:
    """What stands in the signed roster: the settings that decide what is sent and what is protected."""
    method = section.model_dump(mode="json", exclude={"label", "coordination", "paper"})
    method["ring_bits"] = section.ring_bits or USUAL_RING_BITS
    if section.weight == "equal":  # rosters of earlier versions do not name it
        del method["weight"], method["most_samples"]
    if not section.metric:
        del method["metric"], method["best"]
    if section.name == CELLS:
        cells = section.cells()
        method["ring_bits"], method["collusion"] = cells.ring_bits, cells.collusion
    elif method["collusion"] is None:
        method["masks"] = method["masks"] or 1  # left out or written down: the same
    agreed = ["patience_minutes", "settle_minutes"] if section.name == CELLS else []
    if rounds.settle_quorum > 0:  # rosters of earlier versions do not name it
        agreed.append("settle_quorum")
    return {**method, "buffers": rounds.buffers, **{key: getattr(rounds, key) for key in agreed}}


def differences(signed: Mapping[str, SettingValue], here: Mapping[str, SettingValue]) -> list[str]:
    """Every setting that a peer has another value of than was signed, in words."""
    return [
        f"{key} is {signed.get(key)!r} there and {here.get(key)!r} here"
        for key in sorted(here.keys() | signed.keys())
        if here.get(key) != signed.get(key) or type(here.get(key)) is not type(signed.get(key))
    ]


def session_of(roster: Roster, tensors: Sequence[int], purpose: Purpose, mode: int = 0) -> bytes:
    """16 bytes that two peers have in common iff they hold the same roster, and so the same settings, average models of the
    same layout, and are in the same mode: those who train and those who settle never share a sum.
    """
    label = struct.pack(f"<IQ{len(tensors)}Q", mode, len(tensors), *tensors)
    return hashlib.sha256(b"cesar session 2\0" + roster.digest + label + purpose.encode()).digest()[
        :SESSION_BYTES
    ]
