"""Keys: equal from both sides and different whenever anything differs. Masks: gone from every full sum."""

import gc
import math
from dataclasses import dataclass, replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cesar.base.errors import DataError, PrivacyError
from cesar.base.seeds import SeedTree
from cesar.crypto.keys import (
    EPOCH_ROUNDS,
    KeyPair,
    Keyring,
    MaskKey,
    PairSecret,
    RoundId,
    hkdf_extract,
    mask_key,
)
from cesar.crypto.keystream import Keystream
from cesar.crypto.subsample import expand_seed
from cesar.indices import IndexSet
from cesar.kernels import bits, packing, ring
from cesar.kernels.slicing import spans
from cesar.protocol.cell_round import Part, masked_rows
from cesar.protocol.sender import (
    BLOCK_WORDS,
    Masker,
    Partner,
    kept_positions,
    wants_negation,
    write_masked,
)
from cesar.protocol.wire import Token

SEEDS = SeedTree(2024)
SESSION = SEEDS.bytes(16, "session")
sixteen = st.binary(min_size=16, max_size=16)
u32 = st.integers(0, 2**32 - 1)


def key_pair(name):
    return KeyPair.generate(SEEDS.entropy("key", name))


# ── agreement ───────────────────────────────────────────────────────────────────────────────────────────


@settings(deadline=None, max_examples=30)
@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), sixteen)
def test_both_sides_agree(one, other, session):
    left, right = (KeyPair.generate(lambda count, key=key: key[:count]) for key in (one, other))
    assert left.agree(right.public, session) == right.agree(left.public, session)


def test_secrets_differ_by_pair_and_by_session():
    pairs = [key_pair(k) for k in range(4)]
    secrets = {
        a.agree(b.public, session).key for a, b in combinations(pairs, 2) for session in (SESSION, bytes(16))
    }
    assert len(secrets) == 12


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(33)], ids=len)
def test_a_public_key_of_another_length_is_refused(public):
    with pytest.raises(DataError, match="not a usable X25519 key"):
        key_pair("a").agree(public, SESSION)


@pytest.mark.parametrize("point", [0, 1, 2**255 - 20])
def test_a_point_of_small_order_is_refused(point):
    """The agreement would be zero, whatever the private key: a peer could force a secret known to all."""
    with pytest.raises(DataError, match="not a usable X25519 key"):
        key_pair("a").agree(point.to_bytes(32, "little"), SESSION)


# ── keyrings ────────────────────────────────────────────────────────────────────────────────────────────


class Entropy:
    """Fresh keys by epoch, and which were asked for."""

    def __init__(self, name):
        self.name, self.asked = name, []

    def __call__(self, epoch):
        self.asked.append(epoch)
        return SEEDS.bytes(32, "epoch", self.name, epoch, len(self.asked))


class Agreements:
    """Static secrets with one's peers, and how often they were needed."""

    def __init__(self, name):
        self.own, self.calls = key_pair(name), 0

    def __call__(self, peer):
        self.calls += 1
        return self.own.agree(key_pair(peer).public, SESSION)


def keyring(name, **settings_):
    return Keyring(Agreements(name), Entropy(name), **settings_)


def pairs_alive():
    """Public halves of all key pairs that anybody still holds."""
    gc.collect()
    return {one.public for one in gc.get_objects() if type(one) is KeyPair}


def test_an_epoch_has_one_key_and_its_end_forgets_the_private_half():
    entropy = Entropy("a")
    ring_ = Keyring(Agreements("a"), entropy)
    first = {ring_.public(round_) for round_ in range(EPOCH_ROUNDS)}
    assert len(first) == 1
    assert EPOCH_ROUNDS == 64
    assert first <= pairs_alive()
    second = {ring_.public(round_) for round_ in range(EPOCH_ROUNDS, 2 * EPOCH_ROUNDS)}
    assert len(second) == 1
    assert not first & second
    assert not first & pairs_alive()
    assert second <= pairs_alive()
    assert entropy.asked == [0, 1]


def test_a_round_that_is_over_leaves_no_key():
    """Where each round has a key of its own it goes at once: nobody finds it while the next model is trained."""
    one, longer, theirs = keyring("a", epoch_rounds=1), keyring("c", epoch_rounds=2), keyring("b").public(0)
    keys = {ring_: ring_.public(0) for ring_ in (one, longer)}
    for ring_ in keys:
        ring_.secret("b", theirs)
        ring_.ended()
    assert keys[one] not in pairs_alive()
    assert not one._secrets
    assert keys[longer] in pairs_alive()
    assert one.public(0) != keys[one]


def test_the_end_of_an_epoch_forgets_the_secrets_made_with_it():
    one, theirs = keyring("a", epoch_rounds=3), keyring("b").public(0)
    one.public(0)
    old = one.secret("b", theirs)
    assert one._secrets
    one.public(3)
    assert not one._secrets
    assert one.secret("b", theirs) != old


@pytest.mark.parametrize("epoch_rounds", [1, 2, 10])
def test_epochs_of_another_length(epoch_rounds):
    ring_ = keyring("a", epoch_rounds=epoch_rounds)
    keys = [ring_.public(round_) for round_ in range(20)]
    assert [keys.index(key) for key in keys] == [k - k % epoch_rounds for k in range(20)]


def test_both_sides_derive_the_same_secret_in_every_epoch():
    one, other = keyring("a", epoch_rounds=2), keyring("b", epoch_rounds=2)
    secrets = []
    for round_ in range(8):
        publics = one.public(round_), other.public(round_)
        secrets.append(one.secret("b", publics[1]))
        assert secrets[-1] == other.secret("a", publics[0])
    assert len({secret.key for secret in secrets}) == 4
    assert all(len(secret.key) == 64 for secret in secrets)


def test_a_start_makes_another_key():
    """The same node and the same round, but a new process: what it made before cannot be made again."""
    one, again, other = keyring("a"), Keyring(Agreements("a"), Entropy("a, started again")), keyring("b")
    assert one.public(0) != again.public(0)
    assert one.secret("b", other.public(0)) != again.secret("b", other.public(0))


def test_an_exchanged_key_gives_secrets_that_nobody_has_in_common():
    one, other, relay = keyring("a"), keyring("b"), key_pair("a relay's own")
    publics = one.public(0), other.public(0)
    right = one.secret("b", publics[1])
    wrong = one.secret("b", relay.public), other.secret("a", relay.public)
    assert len({right.key, wrong[0].key, wrong[1].key}) == 3
    # The relay knows both ephemeral agreements that it has caused, but no static secret.
    shared = relay.exchange(publics[0])
    for static in (
        relay.agree(key_pair("a").public, SESSION).key,
        relay.agree(key_pair("b").public, SESSION).key,
    ):
        low, high = sorted((relay.public, publics[0]))
        assert hkdf_extract(b"cesar ephemeral", static + shared + low + high) not in {w.key for w in wrong}
    assert one.secret("b", publics[1]) == right


def test_secrets_are_kept_by_pair_of_keys():
    static = Agreements("a")
    ring_, peers = Keyring(static, Entropy("a"), 4), [keyring(name) for name in ("b", "c")]
    publics = [peer.public(0) for peer in peers]
    ring_.public(0)
    for _ in range(3):
        for name, public in zip("bc", publics, strict=True):
            ring_.secret(name, public)
    assert static.calls == 2
    ring_.secret("b", key_pair("another").public)  # a peer has one key at a time
    ring_.secret("b", publics[0])
    assert static.calls == 4
    ring_.public(4)
    ring_.secret("c", publics[1])
    assert static.calls == 5


@pytest.mark.parametrize(
    "public", [b"", bytes(31), bytes(32), (2**255 - 20).to_bytes(32, "little")], ids=range(4)
)
def test_an_ephemeral_key_that_is_none_is_refused(public):
    ring_, peer = keyring("a"), keyring("b")
    ring_.public(0)
    with pytest.raises(DataError, match="not a usable X25519 key"):
        ring_.secret("b", public)
    assert ring_.secret("b", peer.public(0)) == peer.secret("a", ring_.public(0))


def test_a_keyring_shows_nothing():
    ring_ = keyring("a")
    ring_.public(0)
    ring_.secret("b", keyring("b").public(0))
    assert repr(ring_) == str(ring_) == f"{ring_}" == "Keyring()"


# ── mask keys ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Label:
    """Everything that a mask depends on."""

    secret: bytes
    session: bytes
    round_: int
    low: int
    high: int
    seed_low: bytes
    seed_high: bytes
    receiver: int
    terms: bytes
    common: bytes

    def key(self, *, swapped=False):
        order = -1 if swapped else 1
        return mask_key(
            PairSecret(self.secret),
            RoundId(session=self.session, round_=self.round_),
            nodes=(self.low, self.high)[::order],
            seeds=(self.seed_low, self.seed_high)[::order],
            receiver=self.receiver,
            terms=self.terms,
            common=self.common,
        )


fields = {
    "secret": st.binary(min_size=64, max_size=64),
    "session": sixteen,
    "round_": u32,
    "low": st.integers(0, 2**31 - 1),
    "high": st.integers(2**31, 2**32 - 1),
    "seed_low": sixteen,
    "seed_high": sixteen,
    "receiver": u32,
    "terms": st.binary(min_size=2, max_size=9),
    "common": st.binary(min_size=32, max_size=32),
}
labels = st.builds(Label, **fields)


@given(labels)
def test_a_mask_key_is_the_same_from_both_sides(label):
    assert label.key() == label.key(swapped=True)
    assert len(label.key().key) == 32
    assert len(label.key().check) == 4


@pytest.mark.parametrize("field", fields)
@given(labels, st.data())
def test_any_difference_gives_an_unrelated_key(field, label, data):
    other = data.draw(fields[field].filter(lambda value: value != getattr(label, field)))
    changed = replace(label, **{field: other})
    assert label.key().key != changed.key().key
    difference = int.from_bytes(label.key().key) ^ int.from_bytes(changed.key().key)
    # 256 fair coins: outside 68..188 with p < 1e-13.
    assert 68 <= difference.bit_count() <= 188


@given(labels)
def test_swapping_the_seeds_alone_changes_the_key(label):
    other = replace(label, seed_low=label.seed_high, seed_high=label.seed_low)
    assert (label.key().key == other.key().key) == (label.seed_low == label.seed_high)


@pytest.mark.parametrize("field", ["terms", "common"])
def test_checks_differ_with_what_the_two_were_told(field):
    """The receiver compares checks to see that both made the same mask."""
    label = Label(bytes(64), SESSION, 3, 1, 2, bytes(16), bytes(15) + b"1", 0, bytes(2), bytes(32))
    told = (getattr(label, field)[:-1] + bytes([k]) for k in range(100))
    assert len({replace(label, **{field: value}).key().check for value in told}) == 100


def test_secrets_do_not_show():
    own = key_pair("shown")
    secret = own.agree(key_pair("peer").public, SESSION)
    key = Label(secret.key, SESSION, 0, 1, 2, bytes(16), bytes(16), 3, b"t", b"c").key()
    private, token = own._private.private_bytes_raw(), Token(b"a partner's seed", bytes(32))
    for shown in (
        own,
        secret,
        key,
        Masker(key, Partner.of(token, bits.ones(5), bits.ones(5)), negate=False),
    ):
        for text in (repr(shown), str(shown), f"{shown}"):
            for hidden in (private, secret.key, key.key, token.seed):
                assert hidden.hex() not in text
                assert repr(hidden)[2:-1] not in text
    assert own.public.hex()[:16] in repr(own), "the public half may be seen"


# ── keystreams ──────────────────────────────────────────────────────────────────────────────────────────


@given(sixteen, st.lists(st.integers(0, 40), max_size=8))
def test_a_stream_does_not_depend_on_how_it_is_read(key, pieces):
    stream, whole = Keystream(key), Keystream(key).words(sum(pieces))
    parts = [stream.words(piece) for piece in pieces]
    assert np.array_equal(np.concatenate([np.empty(0, np.uint32), *parts]), whole)


def test_a_stream_is_longer_than_its_buffer_of_zeros():
    """Over a mebibyte at once, which takes more than one call of the cipher."""
    whole, stream = Keystream(bytes(32)).words(600_000), Keystream(bytes(32))
    parts = np.concatenate([stream.words(250_000), stream.words(350_000)])
    assert np.array_equal(whole, parts)
    assert np.count_nonzero(whole) > 599_000, "a stream of zeros would be no stream"


@settings(max_examples=20)
@given(sixteen)
def test_words_of_64_bits_are_pairs_of_32(key):
    wide = np.empty(8, dtype=np.uint64)
    Keystream(key).fill(wide)
    assert np.array_equal(wide.astype("<u8").view("<u4"), Keystream(key).words(16))


# ── subsampling from a seed ─────────────────────────────────────────────────────────────────────────────


@settings(deadline=None)
@given(sixteen, st.integers(0, 5000), st.floats(0, 1))
def test_a_seed_gives_a_bitmap_always_the_same(seed, size, alpha):
    words = expand_seed(seed, size, alpha)
    assert bits.is_bitmap(words, size)
    assert np.array_equal(words, expand_seed(seed, size, alpha))


@pytest.mark.parametrize("alpha", [0.001, 0.1, 0.3422, 0.5, 0.9, 0.9999])
def test_each_position_has_the_same_chance(alpha):
    """Counts over the whole, over each 64th position and over blocks; 5.5 standard errors are p < 4e-8."""
    size = 640_000
    flags = bits.to_bools(expand_seed(SEEDS.bytes(16, "density", str(alpha)), size, alpha), size)
    for counts in (flags.sum(), flags.reshape(-1, 64).sum(axis=0), flags.reshape(40, -1).sum(axis=1)):
        trials = size // np.size(counts)
        error = math.sqrt(trials * alpha * (1 - alpha))
        assert np.abs(counts - trials * alpha).max() < max(5.5 * error, 8)


def test_sets_of_two_seeds_are_independent():
    size, alpha = 640_000, 0.3
    first, second = (expand_seed(SEEDS.bytes(16, "pair", k), size, alpha) for k in range(2))
    expected = size * alpha * alpha
    assert abs(bits.count(first & second) - expected) < 5.5 * math.sqrt(expected * (1 - alpha * alpha))


@pytest.mark.parametrize(("alpha", "count"), [(0.0, 0), (1e-12, 0), (1.0, 777), (1 - 1e-12, 777)])
def test_the_ends_of_alpha(alpha, count):
    assert bits.count(expand_seed(bytes(16), 777, alpha)) == count


# ── masks cancel ────────────────────────────────────────────────────────────────────────────────────────


def group_keys(partners, receiver):
    """The keys of all pairs in a receiver's group, derived by each side for itself."""
    members = {i for i, _ in partners}
    pairs = {i: key_pair(i) for i in members}
    seeds = {i: SEEDS.bytes(16, "seed", i) for i in members}
    round_id = RoundId(session=SESSION, round_=5)
    return {
        (i, j): mask_key(
            pairs[i].agree(pairs[j].public, SESSION),
            round_id,
            nodes=(i, j),
            seeds=(seeds[i], seeds[j]),
            receiver=receiver,
            terms=b"as all were told",
            common=partner.digest,
        )
        for (i, j), partner in partners.items()
    }


def partners_of(sets):
    """What each member of a group knows of each other one."""
    token = Token(bytes(16), bytes(32))
    return {(i, j): Partner.of(token, sets[j], sets[i]) for i, j in permutations(sets, 2)}


def masked_words(vector, sets, i, keys, grid, s):
    """One sender's words for a receiver, and where they belong."""
    partners = {j: partner for (k, j), partner in partners_of(sets).items() if k == i}
    kept = kept_positions(sets[i], [partner.words for partner in partners.values()], s)
    maskers = [Masker(keys[i, j], partner, wants_negation(i, j)) for j, partner in partners.items()]
    count = bits.count(kept)
    out = np.empty(packing.packed_size(count, grid.bits), dtype=np.uint8)
    write_masked(out, vector, sets[i], kept, maskers, grid, dither=0)
    return kept, packing.unpack(out, grid.bits, count)


def unit_grid(width, size):
    """On which a whole number is itself."""
    return ring.Grid(width, np.array([size]), np.array([1.0]))


def masked_sum(members, size, density, width, s):
    """The sum of a full group's words at each position, and the sum of the values that went in."""
    chance = np.random.default_rng(len(members) * size + width + s)
    steps = {i: chance.integers(-9, 10, size) for i in members}  # whole steps, so that rounding plays no part
    flags = {i: chance.random(size) < density for i in members}
    sets = {i: bits.from_bools(flags[i]) for i in members}
    keys, grid = group_keys(partners_of(sets), 99), unit_grid(width, size)
    total, counts = np.empty(size, dtype=np.uint32), np.zeros(size, dtype=np.uint8)
    for k, i in enumerate(members):
        kept, words = masked_words(steps[i].astype(np.float32), sets, i, keys, grid, s)
        ring.accumulate(total, kept, words, 32, k == 0)
        counts += bits.to_bools(kept, size)
    chosen = np.array([flags[i] for i in members])
    enough = chosen.sum(axis=0) > s
    expected = np.where(enough, (np.array([steps[i] for i in members]) * chosen).sum(axis=0), 0)
    assert np.array_equal(counts, np.where(enough, chosen.sum(axis=0), 0))
    return total % (1 << width) if width < 32 else total, expected % (1 << width)


@pytest.mark.parametrize("size_of_group", range(2, 13))
def test_masks_cancel_in_every_group(size_of_group):
    chance = np.random.default_rng(size_of_group)
    members = sorted(chance.permutation(50)[:size_of_group].tolist())
    for width in ring.RING_BITS:
        for density in (0.4, 1.0):
            total, expected = masked_sum(members, 500, density, width, s=1)
            assert np.array_equal(total, expected)


@pytest.mark.parametrize("s", [1, 2, 3, 4])
def test_masks_cancel_for_every_masking_requirement(s):
    total, expected = masked_sum([0, 3, 4, 8, 11, 12], 2000, 0.5, 32, s)
    assert np.array_equal(total, expected)
    assert expected.any()


def test_masks_cancel_across_blocks():
    """A model larger than the block in which masks are summed; the stream goes on where it stopped."""
    total, expected = masked_sum([1, 2, 3], 140_000, 0.7, 32, s=1)
    assert np.array_equal(total, expected)


def test_a_mask_is_antisymmetric():
    """Two senders with models of zero: one sends the negative of the other, and neither sends zeros."""
    sets = {i: bits.ones(300) for i in (4, 7)}
    keys = group_keys(partners_of(sets), 1)
    grid, zeros = unit_grid(32, 300), np.zeros(300, dtype=np.float32)
    (_, low), (_, high) = (masked_words(zeros, sets, i, keys, grid, 1) for i in (4, 7))
    assert np.array_equal(low, -high)
    assert np.array_equal(low, Keystream(keys[4, 7].key).words(300)), "the lower id adds"
    assert isinstance(keys[4, 7], MaskKey)


# ── masks of a cell ─────────────────────────────────────────────────────────────────────────────────────


def cell_words(members, flags, steps, width):
    """Member → its words: every member sends the same positions, with a mask of every other one."""
    size, positions = len(flags), IndexSet.of_words(bits.from_bools(flags), len(flags))
    keys = {
        frozenset(pair): MaskKey(SEEDS.bytes(32, "cell", *sorted(pair)), b"")
        for pair in combinations(members, 2)
    }
    words = {}
    for i in members:
        masks = [(Keystream(keys[frozenset((i, j))].key), wants_negation(i, j)) for j in members if j != i]
        part = Part(steps[i].astype(np.float32), positions, unit_grid(width, size))
        words[i] = masked_rows([part], masks)[0].copy()
    return words, keys


@pytest.mark.parametrize("skip", [0, 8, 16, 24, 8 * 4097])
def test_a_keystream_begins_where_it_is_told_to(skip):
    whole, part = np.empty(5000, np.uint64), np.empty(300, np.uint64)
    stream = Keystream(bytes(range(32)))
    stream.fill(whole)
    for start in (skip, 0, skip):
        stream.seek(start)
        stream.fill(part)
        assert np.array_equal(part, whole[start // 8 : start // 8 + 300])


@pytest.mark.parametrize("share", [1.0, 0.6, 0.01])
@pytest.mark.parametrize("cuts", [1, 3, 4, 200])
def test_slices_are_masked_as_the_whole_is(share, cuts):
    """Each slice by itself, in any order, gives the words of the row as a whole: no word of a keystream is used twice."""
    rng, size = SEEDS.generator("slices", cuts, int(100 * share)), 64 * 150 + 9
    positions = IndexSet.of_words(bits.from_bools(rng.random(size) < share), size)
    part = Part(rng.standard_normal(size).astype(np.float32), positions, unit_grid(16, size))
    masks = [(Keystream(SEEDS.bytes(32, "slices", k)), k % 2 == 1) for k in range(3)]
    whole = masked_rows([part], masks)[0]
    cut = spans(len(positions.words), cuts)
    earlier = [bits.count(positions.words[: span.first]) for span in cut]
    for number in rng.permutation(cuts):
        span, before = cut[number], earlier[number]
        out = np.empty(bits.count(positions.words[span.first : span.last]), np.uint16)
        masked_rows([part._replace(span=span, before=before, out=out)], masks)
        assert np.array_equal(out, whole[before : before + len(out)])
        with pytest.raises(ValueError, match="room"):
            masked_rows(
                [part._replace(span=span, before=before, out=np.empty(len(out) + 1, np.uint16))], masks
            )


CELL_SIZES = [1, 64, 500, 64 * BLOCK_WORDS, 2 * 64 * BLOCK_WORDS + 77]


@pytest.mark.parametrize("width", ring.RING_BITS)
@pytest.mark.parametrize("size", CELL_SIZES)
@pytest.mark.parametrize("members", [(3, 9), (0, 4, 5), (1, 2, 7, 8, 11)], ids=len)
def test_masks_of_a_cell_cancel(members, size, width):
    chance = np.random.default_rng([len(members), size, width])
    mask = np.uint32((1 << width) - 1)
    for density in (0.0, 0.3, 1.0):
        flags = chance.random(size) < density
        steps = {i: chance.integers(-9, 10, size) for i in members}
        words, _ = cell_words(members, flags, steps, width)
        total = sum(words.values(), np.zeros(int(flags.sum()), dtype=np.uint32))
        expected = sum(steps.values())[flags] % (1 << width)
        off = (total - expected.astype(np.uint32)) & mask  # every word was rounded, by half a step at most
        assert np.isin(
            off, np.arange(-(len(members) // 2), len(members) // 2 + 1).astype(np.uint32) & mask
        ).all()
        assert len(members) > 2 or not off.any(), "two remainders of whole steps make up for each other"


def test_word_k_of_a_stream_masks_the_kth_value():
    """Across blocks, with values of zero; the lower id adds and the higher one subtracts."""
    size = 64 * BLOCK_WORDS + 300
    flags = np.random.default_rng(1).random(size) < 0.4
    zeros = dict.fromkeys((2, 5, 6), np.zeros(size))
    words, keys = cell_words((2, 5, 6), flags, zeros, 32)
    stream = {pair: np.empty(int(flags.sum()), dtype=np.uint64) for pair in keys}
    for pair, key in keys.items():
        Keystream(key.key).fill(stream[pair])
    low, high, edge = (stream[frozenset(pair)] for pair in ((2, 5), (5, 6), (2, 6)))
    for node, masks in ((2, low + edge), (5, high - low), (6, -high - edge)):
        upper, lower = (masks >> np.uint64(32)).astype(np.uint32), masks & np.uint64(0xFFFFFFFF)
        assert np.array_equal(words[node], upper + (lower >= 2**31))


def test_a_member_alone_sends_nothing():
    with pytest.raises(PrivacyError, match="nothing leaves without a mask"):
        masked_rows([Part(np.ones(1, dtype=np.float32), IndexSet.full(1), unit_grid(32, 1))], [])
