"""The roster that a peer goes by, and the step to a newer one.

A newer roster may come from a neighbour or lie in the folder. It is checked at once, and used from the next round on:
first it is durable, then it counts. A peer never goes back to an older one. Rounds are counted anew under each roster, so
signing another one is the way back for a network whose numbers somebody has driven up. One in which it has no place ends
it: a peer that was removed stops, and so does one whose certificate or roster has run out. A site may ask to be asked: then a
newer one is held until it was approved (`changes`), and the old one goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from cesar.base import files
from cesar.base.errors import ConfigError, MembershipError, PrivacyError, Refusal
from cesar.base.types import NodeId
from cesar.crypto.keys import Keyring, PairSecret
from cesar.graph.neighbourhood import Neighbourhood
from cesar.peer.driver.state import StateFile, fresh_entropy
from cesar.peer.trust import changes
from cesar.peer.trust.certificates import fingerprint, read_authority, read_certificate
from cesar.peer.trust.changes import Consent
from cesar.peer.trust.identity import Identity
from cesar.peer.trust.keyfiles import CERTIFICATE
from cesar.peer.trust.roster import FILE, LIMIT, Roster

log = logging.getLogger("cesar.peer")

GROWTH = 1 << 20
"""A roster that a neighbour sends has at most twice the bytes of the one that holds, and these beside: a few hundred
peers more. What has grown beyond that since this peer was there last, its site fetches.
"""

AUTO = Consent("auto")

SOON = timedelta(days=30)
"""Something that ends within this time is worth a warning, once a day."""

AMISS = timedelta(minutes=10)
"""Clocks that differ by more are worth a warning, once a day."""


def newest(folder: Path, state: StateFile, identity: Identity, consent: Consent = AUTO) -> Roster:
    """The newest roster that lies in a peer's folder or beside its state; where the site wants to be asked, the newest that
    it has agreed to. The first one came with its own hands.

    Raises:
        ConfigError: there is none that can be used.
    """
    found: list[Roster] = []
    ca = identity.ca
    problems: list[ConfigError] = []
    for path in dict.fromkeys((folder / FILE, state.folder / FILE)):
        try:
            found.append(Roster.load(path, ca, at_least=state.state.roster))
        except ConfigError as error:
            problems.append(error)
    if not found:
        raise problems[0]
    roster, seen = max(found, key=lambda roster: roster.version), state.state.roster
    used = state.folder / changes.USED
    if not 0 < seen < roster.version or not used.exists():
        return roster
    old = Roster.load(used, ca, at_least=seen)
    if (why := roster.follows(old)) is not None:
        log.warning("version %d of the roster does not count: %s", roster.version, why)
        return old
    if consent.asks(old, roster, identity.id) and not consent.given(state.folder, roster, datetime.now(UTC)):
        return old
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
        consent: which newer rosters are held until this site has approved them.

    Attributes:
        roster: the one that holds now.
        hood: what the peer may know of its graph.
        newer: one that will hold from the next round on.
        held: one that waits for this site's approval.
        bar: is told whom a held roster removes, and its bytes: a removal counts at once.
        next_round: what its folder says of the round that comes next; cells keep that elsewhere.
        over: why this peer must stop; empty as long as it has a place.
        clock_of_others: by how many seconds most neighbours' clocks are ahead of this machine's.
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
        consent: Consent = AUTO,
    ) -> None:
        self._identity, self._state = with_authority(identity, roster), state
        self._usable, self._consent = usable, consent
        self.bar: Callable[[frozenset[NodeId], bytes], None] = lambda _, __: None
        self._keys = keys or folder
        self._path = state.folder / FILE
        self._delivered = folder / FILE
        self.held: Roster | None = None
        self.next_round: Callable[[], int] = lambda: state.state.next_round
        self.roster, self.hood = roster, self._place(roster)
        self.newer: Roster | None = None
        self._looked_at: set[bytes] = set()  # digests of rosters that were read: none is read twice
        self.over = ""
        self._warned: date | None = None
        self._wrong = False
        self._complaint = ""
        self._signed = roster  # the roster that was signed last, of all that came from the authority
        self.clock_of_others: Callable[[], float] = lambda: 0.0

    @property
    def identity(self) -> Identity:
        """Who this peer is at the moment."""
        return self._identity

    @property
    def folder(self) -> Path:
        """Where this peer writes down how far it has come."""
        return self._state.folder

    @property
    def reached(self) -> tuple[int, int]:
        """The newest roster that this peer has seen, and the round from which on it goes on."""
        return self._state.state.roster, self.next_round()

    @property
    def largest(self) -> int:
        """The most bytes that a neighbour's roster can have: all of them are hashed before its signature is known to hold."""
        return min(LIMIT, 2 * len(self.roster.raw) + GROWTH)

    def remember(self) -> None:
        """The version that holds is one that this peer has seen; rounds are counted anew under a newer one."""
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

    def latest(self, clock: datetime) -> tuple[datetime, str]:
        """The latest time for which there is evidence, and what that is: a clock that was set back makes nothing alive again.

        Nobody signs a roster, and nobody writes a file, in the future; and most neighbours are not wrong alike.
        """
        found = [
            (clock, "this machine's clock"),
            (
                self._signed.issued,
                f"version {self._signed.version} of the roster, by the time of its signature,",
            ),
            (
                datetime.fromtimestamp(self._state.written, UTC),
                f"the state in {self._state.folder}, by its date,",
            ),
            (clock + timedelta(seconds=self.clock_of_others()), "most neighbours' clocks"),
        ]
        return max(found, key=lambda item: item[0])

    def now(self) -> datetime:
        """The time of day by which things end."""
        return self.latest(datetime.now(UTC))[0]

    def days_left(self, now: datetime | None = None) -> dict[str, float]:
        """How many days each of `ends` is away; negative if it has passed."""
        now = self.now() if now is None else now
        return {what: (end - now) / timedelta(days=1) for what, end in self.ends.items()}

    def check(self, now: datetime | None = None) -> None:
        """See that this peer may go on, and warn where it soon may not.

        Raises:
            MembershipError: it has no place in the newest roster, or its certificate or roster has ended.
        """
        clock = datetime.now(UTC) if now is None else now
        now, source = self.latest(clock)
        if self.over:
            raise MembershipError(self.over)
        wrong, ahead = "", -self.clock_of_others()
        if now - clock > AMISS:
            wrong = (
                f". The clock of this machine says {clock:%Y-%m-%d %H:%M} UTC, but {source} says "
                f"{now:%Y-%m-%d %H:%M}: set the clock right"
            )
        elif ahead > AMISS.total_seconds():
            wrong = f". The clock of this machine is {ahead / 3600:.1f} hours ahead of most neighbours'"
        remedies = {
            "certificate": "`cesar peer renew` makes a request for a new one",
            "roster": "ask the operator of the network for the newest, which `cesar network extend` makes",
            "authority": "`cesar network reauthorise` makes a new one",
        }
        for what, end in self.ends.items():
            if now > end:
                raise MembershipError(
                    f"the {what} has ended on {end:%Y-%m-%d %H:%M} UTC; {remedies[what]}{wrong}"
                )
            if end - now < SOON and self._warned != now.date():
                log.warning("the %s ends on %s: %s", what, f"{end:%Y-%m-%d}", remedies[what])
        if wrong and (self._warned != now.date() or not self._wrong):  # once a day, and when it begins
            log.warning("a clock is wrong%s", wrong)
        self._warned, self._wrong = now.date(), bool(wrong)

    def look(self) -> None:
        """See whether the site has put a newer roster into the folder, or approved one that was held."""
        for path in {
            self._path,
            self._delivered,
            *([] if self._consent == AUTO else [self._state.folder / changes.HELD]),
        }:
            try:
                self.offer(path.read_bytes(), "the folder")
            except OSError:
                continue
            except Refusal as refusal:
                log.warning("the folder: %s", refusal)
        if self.held is not None and self._consent.given(self._state.folder, self.held, self.now()):
            self.newer = self.held

    def offer(self, data: bytes, source: str) -> None:
        """Keep a roster for the next round if it is newer; one that has no place for this peer ends it.

        Raises:
            Refusal: it is not a roster of this network.
        """
        # Neighbours send the same roster again and again. A hash is cheap, signatures and certificates are not; so only what came
        # whole and true from the authority is remembered, and nobody else can fill this memory.
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
        self._signed = max(self._signed, newer, key=lambda roster: roster.issued)
        if newer.version <= seen or self.over:
            return  # older ones are no fault of a neighbour: it may have been away
        if (why := newer.follows(self.roster)) is not None:
            log.warning("version %d of the roster, from %s, does not count: %s", newer.version, source, why)
            return
        # No place in it is the authority's last word to this peer. Settings that do not fit are something else: the site can
        # mend them, so the peer goes on under the old roster and says what is wrong.
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
        folder, asks = self._state.folder, self._consent.asks(self.roster, newer, self._identity.id)
        if not asks or self._consent.given(folder, newer, self.now()):
            self.newer = newer
        elif self.held is None or self.held.version < newer.version:
            self._hold(newer)

    def _hold(self, newer: Roster) -> None:
        said = changes.differences(self.roster, newer, self._identity.id)
        self.held = newer
        with self._as_far_as_possible():
            path = self._state.folder / changes.HELD
            if not same(path, newer.raw) or not path.exists():  # its date says since when it waits
                files.write(path, newer.raw)
            changes.append_to_log(self._state.folder, "held", newer, said, datetime.now(UTC))
        wait = self._consent.patience
        log.warning(
            "version %d of the roster waits for `cesar peer approve %s`%s: %s",
            newer.version,
            self._delivered.parent,
            "" if wait is None else f", or for {wait}",
            "; ".join(said),
        )
        if removed := frozenset(self.roster.members.keys() - newer.members.keys()):
            self.bar(removed, newer.raw)

    def _stop(self, newer: Roster, why: str) -> None:
        """End here, and after a restart, too."""
        self.over = why
        log.error("this peer stops: %s", why)
        with self._as_far_as_possible():
            self._state.change(roster=newer.version)
            files.write(self._path, newer.raw)
            changes.append_to_log(self._state.folder, "ended by", newer, [why], datetime.now(UTC))

    @contextlib.contextmanager
    def _as_far_as_possible(self) -> Iterator[None]:
        """What a neighbour's roster makes this peer write: if the disk is full, that is not the neighbour's fault."""
        try:
            yield
        except OSError as error:
            log.error("cannot write to %s: %s", self._state.folder, error.strerror or error)  # noqa: TRY400  (no trace)

    def adopt(self) -> None:
        """Go by the newer roster from now on."""
        assert self.newer is not None
        old, new = self.roster, self.newer
        # The roster first: a version that is counted as seen must be there after a crash, or on a full disk.
        files.write(self._path, new.raw)
        self._state.change(roster=new.version, next_round=0)
        files.write(self._state.folder / changes.USED, new.raw)
        (self._state.folder / changes.HELD).unlink(missing_ok=True)
        self.held = None
        said = changes.differences(old, new, self._identity.id)
        changes.append_to_log(self._state.folder, "taken up", new, said, datetime.now(UTC))
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
            if new.id == old.id and self.roster.members[old.id].accepts(mine, now):
                self._identity = new
        self._identity = with_authority(self._identity, self.roster)
        return None if self._identity is old else self._identity

    def keys(self, session: bytes) -> Keyring:
        """This peer's keys in a session; secrets with others are computed when first needed."""
        identity, members = self._identity, self.roster.members
        own = identity.agreement(members[identity.id].agreement_key)
        assert own is not None, "a roster without it has no place for this peer"
        known: dict[NodeId, PairSecret] = {}

        def static(peer: NodeId) -> PairSecret:
            if peer not in known:
                known[peer] = own.agree(members[peer].agreement_key, session)
            return known[peer]

        return Keyring(
            static, lambda _: fresh_entropy(identity.id, self._state.state.attempts)(32), epoch_rounds=1
        )

    def _place(self, roster: Roster) -> Neighbourhood:
        hood = roster.hood(self._identity.id)
        mine = fingerprint(read_certificate(self._identity.certificate))
        if not roster.members[self._identity.id].accepts(mine, datetime.now(UTC)):
            raise ConfigError(
                f"version {roster.version} of the roster lists another certificate for node {self._identity.id}; "
                "fetch the certificate that was signed last, or the newest roster"
            )
        self._find_key(roster)
        return hood

    def _find_key(self, roster: Roster) -> None:
        """See that the agreement key that a roster names is here; `cesar peer renew` may have made it a moment ago."""
        named = roster.members[self._identity.id].agreement_key
        if self._identity.agreement(named) is None:
            fresh = Identity.load(self._keys)
            self._identity = replace(
                self._identity, others=(*self._identity.others, fresh.keys, *fresh.others)
            )
        if self._identity.agreement(named) is None:
            raise ConfigError(
                f"version {roster.version} of the roster names an agreement key for node {self._identity.id} that is not in "
                f"{self._keys}; put back what `cesar peer renew` has made there, or renew again"
            )


def same(path: Path, content: bytes) -> bool:
    """Whether a file is as it was, or cannot be read at the moment."""
    try:
        return path.read_bytes() == content
    except OSError:
        return True
