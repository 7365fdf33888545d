"""`cesar peer check`: see before the real thing whether this peer could train, and with whom.

The peer joins with purpose "check". Nobody who trains averages with it, waits for it or takes its round numbers, and it
counts its own rounds in a file of its own, so it leaves no trace in a training run.

*The dummy round.* Neighbours that check at the same moment average vectors that follow from the session and the node's
id, with all masks of a real round and nothing left out. Everybody can compute what everybody brought, so the new vector
tells whose shares are in it, and must be exactly their mean. Rounds are repeated while others come and go, since the
relay between two of them may be a node that is not there yet, and changes from round to round.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import logging
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import numpy as np

from cesar.base.errors import CesarError, ConfigError
from cesar.base.types import NodeId, Vector
from cesar.peer.driver.liveness import Neighbour
from cesar.peer.driver.membership import SOON, newest
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.driver.state import FILE as STATE_FILE
from cesar.peer.driver.state import StateFile
from cesar.peer.net import probe
from cesar.peer.net.messages import RELEASE
from cesar.peer.ops.status import StatusPage
from cesar.peer.trust import changes, naming
from cesar.peer.trust.certificates import read_authority
from cesar.peer.trust.config import PeerConfig, session_of
from cesar.peer.trust.identity import Identity
from cesar.peer.trust.keyfiles import AGREEMENT_KEY, CA_CERTIFICATE, TLS_KEY, read_private, read_public
from cesar.peer.trust.member import Member

STATE = "check.json"
SIZE = 1000
CLOCK_NOTED, CLOCK_WRONG = 10.0, 120.0
EXACT = 2e-6
"""Largest error that fixed point and float32 can leave in a mean of numbers below 1."""

FAIR_TRIES = 4
_PAUSE = 0.2
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the outcome; `ok` is None for what is good to know and stops nobody."""

    ok: bool | None
    item: str
    text: str


def vector_of(session: bytes, node: int, size: int = SIZE) -> Vector:
    """What a node brings to a dummy round: anybody can compute it."""
    label = b"cesar check" + session + struct.pack("<I", node)
    words = np.frombuffer(hashlib.shake_256(label).digest(4 * size), "<i4")
    return words.astype(np.float32) * np.float32(2.0**-31)


def members_of(session: bytes, node: int, others: tuple[int, ...], average: Vector) -> set[NodeId]:
    """Whose vectors an average is the mean of, beside the node's own.

    Raises:
        ConfigError: it is not the mean of any of them.
    """
    known = np.stack([vector_of(session, i) for i in (node, *others)])
    weights = np.linalg.lstsq(known.T.astype(np.float64), average.astype(np.float64), rcond=None)[0]
    used = {NodeId(i) for i, weight in zip(others, weights[1:], strict=True) if weight > weights[0] / 2}
    mean = np.mean([vector_of(session, i) for i in (node, *sorted(used))], axis=0, dtype=np.float64)
    error = float(np.abs(mean - average).max())
    if error > EXACT:
        raise ConfigError(f"the average is wrong by up to {error:.2g}")
    return used


class Check:
    """One preflight of one folder.

    Args:
        wait: seconds for the neighbours to come.
    """

    def __init__(self, path: Path, wait: float) -> None:
        self._path, self._wait = path, wait
        self.findings: list[Finding] = []
        self._seen: dict[NodeId, Neighbour] = {}
        self._verified: set[NodeId] = set()
        self._tries = 0
        self._wrong = ""

    async def run(self) -> list[Finding]:
        """Everything, in the order in which a person would mend it."""
        peer = self._load()
        if peer is not None:
            refusals = _Refusals()
            logging.getLogger("cesar").addHandler(refusals)
            try:
                if await self._open(peer):
                    with contextlib.closing(self._open_page(peer)):
                        await self._watch(peer)
                    self._conclude(peer, refusals)
            finally:
                await peer.close()
                logging.getLogger("cesar").removeHandler(refusals)
        return self.findings

    def _say(self, ok: bool | None, item: str, text: str) -> None:
        self.findings.append(Finding(ok, item, text))

    def _try(self, item: str, job: Callable[[], _T]) -> _T | None:
        """The job's result, or a finding that says why there is none."""
        try:
            return job()
        except (CesarError, OSError) as error:
            self._say(False, item, str(error))
            return None

    # ── what lies in the folder ─────────────────────────────────────────────────────────────────────────

    def _load(self) -> AsyncPeer | None:
        """All that can be seen without a network; None if it cannot work."""
        config = self._try("peer.toml", lambda: PeerConfig.load(self._path))
        folder = self._path if self._path.is_dir() else self._path.parent
        keys, kept = (folder, folder) if config is None else (config.keys, config.state)
        for name in (TLS_KEY, AGREEMENT_KEY):
            self._try("keys", lambda name=name: read_private(keys / name))  # type: ignore[misc]
        if self.findings:
            return None
        identity = self._try("identity", lambda: Identity.load(keys))
        state = self._try("state", lambda: StateFile(kept / STATE_FILE))
        if config is None or identity is None or state is None:
            return None
        self._say(
            True, "files", f"{folder}: settings, private keys, certificate and authority belong together"
        )
        roster = self._try("roster", lambda: newest(folder, state, identity))
        if roster is None:
            return None
        mine = StateFile(kept / STATE)
        peer = self._try("settings", lambda: AsyncPeer(config, identity, roster, purpose="check", state=mine))
        if peer is None:
            return None
        self._say(
            True,
            "roster",
            f"version {roster.version} of {roster.issued:%Y-%m-%d}, signed by this network's authority; node {peer.id} "
            f"of {len(roster.members)}, next to {_list(peer.neighbours)}",
        )
        self._try("log", lambda: changes.check_log(kept))
        self._say(True, "owners", naming.owners(roster, config.tables.method.collusion or 1))
        self._dates(
            "roster", roster.issued, roster.expires, "`cesar network extend` by those who run the network"
        )
        self._dates(
            "certificate", *_span(roster.members[peer.id]), "`cesar peer renew`, then `cesar network renew`"
        )
        authority = read_authority(read_public(keys / CA_CERTIFICATE))
        self._dates(
            "authority",
            authority.not_valid_before_utc,
            authority.not_valid_after_utc,
            "`cesar network reauthorise`",
        )
        return None if any(finding.ok is False for finding in self.findings) else peer

    def _dates(self, item: str, starts: datetime, expires: datetime, remedy: str) -> None:
        now = datetime.now(UTC)
        if now < starts:
            self._say(
                False,
                item,
                f"valid only from {starts:%Y-%m-%d %H:%M} UTC, and it is {now:%H:%M}; is the clock right?",
            )
        elif now > expires:
            self._say(False, item, f"ended on {expires:%Y-%m-%d}; replace it: {remedy}")
        elif expires - now < SOON:
            self._say(
                None,
                item,
                f"ends on {expires:%Y-%m-%d}, in {(expires - now).days} days; replace it: {remedy}",
            )
        else:
            self._say(True, item, f"valid until {expires:%Y-%m-%d}")

    # ── the network ─────────────────────────────────────────────────────────────────────────────────────

    async def _open(self, peer: AsyncPeer) -> bool:
        """Take the port and see whether it answers."""
        try:
            await peer.start()
        except (CesarError, OSError) as error:
            self._say(False, "port", str(error))
            return False
        listen, address = peer.config.tables.peer.listen, peer.roster.members[peer.id].address
        callers = [i for i in peer.neighbours if peer.roster.dials(i, peer.id)]
        if listen is None or address is None:
            if callers:
                self._say(
                    False,
                    "port",
                    f"node(s) {_list(callers)} dial this peer at {address}, but peer.listen in peer.toml is missing",
                )
            else:
                self._say(True, "port", "none is needed: this peer dials all its neighbours")
        else:
            found = await probe.who_answers(address, peer.membership.identity)
            ok, text = probe.own_port(listen, address, found, _list(callers))
            self._say(ok, "port", text)
        return True

    def _open_page(self, peer: AsyncPeer) -> StatusPage | contextlib.ExitStack:
        """Take the port of the status page, too, as a run does: without it a run does not begin."""
        address = peer.config.tables.peer.status
        page = None if address is None else self._try("status page", lambda: StatusPage(peer))
        if page is None:
            return contextlib.ExitStack()
        self._say(True, "status page", f"is served at http://{address}")
        return page

    async def _watch(self, peer: AsyncPeer) -> None:
        """Meet the neighbours and average with those that check too, until all is seen or the time is over."""
        deadline = time.monotonic() + self._wait
        while True:
            self._remember_who_is_there(peer)
            checking = self._present(peer, "check")
            if checking:
                await self._round(peer)
            if not peer.satisfied and self._has_seen_all(peer):
                peer.satisfy()
            others_too = all(peer.neighbours[i].satisfied for i in self._present(peer, "check"))
            if (peer.satisfied and others_too) or time.monotonic() >= deadline:
                return
            await asyncio.sleep(_PAUSE)

    def _remember_who_is_there(self, peer: AsyncPeer) -> None:
        """Write down who is there: later it may be gone, having seen all that it wanted."""
        self._seen |= {i: copy.copy(known) for i, known in peer.neighbours.items() if known.up}

    def _present(self, peer: AsyncPeer, purpose: str) -> set[NodeId]:
        return {i for i, known in peer.neighbours.items() if known.up and known.purpose == purpose}

    def _has_seen_all(self, peer: AsyncPeer) -> bool:
        """Every neighbour has come, and the dummy round was verified with all that can be in one."""
        return self._seen.keys() >= peer.neighbours.keys() and self._able(peer) <= self._verified

    def _able(self, peer: AsyncPeer) -> set[NodeId]:
        """Neighbours that check and have somebody to mask with who does so, too: two of them at the least."""
        checking = {i for i, known in self._seen.items() if known.purpose == "check"}
        return checking if len(checking) > 1 else set()

    async def _round(self, peer: AsyncPeer) -> None:
        peer_session = session_of(peer.roster, (SIZE,), "check")
        vector = vector_of(peer_session, peer.id)
        before = peer.roster.version
        report = await peer.average_vector(vector)
        if peer.roster.version != before:
            return  # a newer roster came with the round: another session, another vector
        self._tries += 1
        try:
            self._verified |= members_of(peer_session, peer.id, report.contributors, vector)
        except ConfigError as error:
            self._wrong = f"{error} in round {report.round}, with node(s) {_list(report.contributors)}"

    # ── the outcome ─────────────────────────────────────────────────────────────────────────────────────

    def _conclude(self, peer: AsyncPeer, refusals: _Refusals) -> None:
        for i in sorted(peer.neighbours):
            self._neighbour(peer, i)
        self._clock()
        self._dummy_round(self._able(peer))
        newest = max((known.roster for known in self._seen.values()), default=0)
        if newest > peer.roster.version:
            self._say(
                None,
                "roster",
                f"a neighbour has version {newest}, and this peer {peer.roster.version}; fetch the newest",
            )
        for text in sorted(refusals.said):
            self._say(None, "refused", text)

    def _neighbour(self, peer: AsyncPeer, i: NodeId) -> None:
        member, known = peer.roster.members[i], self._seen.get(i)
        item = f"node {i}" if member.name == f"node-{i}" else f"node {i}, {member.name}"
        if not member.valid(datetime.now(UTC)):
            self._say(
                False,
                item,
                f"its certificate is valid from {_when(member.starts)} to {_when(member.expires)}; its site must renew it",
            )
            return
        if known is None:
            self._say(False, item, absence(peer, member, peer.neighbours[i].last_error))
            return
        activity = f"training, at round {known.status.current}" if known.purpose == "train" else "checking"
        self._say(
            True,
            item,
            f"reachable, {activity}; same network; its certificate is valid until {_when(member.expires)}",
        )
        if member.expires - datetime.now(UTC) < SOON:
            self._say(None, item, "its certificate ends soon: its site should renew it")
        if known.release != RELEASE:
            self._say(
                None,
                item,
                f"it runs cesar {known.release}, and this peer {RELEASE}; they understand each other",
            )

    def _clock(self) -> None:
        if not self._seen:
            return
        i, known = max(self._seen.items(), key=lambda pair: abs(pair[1].clock))
        ahead = f"{abs(known.clock):.0f} s {'ahead of' if known.clock > 0 else 'behind'} this one's"
        if abs(known.clock) > CLOCK_NOTED:
            ok = False if abs(known.clock) > CLOCK_WRONG else None
            self._say(ok, "clock", f"that of node {i} is {ahead}; set both by a time server (NTP)")
        else:
            self._say(True, "clock", "within seconds of the neighbours'")

    def _dummy_round(self, able: set[NodeId]) -> None:
        if self._wrong:
            self._say(
                False,
                "secure round",
                f"{self._wrong}; install the same release at all peers, and tell its makers",
            )
        elif self._verified:
            missing = able - self._verified
            rest = (
                f"; not yet with node(s) {_list(missing)}, whose partners are not all there"
                if missing
                else ""
            )
            self._say(
                True,
                "secure round",
                f"the average with node(s) {_list(self._verified)} is exactly what it must be{rest}",
            )
        elif able and self._tries >= FAIR_TRIES:
            self._say(
                False,
                "secure round",
                f"nothing came of {self._tries} rounds with node(s) {_list(able)}; run the check at all peers at once",
            )
        else:
            self._say(
                None,
                "secure round",
                "not tried: it needs two neighbours that run this check at the same time",
            )


class _Refusals(logging.Handler):
    """Keeps what is said of connections that were refused, and lets nothing else through."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("a connection was refused"):
            self.said.add(text)


def absence(peer: AsyncPeer, member: Member, error: str) -> str:
    """Why a neighbour is not there, and what to do."""
    if peer.roster.dials(peer.id, member.id):
        relay = probe.behind_relay(peer.roster.members, member)
        return f"not reachable at {member.address}: {error or 'no answer'}{relay}"
    if error:
        return f"no link: {error}"
    here = peer.roster.members[peer.id].address
    return f"it has not come; it dials this peer at {here}: does it run, and do the firewalls let it through?"


def _span(member: Member) -> tuple[datetime, datetime]:
    return member.starts, member.expires


def _when(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"


def _list(nodes: object) -> str:
    return ", ".join(map(str, sorted(nodes)))  # type: ignore[call-overload]
