"""Every vector through both directions, published vectors first.

The chain of trust: published vectors check the plain primitives in tools/vectors/generate.py and, where ours
can be driven that way, our own; the generator checks each value against a library; these tests hold the
package to what the generator wrote.
"""

import hashlib
import importlib.util
import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from cesar.base.errors import EncodingError
from cesar.cell_node import CellNode
from cesar.crypto.keys import (
    KeyPair,
    Keyring,
    PairSecret,
    RoundId,
    digest_positions,
    facts_of,
    hkdf_expand_block,
    hkdf_extract,
    mask_key,
)
from cesar.crypto.keystream import Keystream
from cesar.crypto.subsample import expand_seed
from cesar.graph.neighbourhood import Neighbourhood
from cesar.indices import Code, IndexSet, decode, encode, patterns
from cesar.kernels import bits, packing, ring
from cesar.methods.cells import BlockTopK, Cells
from cesar.methods.sparsify import FullSharing, RandomSubsampling
from cesar.protocol import Deadlines, wire
from cesar.protocol.masked import Group
from cesar.protocol.sender import Partner
from cesar.sim.wires import Wires

HERE = Path(__file__).parents[1] / "vectors"
GENERATOR = HERE.parents[1] / "tools" / "vectors" / "generate.py"
FILES = ("keystream", "kdf", "packing", "codecs", "subsample", "wire", "cells")


def vectors(name, group):
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))[group]


def replayed(name, group):
    cases = vectors(name, group)
    assert cases, "a group without cases tests nothing"
    return pytest.mark.parametrize("case", cases, ids=range(len(cases)))


def h(text):
    return bytes.fromhex(text)


def round_id_of(case):
    return RoundId(session=h(case["session"]), round_=case["round"])


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("vector_generator", GENERATOR)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ── the files ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory):
    directory = tmp_path_factory.mktemp("vectors")
    # The last word of the program tells whether the package, or numba, was loaded after all.
    program = (
        "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__');"
        "print(sorted({'cesar', 'numba'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, GENERATOR, directory], capture_output=True, text=True, check=True
    )
    return directory, done.stdout.splitlines()


def test_the_generator_knows_nothing_of_the_package(regenerated):
    _, output = regenerated
    assert output[-1] == "[]"
    assert len(output) == len(FILES) + 1


@pytest.mark.parametrize("name", FILES)
def test_the_committed_file_is_what_the_generator_writes(regenerated, name):
    directory, _ = regenerated
    assert (directory / f"{name}.json").read_bytes() == (HERE / f"{name}.json").read_bytes()


def test_every_committed_file_is_replayed():
    assert {path.stem for path in HERE.glob("*.json")} == set(FILES)


# ── AES in counter mode ─────────────────────────────────────────────────────────────────────────────────


def test_keystream_starts_with_published_blocks():
    """McGrew and Viega, The Galois/Counter Mode of Operation, test cases 13 and 14: with the zero key, H is
    block 0 of our stream, the tag of the empty message block 1, and the encrypted zeros block 2.
    """
    published = (
        "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738bcea7403d4d606b6e074ec5d3baf39d18"
    )
    assert Keystream(bytes(32)).words(12).astype("<u4").tobytes().hex() == published


@pytest.mark.parametrize(
    ("key", "block"),
    [  # NIST AESAVS, variable key: the zero block under 256 and 128 bits of key is block 0 of our stream
        ("80" + 31 * "00", "e35a6dcb19b201a01ebcfa8aa22b5759"),
        (32 * "ff", "4bf85f1b5d54adbc307b0a048389adcb"),
        ("80" + 15 * "00", "0edd33d3c621e546455bd8ba1418bec8"),
        (16 * "ff", "a1f6258c877d5fcd8964484538bfc92c"),
    ],
)
def test_keystream_starts_with_known_answers(key, block):
    assert Keystream(h(key)).words(4).astype("<u4").tobytes().hex() == block


def test_plain_cipher_of_the_generator_gives_the_published_stream(generator):
    """NIST SP 800-38A, F.5.5, CTR-AES256. Its counter does not start at zero, so our Keystream cannot be
    driven through it; the plain cipher that our vectors were compared with can.
    """
    key = h("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = 0xF0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF
    plain = h(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = h(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    stream = generator.plain_counter_stream(key, len(plain), counter)
    assert bytes(a ^ b for a, b in zip(plain, stream, strict=True)) == cipher


@replayed("keystream", "cases")
def test_keystream(case):
    assert Keystream(h(case["key"])).words(case["words"]).astype("<u4").tobytes().hex() == case["stream"]


@replayed("keystream", "cases")
def test_keystream_in_pieces(case):
    stream, parts, left = Keystream(h(case["key"])), [], case["words"]
    for piece in (1, 2, 61, 191):
        parts.append(stream.words(min(piece, left)))
        left -= len(parts[-1])
    assert left == 0
    assert np.concatenate(parts).astype("<u4").tobytes().hex() == case["stream"]


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────

ALICE = (  # RFC 7748, section 6.1: private, public
    "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
    "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
)
BOB = (
    "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
    "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
)
AGREED = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"


def key_pair(private):
    return KeyPair.generate(lambda count: h(private)[:count])


def test_published_agreement():
    alice, bob = key_pair(ALICE[0]), key_pair(BOB[0])
    assert (alice.public.hex(), bob.public.hex()) == (ALICE[1], BOB[1])
    session = bytes(range(16))
    publics = b"".join(sorted((alice.public, bob.public)))
    # What the two agree on never leaves the key pair; the secret derived from it is the published value's.
    expected = hkdf_extract(b"cesar pair" + session, h(AGREED) + publics)
    assert alice.agree(bob.public, session).key == expected
    assert bob.agree(alice.public, session).key == expected


def test_published_agreement_in_the_generator(generator):
    assert generator.plain_x25519(h(ALICE[0]), h(BOB[1])).hex() == AGREED


@pytest.mark.parametrize("label", [b"", b"cesar", bytes(300)], ids=len)
@pytest.mark.parametrize("key_bytes", [16, 64, 129])
def test_expand_is_that_of_the_library(key_bytes, label):
    key = bytes(range(key_bytes))
    assert hkdf_expand_block(key, label) == HKDFExpand(hashes.SHA512(), 64, label).derive(key)


@pytest.mark.parametrize("salt", [b"", b"cesar pair", bytes(200)], ids=len)
def test_extract_and_expand_are_those_of_the_library(salt):
    secret, label = bytes(range(96)), b"any label"
    library = HKDF(hashes.SHA512(), 64, salt=salt, info=label).derive(secret)
    assert hkdf_expand_block(hkdf_extract(salt, secret), label) == library


@replayed("kdf", "extract")
def test_extract(case):
    assert hkdf_extract(h(case["salt"]), h(case["secret"])).hex() == case["key"]


@replayed("kdf", "expand")
def test_expand(case):
    assert hkdf_expand_block(h(case["key"]), h(case["label"])).hex() == case["block"]


@replayed("kdf", "ephemeral")
def test_pair_secret_from_both_sides(case):
    static = [key_pair(private) for private in case["privates"]]
    rings = [
        Keyring(lambda _, a=a, b=b: a.agree(b.public, h(case["session"])), lambda _, own=own: h(own))
        for a, b, own in zip(static, reversed(static), case["ephemerals"], strict=True)
    ]
    publics = [ring_.public(0) for ring_ in rings]
    assert publics == [key_pair(private).public for private in case["ephemerals"]]
    for own, public in zip(rings, reversed(publics), strict=True):
        assert own.secret(7, public).key.hex() == case["secret"]


@replayed("kdf", "pair")
def test_static_secret_from_both_sides(case):
    pairs = [key_pair(private) for private in case["privates"]]
    assert [pair.public.hex() for pair in pairs] == case["publics"]
    for own, peer in (pairs, reversed(pairs)):
        assert own.agree(peer.public, h(case["session"])).key.hex() == case["secret"]


@replayed("kdf", "mask")
@pytest.mark.parametrize("order", [1, -1], ids=["as given", "swapped"])
def test_mask_key(case, order):
    made = mask_key(
        PairSecret(h(case["secret"])),
        round_id_of(case),
        nodes=tuple(case["nodes"][::order]),
        seeds=tuple(h(seed) for seed in case["seeds"][::order]),
        receiver=case["receiver"],
        terms=h(case["terms"]),
        common=h(case["common"]),
    )
    assert (made.key.hex(), made.check.hex()) == (case["key"], case["check"])


@replayed("kdf", "mask")
def test_terms_of_a_mask(case):
    group = Group(tuple(case["exponents"]), tuple(case["group"]))
    assert group.terms(tuple(case["view"])).hex() == case["terms"]


@replayed("kdf", "digest")
def test_digest_of_what_two_have_in_common(case):
    bitmaps = (np.frombuffer(h(bitmap), dtype=np.uint8) for bitmap in case["bitmaps"])
    own, theirs = (bits.from_bytes(bitmap, case["size"]) for bitmap in bitmaps)
    assert digest_positions(own & theirs).hex() == case["digest"]
    token = wire.Token(bytes(16), bytes(32))
    assert Partner.of(token, theirs, own).digest.hex() == case["digest"]
    assert Partner.of(token, own, theirs).digest.hex() == case["digest"]


@replayed("kdf", "facts")
def test_facts_of_a_share(case):
    partners = {j: (h(token), h(digest)) for j, token, digest in case["partners"]}
    assert facts_of(h(case["token"]), h(case["terms"]), partners).hex() == case["facts"]


@replayed("kdf", "relay")
def test_relay(case):
    """The two ends and each common neighbour compute the same."""
    low, high = case["nodes"]
    candidates = tuple(case["candidates"])
    hoods = [Neighbourhood(node, dict.fromkeys(candidates, (low, high))) for node in (low, high)]
    hoods += [Neighbourhood(node, dict.fromkeys((low, high), candidates)) for node in candidates]
    for hood in hoods:
        assert hood.relay(low, high, round_id_of(case)) == case["relay"]
        assert hood.relay(high, low, round_id_of(case)) == case["relay"]


# ── the ring ────────────────────────────────────────────────────────────────────────────────────────────


@replayed("packing", "packing")
def test_packing(case):
    words = np.array(case["words"], dtype=np.uint32)
    out = np.empty(packing.packed_size(len(words), case["bits"]), dtype=np.uint8)
    packing.pack(words, case["bits"], out)
    assert out.tobytes().hex() == case["packed"]


@replayed("packing", "packing")
def test_unpacking(case):
    data = np.frombuffer(h(case["packed"]), dtype=np.uint8)
    low = [word % (1 << case["bits"]) for word in case["words"]]
    assert packing.unpack(data, case["bits"], len(low)).tolist() == low


def floats_of(values):
    return np.frombuffer(b"".join(map(h, values)), dtype="<f4").astype(np.float32)


def sealed(values, grid):
    """A model as words that carry no mask."""
    kept, out = bits.ones(len(values)), np.empty(len(values), dtype=np.uint32)
    nothing = np.zeros(64 * len(kept), dtype=np.uint32)
    ring.seal(nothing, values, kept, 0, grid.edges, grid.scales, bits.ZERO, out)
    return out


@replayed("packing", "nearest")
def test_fixed_point(case):
    values = floats_of(case["values"])
    grid = ring.binary_grid(32, np.array([len(values)]), [case["exponent"]], case["contributors"])
    assert sealed(values, grid).tolist() == case["words"]
    back = sealed(values, grid).view(np.int32) / grid.scales
    assert np.abs(back - values.astype(np.float64)).max() <= 0.5 / grid.scales


@replayed("packing", "tensors")
def test_fixed_point_of_several_tensors(case):
    values, edges = floats_of(case["values"]), np.cumsum(case["sizes"])
    assert list(ring.exponents_of(values, edges)) == case["own"]
    assert ring.fits(case["own"], case["exponents"])
    grid = ring.binary_grid(32, edges, case["exponents"], case["contributors"])
    assert sealed(values, grid).tolist() == case["words"]


# ── index sets ──────────────────────────────────────────────────────────────────────────────────────────


def set_of(case):
    words = bits.from_bytes(np.frombuffer(h(case["bitmap"]), dtype=np.uint8), case["size"])
    indices = IndexSet.of_words(words, case["size"])
    assert indices.count == case["count"]
    return indices


@replayed("codecs", "cases")
def test_encoding(case):
    indices = set_of(case)
    for name, expected in case["encodings"].items():
        assert encode(indices, Code[name]).hex() == expected, name


@replayed("codecs", "cases")
def test_decoding(case):
    for name, data in case["encodings"].items():
        assert decode(h(data), case["size"]) == set_of(case), name


@replayed("codecs", "cases")
def test_a_byte_more_or_less_is_refused(case):
    for data in map(h, case["encodings"].values()):
        for spoiled in (data[:-1], data + b"\x00", data + b"\x01"):
            with pytest.raises(EncodingError):
                decode(spoiled, case["size"])


def test_every_code_is_in_the_vectors():
    named = {name for case in vectors("codecs", "cases") for name in case["encodings"]}
    assert named == {code.name for code in Code} - {"SEED"}


def test_pattern_lengths(generator):
    lengths = patterns.pattern_lengths()
    for density_class in range(1, 32):
        codes = generator.pattern_table(density_class)
        assert lengths[density_class].tolist() == [len(codes[symbol]) for symbol in range(256)]


@replayed("subsample", "cases")
def test_subsample(case):
    drawn = expand_seed(h(case["seed"]), case["size"], case["alpha"])
    bitmap = bits.to_bytes(drawn, case["size"]).tobytes()
    assert bits.count(drawn) == case["count"]
    if "bitmap" in case:
        assert bitmap.hex() == case["bitmap"]
    else:
        assert hashlib.sha256(bitmap).hexdigest() == case["sha256"]


@replayed("subsample", "cases")
def test_a_seed_travels_as_itself(case):
    data = bytes([Code.SEED]) + h(case["seed"])
    indices = decode(data, case["size"], case["alpha"])
    assert indices.count == case["count"]
    assert encode(indices) == data


# ── frames ──────────────────────────────────────────────────────────────────────────────────────────────


def header_of(case):
    return wire.Header(
        kind=wire.Kind[case["kind"].upper()], round_id=round_id_of(case), sender=case["sender"]
    )


def body_of(case):
    header, body = wire.read_header(h(case["frame"]))
    assert header == header_of(case)
    return body


@replayed("wire", "headers")
def test_header(case):
    assert header_of(case).to_bytes().hex() == case["bytes"]
    header, body = wire.read_header(h(case["bytes"]))
    assert header == header_of(case)
    assert len(body) == 0


def token_of(text):
    return wire.Token(h(text)[:16], h(text)[16:])


@replayed("wire", "announce")
def test_announce(case):
    message = wire.Announce(
        token=token_of(case["token"]), exponents=tuple(case["exponents"]), indices=h(case["indices"])
    )
    assert message.encode(header_of(case)).payload.hex() == case["frame"]
    assert wire.Announce.decode(body_of(case), len(case["exponents"])) == message


@replayed("wire", "relay")
def test_relay_frame(case):
    items = (wire.RelayItem(token=token_of(i["token"]), indices=h(i["indices"])) for i in case["items"])
    message = wire.Relay(exponents=tuple(case["exponents"]), group=tuple(case["group"]), items=tuple(items))
    assert message.encode(header_of(case), case["view"]).payload.hex() == case["frame"]
    assert wire.Relay.decode(body_of(case), case["view"], len(case["exponents"])) == message


@replayed("wire", "share")
def test_share(case):
    words = np.array(case["words"], dtype=np.uint32)
    indices = None if case["indices"] is None else h(case["indices"])
    out, frame = wire.Share.allocate(
        header_of(case),
        case["view"],
        facts=h(case["facts"]),
        checks={partner: h(check) for partner, check in zip(case["partners"], case["checks"], strict=True)},
        indices=indices,
        parameters=len(words),
        values=packing.packed_size(len(words), case["bits"]),
    )
    packing.pack(words, case["bits"], out)
    assert bytes(frame.payload).hex() == case["frame"]
    share = wire.Share.decode(body_of(case), case["view"], indices is not None)
    assert share.facts.hex() == case["facts"]
    assert list(share.partners) == case["partners"]
    assert [check.hex() for check in share.checks] == case["checks"]
    assert share.indices == indices
    assert packing.unpack(share.values, case["bits"], len(words)).tolist() == case["words"]


@replayed("wire", "plain_share")
def test_plain_share(case):
    values = np.frombuffer(h(case["values"]), dtype=np.uint8)
    message = wire.PlainShare(indices=h(case["indices"]), values=values)
    assert message.encode(header_of(case)).payload.hex() == case["frame"]
    share = wire.PlainShare.decode(body_of(case))
    assert share.indices == h(case["indices"])
    assert share.values.tobytes() == h(case["values"])


def test_layout_of_the_header():
    """Once by hand, so that the generator and the package cannot share a misreading of the table."""
    data = wire.Header(
        kind=wire.Kind.SHARE, round_id=RoundId(session=b"0123456789abcdef", round_=0x01020304), sender=5
    ).to_bytes()
    assert data == b"CE\x03\x03" + struct.pack("<II", 0x01020304, 5) + b"0123456789abcdef"
    assert len(data) == wire.HEADER_BYTES == 28


# ── cells ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "case", vectors("cells", "rounds"), ids=lambda case: case["kind"] + " samples" * ("samples" in case)
)
def test_every_frame_of_cells(case):
    """From the private keys on: all frames of two rounds, all common models and what is unsent."""
    sparsifiers = {
        "full": FullSharing(),
        "random": RandomSubsampling(case["alpha"]),
        "blocks": BlockTopK(case["alpha"], case["block"] or 64),
    }
    samples = case.get("samples")
    method = Cells(size=3, sparsifier=sparsifiers[case["kind"]])
    if samples:
        method = replace(method, weight="samples", most_samples=case["most_samples"])
    plan, session, size = method.plan_of(case["cells"]), h(case["session"]), sum(case["tensors"])
    pairs = [KeyPair.generate(lambda _, private=private: h(private)) for private in case["privates"]]

    def ring_of(i):
        return Keyring(lambda j: pairs[i].agree(pairs[j].public, session), lambda _: h(case["ephemerals"][i]))

    nodes = {
        i: CellNode(
            i,
            method,
            size,
            session=session,
            keys=ring_of(i),
            tensors=case["tensors"],
            samples=samples[i] if samples else None,
        )
        for i in range(6)
    }
    start = [np.frombuffer(h(text), "<f4") for text in case["start"]]
    for number, played in enumerate(case["rounds"]):
        seen = []

        def arrives(sender, recipient, frame, seen=seen):
            seen.append([sender, recipient, bytes(frame.payload).hex()])
            return True

        for i, node in nodes.items():
            node.begin_round(
                number,
                plan.place(i),
                np.frombuffer(h(played["models"][i]), "<f4"),
                reference=start[plan.cell_of(i)],
                entropy=lambda _, i=i: h(played["seeds"][i]),
                deadlines=Deadlines(announce=1, relay=2, share=3),
            )
        Wires(nodes, arrives=arrives).run()
        assert sorted(seen) == sorted(played["frames"])
        for i, node in nodes.items():
            node.close()
            assert node.state.common.tobytes().hex() == played["common"][plan.cell_of(i)]
            assert node.state.unsent.tobytes().hex() == played["unsent"][i]
