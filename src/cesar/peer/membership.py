"""The roster that a peer goes by, and the step to a newer one.

A newer roster may come from a neighbour or lie in the folder. It is checked at once, and used from the next round on:
first it is durable, then it counts. A peer never goes back to an older one. Rounds are counted anew under each roster, so
signing another one is the way back for a network whose numbers somebody has driven up. One in which it has no place ends
it: whoever was removed stops, and so does a peer whose certificate or roster has run out. A site may ask to be asked: then a
newer one is held until it was approved (`changes`), and the old one goes on.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from cesar import files
from cesar.crypto.keys import Keyring, PairSecret
from cesar.errors import ConfigError, MembershipError, PrivacyError
from cesar.peer import changes
from cesar.peer.chunks import Refusal
from cesar.peer.claims import fingerprint, read_authority, read_certificate
from cesar.peer.identity import Identity
from cesar.peer.keyfiles import CERTIFICATE
from cesar.peer.roster import FILE, LIMIT, Roster
from cesar.peer.state import StateFile, fresh_entropy
from cesar.topology import Neighbourhood
from cesar.types import NodeId

log = logging.getLogger("cesar.peer")

GROWTH = 1 << 20
"""A roster that a neighbour sends has at most twice the bytes of the one that holds, and so many beside: a few hundred
peers more. What has grown beyond that since this peer was there last, its site fetches.
"""

SOON = timedelta(days=30)
"""So long before something ends it is worth a warning, once a day."""


def newest(folder: Path, state: StateFile, ca: bytes, *, ask: bool = False) -> Roster:
    """The newest roster that lies in a peer's folder or beside its state; where the site wants to be asked, the newest that
    it has agreed to. The first one came with its own hands.

    Raises:
        ConfigError: there is none that can be used.
    """
    found: list[Roster] = []
    problems: list[ConfigError] = []
    for path in dict.fromkeys((folder / FILE, state.folder / FILE)):
        try:
            found.append(Roster.load(path, ca, at_least=state.state.roster))
        except ConfigError as error:
            problems.append(error)
    if not found:
        raise problems[0]
    roster, seen = max(found, key=lambda roster: roster.version), state.state.roster
    if ask and 0 < seen < roster.version and changes.approved(state.folder) != roster.digest.hex():
        return Roster.load(state.folder / changes.USED, ca, at_least=seen)
    return roster


def with_authority(identity: Identity, roster: Roster) -> Identity:
    """The identity with the authority's newest certificate: the roster may have one that is later than its own."""
    known, said = read_authority(identity.ca), read_authority(roster.ca)
    later = said.not_valid_after_utc > known.not_valid_after_utc
    return replace(identity, ca=roster.ca) if later else identity


class Membership:
    """One peer's place in the network.

    Args:
        folder: where the site puts newer rosters; they are kept beside the state.
        usable: raises where this peer's settings and a roster do not go together; such a roster is never taken up.
        keys: the folder in which a newer certificate may come to lie; by default the same.
        ask: hold newer rosters until this site has approved them.

    Attributes:
        roster: the one that holds now.
        hood: what the peer may know of its graph.
        newer: one that will hold from the next round on.
        held: one that waits for this site's approval.
        over: why this peer must stop; empty as long as it has a place.
    """

    def __init__(
        self,
        identity: Identity,
        roster: Roster,
        folder: Path,
        state: StateFile,
        usable: Callable[[Roster], object] = lambda _: None,
        *,
        keys: Path | None = None,
        ask: bool = False,
    ) -> None:
        self._identity, self._state, self._usable, self._ask = (
            with_authority(identity, roster),
            state,
            usable,
            ask,
        )
        self._keys = keys or folder
        self._path = state.folder / FILE
        self._delivered = folder / FILE
        self.held: Roster | None = None
        self.roster, self.hood = roster, self._place(roster)
        self.newer: Roster | None = None
        self._looked_at: set[bytes] = set()  # digests of rosters that were read: none is read twice
        self.over = ""
        self._warned: date | None = None
        self._complaint = ""

    @property
    def identity(self) -> Identity:
        """Who this peer is at the moment."""
        return self._identity

    @property
    def largest(self) -> int:
        """The most bytes that a neighbour's roster can have: all of them are hashed before its signature is known to hold."""
        return min(LIMIT, 2 * len(self.roster.raw) + GROWTH)

    def remember(self) -> None:
        """The version that holds is one that this peer has seen; rounds are counted anew under a newer one."""
        if self._ask:
            files.write(self._state.folder / changes.USED, self.roster.raw)
        if self.roster.version > self._state.state.roster:
            self._state.change(roster=self.roster.version, next_round=0)

    @property
    def ends(self) -> dict[str, datetime]:
        """Until when this peer's certificate, its roster and its authority's certificate hold."""
        member = self.roster.members[self._identity.id]
        newest = member.certificate == self._identity.certificate
        return {
            "certificate": member.expires if newest or member.until is None else member.until,
            "roster": self.roster.expires,
            "authority": read_authority(self._identity.ca).not_valid_after_utc,
        }

    def days_left(self, now: datetime | None = None) -> dict[str, float]:
        """How many days each of `ends` is away; negative if it has passed."""
        now = datetime.now(UTC) if now is None else now
        return {what: (end - now) / timedelta(days=1) for what, end in self.ends.items()}

    def check(self, now: datetime | None = None) -> None:
        """See that this peer may go on, and warn where it soon may not.

        Raises:
            MembershipError: it has no place in the newest roster, or its certificate or roster has ended.
        """
        now = datetime.now(UTC) if now is None else now
        if self.over:
            raise MembershipError(self.over)
        remedies = {
            "certificate": "`cesar peer renew` makes a request for a new one",
            "roster": "fetch the newest from whoever runs the network, which `cesar network extend` makes",
            "authority": "`cesar network reauthorise` makes a new one",
        }
        for what, end in self.ends.items():
            if now > end:
                raise MembershipError(f"the {what} has ended on {end:%Y-%m-%d %H:%M} UTC; {remedies[what]}")
            if end - now < SOON and self._warned != now.date():
                log.warning("the %s ends on %s: %s", what, f"{end:%Y-%m-%d}", remedies[what])
        self._warned = now.date()

    def look(self) -> None:
        """Whoever runs the site may have put a newer roster into the folder, or approved one that was held."""
        for path in {
            self._path,
            self._delivered,
            *([self._state.folder / changes.HELD] if self._ask else []),
        }:
            try:
                self.offer(path.read_bytes(), "the folder")
            except OSError:
                continue
            except Refusal as refusal:
                log.warning("the folder: %s", refusal)
        if self.held is not None and changes.approved(self._state.folder) == self.held.digest.hex():
            self.newer = self.held

    def offer(self, data: bytes, source: str) -> None:
        """Keep a roster for the next round if it is newer; one that has no place for this peer ends it.

        Raises:
            Refusal: it is not a roster of this network.
        """
        digest = hashlib.sha256(data).digest()
        if data == self.roster.raw or digest in self._looked_at:
            return
        seen = (self.newer or self.roster).version
        try:
            newer = Roster.parse(data, self._identity.ca, at_least=0)
        except ConfigError as error:
            raise Refusal(f"it sent a roster that cannot be used: {error}") from None
        if newer.network_id != self.roster.network_id:
            raise Refusal("it sent the roster of another network of the same authority")
        self._looked_at.add(digest)
        if newer.version <= seen or self.over:
            return
        try:
            self._place(newer)
        except ConfigError as error:
            self._stop(newer, str(error))
            return
        try:
            self._usable(newer)
        except (ConfigError, PrivacyError) as error:
            log.warning("version %d of the roster: %s", newer.version, error)
            return
        log.info("version %d of the roster came from %s", newer.version, source)
        self._agreed(newer)

    def _agreed(self, newer: Roster) -> None:
        """Use a roster from the next round on, or keep it until this site has approved it."""
        if not self._ask or changes.approved(self._state.folder) == newer.digest.hex():
            self.newer = newer
        elif self.held is None or self.held.version < newer.version:
            self._hold(newer)

    def _hold(self, newer: Roster) -> None:
        said = changes.told(self.roster, newer, self._identity.id)
        self.held = newer
        files.write(self._state.folder / changes.HELD, newer.raw)
        changes.note(self._state.folder, "held", newer, said, datetime.now(UTC))
        log.warning(
            "version %d of the roster waits for `cesar peer approve %s`: %s",
            newer.version,
            self._delivered.parent,
            "; ".join(said),
        )

    def _stop(self, newer: Roster, why: str) -> None:
        """End here, and after a restart, too."""
        self.over = why
        log.error("this peer stops: %s", why)
        self._state.change(roster=newer.version)
        files.write(self._path, newer.raw)
        changes.note(self._state.folder, "ended by", newer, [why], datetime.now(UTC))

    def adopt(self) -> None:
        """Go by the newer roster from now on."""
        assert self.newer is not None
        old, new = self.roster, self.newer
        self._state.change(roster=new.version, next_round=0)
        files.write(self._path, new.raw)
        if self._ask:
            files.write(self._state.folder / changes.USED, new.raw)
            (self._state.folder / changes.HELD).unlink(missing_ok=True)
            self.held = None
        said = changes.told(old, new, self._identity.id)
        changes.note(self._state.folder, "taken up", new, said, datetime.now(UTC))
        self.roster, self.hood, self.newer = new, self._place(new), None

    def renewed(self) -> Identity | None:
        """A newer certificate of this peer, once it lies beside its keys and the roster has it, or of its authority, once the
        roster has it; the peer shows and trusts it from now on.
        """
        old, now = self._identity, datetime.now(UTC)
        if not same(self._keys / CERTIFICATE, old.certificate):
            try:
                new = Identity.load(self._keys)
                mine = fingerprint(read_certificate(new.certificate))
            except ConfigError as error:
                if self._complaint != str(error):
                    log.warning("the new certificate beside the keys cannot be used: %s", error)
                self._complaint = str(error)
                return None
            alike = (new.id, new.keys.public) == (old.id, old.keys.public)
            if alike and self.roster.members[old.id].accepts(mine, now):
                self._identity = new
        self._identity = with_authority(self._identity, self.roster)
        return None if self._identity is old else self._identity

    def keys(self, session: bytes) -> Keyring:
        """This peer's keys in a session; secrets with others are computed when first needed."""
        identity, members = self._identity, self.roster.members
        known: dict[NodeId, PairSecret] = {}

        def static(peer: NodeId) -> PairSecret:
            if peer not in known:
                known[peer] = identity.keys.agree(members[peer].agreement_key, session)
            return known[peer]

        return Keyring(static, lambda _: fresh_entropy(identity.id, self._state.state.attempts)(32))

    def _place(self, roster: Roster) -> Neighbourhood:
        hood = roster.hood(self._identity.id)
        mine = fingerprint(read_certificate(self._identity.certificate))
        if not roster.members[self._identity.id].accepts(mine, datetime.now(UTC)):
            raise ConfigError(
                f"version {roster.version} of the roster lists another certificate for node {self._identity.id}; "
                "fetch the certificate that was signed last, or the newest roster"
            )
        return hood


def same(path: Path, content: bytes) -> bool:
    """Whether a file is as it was, or cannot be read at the moment."""
    try:
        return path.read_bytes() == content
    except OSError:
        return True
