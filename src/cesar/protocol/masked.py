"""MaskedRound: announce, relay, share, aggregate. The theory of operation, and the machine.

Phases of one node, and what ends each (or its deadline does, whichever comes first):

    ANNOUNCE  everybody it listens to has announced      then it knows who takes part in its own sum (the
                                                         group) and at what scale, and tells its neighbours
    RELAY     every neighbour has told it the same       then it knows its partners for each receiver, and
                                                         sends the shares
    SHARE     every member of its group has sent         then it averages
    DONE

A frame of an earlier phase is late and passed over. Frames of later phases may come early: relays are
stored, shares are held where they can be early at all.

*Who owns which fact.* The receiver decides who is in its group and which exponent is used, because its
senders cannot know what the others announced: if one of them missed an announcement, two senders would
scale differently and the sum would be nonsense. A sender that gets no relay frame from a receiver sends it
nothing; what that costs is handled like any other missing share.

*Privacy does not rest on the group.* Whatever a receiver or a relay says, a sender only ever sends
positions that carry at least s masks with partners whose fresh seeds it holds, under keys that neither the
receiver nor the relay knows; and these keys contain what the receiver and the relays said, so that one who
tells two senders different things gets masks that do not cancel.

With direct coordination and fixed decimals (the paper) there are no relay frames, and a group is simply
all neighbours of the receiver.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from cesar.base.errors import DataError, EncodingError, Reason, RemoteProtocolError
from cesar.base.types import BitWords, Buffer, NodeId
from cesar.crypto.keys import facts_of
from cesar.graph.neighbourhood import View
from cesar.indices import IndexSet, decode
from cesar.kernels import bits, packing, ring
from cesar.methods.sparsify import write_set
from cesar.protocol.context import Announced, Context
from cesar.protocol.events import AggregateReady, Deadlines, Outbound
from cesar.protocol.receiver import Receiver
from cesar.protocol.round import Course, Outbox, Phase, Step
from cesar.protocol.sender import (
    Masker,
    Partner,
    kept_positions,
    read_values,
    wants_negation,
    write_masked,
)
from cesar.protocol.wire import (
    Announce,
    Kind,
    Relay,
    RelayItem,
    Share,
    Token,
    members_to_bytes,
)


@dataclass(frozen=True, slots=True)
class Group:
    """What a receiver has said about its sum."""

    exponents: tuple[int, ...]
    members: tuple[NodeId, ...]

    @classmethod
    def fixed(cls, view: View, tensors: int) -> Group:
        """What holds where receivers say nothing: all neighbours, and a scale that stands in the settings."""
        return cls((0,) * tensors, view)

    def terms(self, view: View) -> bytes:
        """The same as bytes, which go into the keys of all masks for this sum."""
        return ring.exponents_to_bytes(self.exponents) + members_to_bytes(self.members, view)


class MaskedRound:
    """One node's attempt at one round."""

    def __init__(self, context: Context, deadlines: Deadlines) -> None:
        self._context, self._method, self._hood = context, context.method, context.hood
        self._own, self._size = context.own, context.size
        self._selected = self._own.selected
        if self._method.decimals is not None:
            most = max(len(view) for view in self._hood.views.values())
            ring.check_decimals(self._method.decimals, max(self._own.exponents), most)
        self._announced: dict[NodeId, Announced] = {}
        self._groups: dict[NodeId, Group] = {}  # what each receiver said
        self._relayed: dict[NodeId, tuple[Token, BitWords]] = {}  # partners that relays told of
        self._partners: dict[NodeId, Partner] = {}
        self._held: dict[NodeId, bytes] = {}  # shares that came before the announcements were complete
        self._rejected: list[RemoteProtocolError] = []
        self._members: tuple[NodeId, ...] = ()  # of this node's own group
        self._exponents = self._own.exponents
        self._unreadable: set[NodeId] = set()
        self._receiver = Receiver(0, {}, self._method.masks, self._own.out)
        self._listens_to = self._announcers()
        self.outbox = Outbox()
        self.outbox.add(lambda: context.announcement(self._listens_to))
        told_by = frozenset(self._hood.views if self._method.has_terms else ())
        law = {
            Phase.ANNOUNCE: Step(lambda: self._listens_to - self._announced.keys(), self._form_group),
            Phase.RELAY: Step(lambda: told_by - self._groups.keys(), self._start_sharing),
            Phase.SHARE: Step(
                lambda: set(self._members) - self._receiver.arrived.keys() - self._unreadable, lambda: None
            ),
        }
        self.course = Course(law, deadlines)

    def rejected(self) -> list[RemoteProtocolError]:
        """Held frames that turned out to be bad."""
        found, self._rejected = self._rejected, []
        return found

    def handle(self, sender: NodeId, kind: Kind, body: memoryview) -> None:
        """Take in a frame; see `_on_announce`, `_on_relay` and `_on_share`."""
        try:
            match kind:
                case Kind.ANNOUNCE:
                    self._on_announce(sender, body)
                case Kind.RELAY:
                    self._on_relay(sender, body)
                case Kind.SHARE:
                    self._on_share(sender, body)
                case _:
                    raise self._context.refusal(
                        sender, Reason.UNEXPECTED, "this network masks what it shares"
                    )
        except EncodingError as error:
            raise self._context.refusal(sender, Reason.MALFORMED, str(error)) from None

    # ── announce ────────────────────────────────────────────────────────────────────────────────────────

    def _announcers(self) -> frozenset[NodeId]:
        """Whose announcements this node needs, which are also those who need its own."""
        if self._method.coordination == "relay":
            return frozenset(self._hood.view)
        direct = self._hood.view if self._method.receivers_need_sets else ()
        return frozenset((*self._hood.view2, *direct))

    def _on_announce(self, sender: NodeId, body: memoryview) -> None:
        if sender not in self._listens_to:
            raise self._context.refusal(sender, Reason.STRANGER, "it is not a neighbour in this round")
        if self.course.phase is not Phase.ANNOUNCE:
            return
        if sender in self._announced:
            raise self._context.refusal(sender, Reason.DUPLICATE, "it has announced itself already")
        message = Announce.decode(body, len(self._context.edges))
        self._context.check_scale(sender, message.exponents)
        indices = self._method.sparsifier.read(message.indices, self._size)
        self._announced[sender] = Announced(message.token, message.exponents, indices)

    # ── relay ───────────────────────────────────────────────────────────────────────────────────────────

    def _make_relay(self, j: NodeId) -> Outbound:
        items = []
        for i in self._relayed_to(j, self._context.me, self._members):
            known = self._announced[i]
            with self._context.blaming(i):
                indices = self._method.sparsifier.write(
                    _as_seen_by(known, self._announced[j]), self._method.index_code
                )
            items.append(RelayItem(token=known.token, indices=indices))
        message = Relay(exponents=self._exponents, group=self._members, items=tuple(items))
        return Outbound(
            recipients=(j,), frame=message.encode(self._context.header(Kind.RELAY), self._hood.view)
        )

    def _relayed_to(self, j: NodeId, relay: NodeId, group: tuple[NodeId, ...]) -> list[NodeId]:
        """The members of a relay's group that it tells j about, ascending."""
        if self._method.coordination == "direct":
            return []
        return [i for i in group if i != j and self._hood.relay(i, j, self._context.round_id) == relay]

    def _on_relay(self, sender: NodeId, body: memoryview) -> None:
        if not self._method.has_terms:
            raise self._context.refusal(sender, Reason.UNEXPECTED, "nothing is relayed in this network")
        if sender not in self._hood.views:
            raise self._context.refusal(sender, Reason.STRANGER, "it is not a neighbour in this round")
        if self.course.phase > Phase.RELAY:
            return
        if sender in self._groups:
            raise self._context.refusal(sender, Reason.DUPLICATE, "it has relayed already")
        message = Relay.decode(body, self._hood.views[sender], len(self._context.edges))
        if self._context.me not in message.group:
            raise self._context.refusal(sender, Reason.UNEXPECTED, "it relays to a node outside its group")
        if not ring.fits(self._own.exponents, message.exponents):
            raise self._context.refusal(sender, Reason.UNSAFE_SCALE, "its scale is below that of this model")
        # Who is relayed by whom follows from the round and the group, so the frame names nobody: its items are those of these
        # partners, in order. All are read before anything is stored; a bad one leaves this node as it was.
        partners = self._relayed_to(self._context.me, sender, message.group)
        if len(partners) != len(message.items):
            raise EncodingError(f"{len(message.items)} partners relayed instead of {len(partners)}")
        told = {
            partner: (item.token, self._partner_words(partner, item.indices))
            for partner, item in zip(partners, message.items, strict=True)
        }
        self._groups[sender] = Group(message.exponents, message.group)
        self._relayed.update(told)

    def _partner_words(self, partner: NodeId, data: Buffer) -> BitWords:
        """The positions of a relayed set that are this node's own; a seed that was announced is not expanded again."""
        known = self._announced.get(partner)
        announced = None if known is None else known.indices
        if announced is not None and announced.seed is not None and write_set(announced, None) == data:
            return announced.words
        own = self._selected
        indices = self._method.sparsifier.read(data, self._size, within=own.count)
        return indices.words if indices.seed is not None else indices.spread_over(own).words

    # ── share ───────────────────────────────────────────────────────────────────────────────────────────

    def _make_share(self, receiver: NodeId) -> Outbound:
        method, view = self._method, self._hood.views[receiver]
        group = self._groups.get(receiver, Group.fixed(view, len(self._context.edges)))
        own, partners = self._selected, self._partners_for(group)
        kept = kept_positions(own.words, [p.words for p in partners.values()], method.masks)
        terms = group.terms(view)
        maskers = [
            Masker(
                self._context.mask(receiver, j, partner.token, terms, partner.digest),
                partner,
                wants_negation(self._context.me, j),
            )
            for j, partner in partners.items()
        ]
        grid = self._context.grid(group.exponents, len(view))
        count = bits.count(kept)
        explicit = None
        if method.explicit_indices:
            explicit = write_set(IndexSet(kept, self._size, count), method.index_code)
        out, frame = Share.allocate(
            self._context.header(Kind.SHARE),
            view,
            facts=facts_of(
                self._context.token.to_bytes(),
                terms,
                {j: (p.token.to_bytes(), p.digest) for j, p in partners.items()},
            ),
            checks={j: masker.key.check for j, masker in zip(partners, maskers, strict=True)},
            indices=explicit,
            parameters=count,
            values=packing.packed_size(count, grid.bits),
        )
        dither = self._context.dither_for(receiver, grid)
        write_masked(out, self._own.vector, own.words, kept, maskers, grid, dither)
        return Outbound(recipients=(receiver,), frame=frame, positions=kept)

    def _partners_for(self, group: Group) -> dict[NodeId, Partner]:
        """The members of a group whose masks this node can make."""
        return {j: self._partners[j] for j in group.members if j in self._partners and j != self._context.me}

    def _on_share(self, sender: NodeId, body: memoryview) -> None:
        if sender not in self._hood.views:
            raise self._context.refusal(sender, Reason.STRANGER, "it is not a neighbour in this round")
        if self.course.phase is Phase.ANNOUNCE:
            if self._method.has_terms:
                raise self._context.refusal(sender, Reason.UNEXPECTED, "a share before the group was formed")
            if sender in self._held:
                raise self._context.refusal(sender, Reason.DUPLICATE, "it has sent its share already")
            self._held[sender] = bytes(body)
            return
        if sender in self._receiver.arrived or sender in self._unreadable:
            raise self._context.refusal(sender, Reason.DUPLICATE, "it has sent its share already")
        share = Share.decode(body, self._hood.view, self._method.explicit_indices)
        if sender in share.partners:
            raise EncodingError("a node cannot mask for itself")
        if not {sender, *share.partners} <= set(self._members):
            if self._method.has_terms:
                raise self._context.refusal(sender, Reason.UNEXPECTED, "it masks for nodes outside the group")
            self._unreadable.add(sender)  # honest, but this node lacks an announcement that it needs
            return
        kept = self._positions_of(sender, share)
        words = read_values(share.values, bits.count(kept), self._method.ring_bits)
        self._receiver.add(sender, dict(zip(share.partners, share.checks, strict=True)), kept, words)

    def _terms(self) -> bytes:
        """What this node has said about its own sum."""
        view = self._hood.view
        return (
            Group(self._exponents, self._members)
            if self._method.has_terms
            else Group.fixed(view, len(self._context.edges))
        ).terms(view)

    def _positions_of(self, sender: NodeId, share: Share) -> BitWords:
        """Where the values of a share belong."""
        if not self._method.receivers_need_sets:
            assert share.indices is not None
            return decode(share.indices, self._size).words
        known = {
            j: (self._announced[j].token.to_bytes(), self._receiver.common_digest(sender, j))
            for j in share.partners
        }
        if share.facts != facts_of(self._announced[sender].token.to_bytes(), self._terms(), known):
            raise self._context.refusal(sender, Reason.STALE_ATTEMPT, "it rests on other announcements")
        kept = self._receiver.expected_positions(sender, share.partners)
        if share.indices is not None:
            stated = decode(share.indices, self._size)
            if not np.array_equal(stated.words, kept):
                raise EncodingError("the indices beside the values are not those that were announced")
        return kept

    # ── from phase to phase ─────────────────────────────────────────────────────────────────────────────

    def _form_group(self) -> None:
        """The announcements are in: decide who takes part in this node's sum, and tell them."""
        view = self._hood.view
        present = tuple(j for j in view if j in self._announced)
        self._members = present if self._method.receivers_need_sets else view
        self._exponents = ring.largest_exponents(
            [self._announced[j].exponents for j in present], self._exponents
        )
        sets = {j: self._announced[j].indices.words for j in present}
        self._receiver = Receiver(len(view), sets, self._method.masks, self._own.out)
        if self._method.has_terms:
            for j in present:
                self.outbox.add(partial(self._make_relay, j), j)
        held, self._held = self._held, {}
        for sender, body in sorted(held.items()):
            try:
                self.handle(sender, Kind.SHARE, memoryview(body))
            except RemoteProtocolError as error:
                self._rejected.append(error)
            except Exception as error:  # noqa: BLE001  (as in `Engine.receive`)
                self._rejected.append(RemoteProtocolError.fault(sender, error, self._context.round_id.round_))

    def _start_sharing(self) -> None:
        """Coordination is over: find the partners, and send to every receiver that is ready."""
        self._find_partners()
        ready = self._groups if self._method.has_terms else self._hood.view
        # From the next id on, and around: else all would send to the lowest first.
        for r in sorted(ready, key=lambda r: (r < self._context.me, r)):
            self.outbox.add(partial(self._make_share, r), r)

    def _find_partners(self) -> None:
        """The nodes whose masks this node can make."""
        known = dict(self._relayed)
        for j in set(self._hood.view2) & self._announced.keys():
            known[j] = (self._announced[j].token, self._announced[j].indices.words)
        own = self._selected.words
        for j, (token, words) in known.items():
            try:
                self._context.keys.secret(j, token.ephemeral)
                found = Partner.of(token, words, own)
            except DataError:  # a key that is none: there is no mask with this node
                continue
            except Exception as error:  # noqa: BLE001  (nor with one of whom something was said that cannot be used)
                self._rejected.append(
                    RemoteProtocolError.fault(self._told_of(j), error, self._context.round_id.round_)
                )
                continue
            self._partners[j] = found

    def _told_of(self, j: NodeId) -> NodeId:
        """Who said what this node knows of a partner: the partner itself, or the relay between them."""
        relay = (
            None if j in self._announced else self._hood.relay(j, self._context.me, self._context.round_id)
        )
        return j if relay is None else relay

    def aggregate(self) -> AggregateReady:
        """The average of what arrived, or the own model where nothing can be used."""
        usable = self._method.dropout == "parameter" or self._receiver.everything_from(self._hood.view)
        receiver, own = self._receiver, self._own.vector
        lost = (
            receiver.average(
                own, self._context.grid(self._exponents, len(self._hood.view)), self._context.everybody
            )
            if usable
            else receiver.keep(own)
        )
        return AggregateReady(
            round_=self._context.round_id.round_,
            vector=self._own.out,
            contributors=tuple(sorted(receiver.arrived)) if usable else (),
            lost=lost,
        )


def _as_seen_by(announced: Announced, addressee: Announced) -> IndexSet:
    """A set as a partner needs it: the seed if there is one, else restricted to what the partner selected."""
    theirs = announced.indices
    return theirs if theirs.seed is not None else theirs.within(addressee.indices)
