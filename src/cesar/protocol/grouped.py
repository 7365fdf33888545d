"""GroupedRound: a receiver sees sums over whole groups of its neighbours, always the same groups.

The phases are those of `masked`: announce, relay, share. What differs:

*Nothing is agreed about who takes part.* The groups are fixed (`cesar.grouping`). If a member has not announced itself
to r, r says so and the others of its group send r nothing in this round. If it vanishes later, the group's sum is lost
for r in this round and nothing else. There is no regrouping among those who remain: the sum over S and the sum over S
without k give v_k.

*All members of a group send the same positions*: what is drawn for the group, or the union of what its members
selected, of which r tells each member the part that it has not selected itself.

*The receiver passes tokens on itself.* It has heard all its senders and must tell them its terms anyway.

*Privacy does not rest on what r says.* A share carries the masks of all other members under keys that r does not know,
and these contain all that r said: its scale, who is in the sum, and a digest of the positions. Whoever tells two members
different things gets masks that do not cancel; whoever leaves a member out gets nothing. Values are rounded after
they were masked, so that a scale told to all decides how exactly r sees the group's sum, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np

from cesar import bits, packing, ring
from cesar.crypto.keys import facts_of
from cesar.errors import (
    DataError,
    EncodingError,
    LocalProtocolError,
    PrivacyError,
    Reason,
    RemoteProtocolError,
)
from cesar.grouping import Group
from cesar.indices import IndexSet, decode
from cesar.protocol.context import Announced, Context
from cesar.protocol.continuity import Continuity
from cesar.protocol.events import AggregateReady, Deadlines, Outbound
from cesar.protocol.round import Course, Outbox, Phase, Step
from cesar.protocol.sender import read_values, wants_negation, write_grouped
from cesar.sparsify import RandomSubsampling, read_set, write_set
from cesar.types import NodeId, RingWords
from cesar.wire import Announce, GroupTerms, Kind, Share, Token, members_to_bytes


@dataclass(slots=True)
class Sum:
    """One group's sum at its receiver: who is in it, where, and what has come of it so far."""

    members: Group  # those in the sum: the whole group
    positions: IndexSet
    digest: bytes
    terms: bytes
    total: RingWords | None = field(default=None, repr=False)
    checks: dict[NodeId, dict[NodeId, bytes]] = field(default_factory=dict)

    def add(self, sender: NodeId, checks: dict[NodeId, bytes], words: RingWords) -> None:
        """Add a member's share."""
        if self.total is None:
            self.total = words.copy()
        else:
            self.total += words
        self.checks[sender] = checks

    @property
    def complete(self) -> bool:
        """Whether every mask has met its opposite."""
        return len(self.checks) == len(self.members) and all(
            self.checks[j][i] == check for i, others in self.checks.items() for j, check in others.items()
        )


class Task(NamedTuple):
    """What this node is to send one receiver."""

    exponents: tuple[int, ...]
    members: Group
    tokens: dict[NodeId, Token]
    positions: IndexSet


class Place(NamedTuple):
    """Which of a receiver's groups a node is in: its number, its members, and those of them that are others."""

    number: int
    group: Group
    partners: Group


def groups_of(receiver: NodeId, context: Context) -> tuple[Group, ...]:
    """The groups of a receiver, checked: nothing is sent to one that is smaller than the method asks for."""
    table, hood = context.method.groups, context.hood
    if table is None:
        raise LocalProtocolError("groups follow from the graph: use method.for_graph(graph)")
    found = table.get(receiver, ())
    view = hood.view if receiver == hood.node else hood.views[receiver]
    _check_groups(receiver, found, view, context.method.masks)
    return found


@lru_cache(maxsize=4096)
def _check_groups(receiver: NodeId, found: tuple[Group, ...], view: Group, masks: int) -> None:
    """What was found right is not looked at again in the next round; what is wrong raises every time."""
    if tuple(sorted(node for group in found for node in group)) != view:
        raise LocalProtocolError(f"the groups of node {receiver} are those of another graph")
    if any(len(group) <= masks for group in found):
        raise PrivacyError(f"a group of node {receiver} has fewer than {masks + 1} members; nothing was sent")


@lru_cache(maxsize=4096)
def place_of(node: NodeId, found: tuple[Group, ...]) -> Place:
    """A node's place among a receiver's groups, which stay from round to round."""
    number, group = next((k, group) for k, group in enumerate(found) if node in group)
    return Place(number, group, tuple(other for other in group if other != node))


def terms_of(exponents: tuple[int, ...], members: Group, view: Group) -> bytes:
    """What a receiver says about a sum, as it goes into the keys of its masks."""
    return ring.exponents_to_bytes(exponents) + members_to_bytes(members, view)


def share_facts(own: Token, terms: bytes, partners: dict[NodeId, Token], digest: bytes) -> bytes:
    """What a share rests on; see `facts_of`."""
    return facts_of(own.to_bytes(), terms, {j: (token.to_bytes(), digest) for j, token in partners.items()})


class GroupedRound:
    """One node's attempt at one round with fixed groups."""

    def __init__(self, context: Context, deadlines: Deadlines, continuity: Continuity) -> None:
        self._context, self._method, self._hood = context, context.method, context.hood
        self._own, self._size, self._continuity = context.own, context.size, continuity
        self._groups = {r: groups_of(r, context) for r in (context.me, *context.hood.view)}
        continuity.meet(self._groups, context.attempt.round_)
        self._announced: dict[NodeId, Announced] = {}
        self._told: dict[NodeId, Task | None] = {}  # by each receiver
        self._exponents = self._own.exponents
        self._sums: dict[NodeId, Sum] = {}  # of each neighbour that takes part
        self._silent: list[tuple[Group, Group]] = []
        self._used: list[Sum] = []
        self.outbox = Outbox()
        self.outbox.add(lambda: context.announcement(context.hood.view))
        view = frozenset(self._hood.view)
        law = {
            Phase.ANNOUNCE: Step(lambda: view - self._announced.keys(), self._form_sums),
            Phase.RELAY: Step(lambda: view - self._told.keys(), self._start_sharing),
            Phase.SHARE: Step(self._missing_shares, lambda: None),
        }
        self.course = Course(law, deadlines)

    def _missing_shares(self) -> set[NodeId]:
        return {i for i, sum_ in self._sums.items() if i not in sum_.checks}

    def rejected(self) -> list[RemoteProtocolError]:
        return []

    def handle(self, sender: NodeId, kind: Kind, body: memoryview) -> None:
        """Take in a frame; see `_on_announce`, `_on_terms` and `_on_share`."""
        if sender not in self._hood.views:
            raise self._context.refusal(sender, Reason.STRANGER, "it is not a neighbour in this round")
        try:
            match kind:
                case Kind.ANNOUNCE:
                    self._on_announce(sender, body)
                case Kind.GROUP_TERMS:
                    self._on_terms(sender, body)
                case Kind.SHARE:
                    self._on_share(sender, body)
                case _:
                    raise self._context.refusal(
                        sender, Reason.UNEXPECTED, "this network masks in fixed groups"
                    )
        except EncodingError as error:
            raise self._context.refusal(sender, Reason.MALFORMED, str(error)) from None

    # ── announce ────────────────────────────────────────────────────────────────────────────────────────

    def _on_announce(self, sender: NodeId, body: memoryview) -> None:
        if self.course.phase is not Phase.ANNOUNCE:
            return
        if sender in self._announced:
            raise self._context.refusal(sender, Reason.DUPLICATE, "it has announced itself already")
        message = Announce.decode(body, len(self._context.edges))
        self._context.check_scale(sender, message.exponents)
        if self._method.receiver_decides:
            if len(message.indices):
                raise EncodingError("sets follow from the receiver here; none may be sent")
            indices = None
        else:
            indices = read_set(self._method.sparsifier, message.indices, self._size)
        self._announced[sender] = Announced(message.token, message.exponents, indices)

    # ── terms ───────────────────────────────────────────────────────────────────────────────────────────

    def _form_sums(self) -> None:
        """The announcements are in: tell every neighbour that is there whether its group goes ahead, and how."""
        me, round_, present = self._context.me, self._context.attempt.round_, frozenset(self._announced)
        self._exponents = ring.largest_exponents(
            [known.exponents for known in self._announced.values()], self._exponents
        )
        drawn = self._drawn_for(me)
        for number, group in enumerate(self._groups[me]):
            members = self._continuity.taking_part(me, group, present, round_, self._method)
            if len(members) < len(group):
                self._silent.append((group, tuple(node for node in group if node not in present)))
            if members:
                self._continuity.note(me, group, members, round_)
                positions = drawn(number) if drawn is not None else self._union(members)
                terms = terms_of(self._exponents, members, self._hood.view)
                sum_ = Sum(members, positions, positions.digest, terms)
                self._sums.update(dict.fromkeys(members, sum_))
        for j in self._hood.view:
            if j in present:
                self.outbox.add(partial(self._make_terms, j), j)

    def _drawn_for(self, receiver: NodeId) -> Callable[[int], IndexSet] | None:
        """Number of a group → its positions, where they follow from the receiver and the round."""
        sparsifier = self._method.sparsifier
        if not self._method.receiver_decides:
            return None
        if isinstance(sparsifier, RandomSubsampling):
            return sparsifier.in_turns(
                receiver, self._context.attempt, self._size, len(self._groups[receiver])
            )
        return lambda _: IndexSet.full(self._size)

    def _union(self, members: Group) -> IndexSet:
        words = np.zeros(bits.words_for(self._size), dtype=np.uint64)
        for node in members:
            indices = self._announced[node].indices
            assert indices is not None
            with self._context.blaming(node):
                words |= indices.words
        return IndexSet.of_words(words, self._size)

    @cached_property
    def _unselected(self) -> IndexSet | None:
        """What this node has not selected itself: receivers say which part of it others have."""
        return None if self._own.selected is None else self._own.selected.complement()

    def _make_terms(self, j: NodeId) -> Outbound:
        sum_, known = self._sums.get(j), self._announced
        tokens: tuple[Token, ...] = ()
        others = b""
        if sum_ is not None:
            tokens = tuple(known[i].token for i in sum_.members if i != j)
            own = known[j].indices
            if own is not None:
                others = write_set(sum_.positions.within(own.complement()), self._method.index_code)
        message = GroupTerms(
            exponents=self._exponents, present=tuple(sorted(known)), tokens=tokens, others=others
        )
        return Outbound(
            recipients=(j,), frame=message.encode(self._context.header(Kind.GROUP_TERMS), self._hood.view)
        )

    def _on_terms(self, sender: NodeId, body: memoryview) -> None:
        if self.course.phase > Phase.RELAY:
            return
        if sender in self._told:
            raise self._context.refusal(sender, Reason.DUPLICATE, "it has told its terms already")
        place = place_of(self._context.me, self._groups[sender])
        message = GroupTerms.decode(body, self._hood.views[sender], place.partners, len(self._context.edges))
        if self._context.me not in message.present:
            raise self._context.refusal(
                sender, Reason.UNEXPECTED, "it tells its terms to a node that it calls absent"
            )
        task = self._read_terms(sender, place, message)
        if task is not None:
            self._continuity.note(sender, place.group, task.members, self._context.attempt.round_)
        self._told[sender] = task

    def _read_terms(self, sender: NodeId, place: Place, message: GroupTerms) -> Task | None:
        """What the terms ask of this node; None if its group is silent, or has to stay so for some rounds."""
        present = frozenset(message.present)
        if not message.tokens:
            if len(message.others):
                raise EncodingError("positions for a group that is silent")
            return None
        heard = [node for node in place.partners if node in present]
        if len(message.tokens) != len(heard):
            raise EncodingError(f"{len(message.tokens)} tokens instead of {len(heard)}")
        if not ring.fits(self._own.exponents, message.exponents):
            raise self._context.refusal(sender, Reason.UNSAFE_SCALE, "its scale is below that of this model")
        drawn = self._drawn_for(sender)
        if drawn is None:
            own, others = self._own.selected, self._unselected
            assert own is not None
            assert others is not None
            rest = decode(message.others, others.count)
            positions = IndexSet(
                own.words | rest.spread_over(others).words, self._size, own.count + rest.count
            )
        elif len(message.others):
            raise EncodingError("positions follow from the receiver here; none may be sent")
        else:
            positions = drawn(place.number)
        members = self._continuity.taking_part(
            sender, place.group, present, self._context.attempt.round_, self._method
        )
        if not members:
            return None
        return Task(message.exponents, members, dict(zip(heard, message.tokens, strict=True)), positions)

    # ── share ───────────────────────────────────────────────────────────────────────────────────────────

    def _start_sharing(self) -> None:
        # From the next id on, and around: else all would send to the lowest first.
        for r in sorted(self._told, key=lambda r: (r < self._context.me, r)):
            if self._told[r] is not None:
                self.outbox.add(partial(self._make_share, r), r)

    def _make_share(self, receiver: NodeId) -> Outbound | None:
        task = self._told[receiver]
        assert task is not None
        view, digest = self._hood.views[receiver], task.positions.digest
        terms = terms_of(task.exponents, task.members, view)
        try:
            keys = {
                j: self._context.mask(receiver, j, token, terms, digest) for j, token in task.tokens.items()
            }
        except DataError:  # a key that is none: then nothing is sent to a receiver that passed it on
            return None
        count = task.positions.count
        grid = self._grid(task.exponents, receiver, len(view))
        out, frame = Share.allocate(
            self._context.header(Kind.SHARE),
            view,
            facts=share_facts(self._context.token, terms, task.tokens, digest),
            checks={j: key.check for j, key in keys.items()},
            indices=None,
            parameters=count,
            values=packing.packed_size(count, grid.bits),
        )
        masks = [(key, wants_negation(self._context.me, j)) for j, key in keys.items()]
        write_grouped(out, self._own.vector, task.positions, masks, grid)
        return Outbound(recipients=(receiver,), frame=frame, positions=task.positions.words)

    def _grid(self, exponents: tuple[int, ...], receiver: NodeId, degree: int) -> ring.Grid:
        """Sums of fewer than 32 bits are added up outside the ring, so only one group's values must fit."""
        together = degree if self._method.ring_bits == 32 else max(map(len, self._groups[receiver]))
        return self._context.grid(exponents, together)

    def _on_share(self, sender: NodeId, body: memoryview) -> None:
        if self.course.phase is Phase.ANNOUNCE:
            raise self._context.refusal(sender, Reason.UNEXPECTED, "a share before the terms were told")
        sum_ = self._sums.get(sender)
        if sum_ is None:
            raise self._context.refusal(sender, Reason.UNEXPECTED, "its group takes no part in this round")
        if sender in sum_.checks:
            raise self._context.refusal(sender, Reason.DUPLICATE, "it has sent its share already")
        share = Share.decode(body, self._hood.view, explicit=False)
        if (*sorted((*share.partners, sender)),) != sum_.members:
            raise self._context.refusal(sender, Reason.UNEXPECTED, "it carries the masks of another group")
        partners = {j: self._announced[j].token for j in share.partners}
        if share.facts != share_facts(self._announced[sender].token, sum_.terms, partners, sum_.digest):
            raise self._context.refusal(sender, Reason.STALE_ATTEMPT, "it rests on other announcements")
        words = read_values(share.values, sum_.positions.count, self._method.ring_bits)
        sum_.add(sender, dict(zip(share.partners, share.checks, strict=True)), words)
        if sum_.complete:
            self._use(sum_)

    def _use(self, sum_: Sum) -> None:
        """Add a sum that is whole to the total."""
        assert sum_.total is not None
        total, first = self._own.out.view(np.uint32), not self._used
        ring.accumulate(total, sum_.positions.words, sum_.total, self._method.ring_bits, first)
        self._used.append(sum_)
        sum_.total = None

    # ── aggregate ───────────────────────────────────────────────────────────────────────────────────────

    def aggregate(self) -> AggregateReady:
        """The mean of the own value and all values of complete groups, or the own model if nothing can be used."""
        used = self._used
        failed = [sum_ for sum_ in {id(s): s for s in self._sums.values()}.values() if sum_ not in used]
        if self._method.dropout == "abort" and (failed or self._silent):
            used = []
        if used:
            self._average(used)
        else:
            self._own.out[:] = self._own.vector
        spoiled = np.zeros(bits.words_for(self._size), dtype=np.uint64)
        for sum_ in failed:
            spoiled |= sum_.positions.words
        return AggregateReady(
            round_=self._context.attempt.round_,
            vector=self._own.out,
            contributors=tuple(sorted(node for sum_ in used for node in sum_.members)),
            lost=bits.count(spoiled),
            silent=tuple(self._silent),
        )

    def _average(self, used: list[Sum]) -> None:
        view = self._hood.view
        grid = self._grid(self._exponents, self._context.me, len(view))
        ring.average(
            self._own.vector,
            self._own.out.view(np.uint32),
            np.stack([sum_.positions.words for sum_ in used]),
            np.array([len(sum_.members) for sum_ in used], dtype=np.uint32),
            np.empty(0, dtype=np.uint64),
            32,
            grid.edges,
            1.0 / grid.scales,
            self._context.everybody,
        )
