"""Write tests/vectors/*.json: what the wire format says, computed without the package.

Nothing here imports `cesar` or numba. Each value is made the obvious way (strings of bits, big integers, one
position at a time) and, where there is a library that knows it too, made a second time with that:

    AES                 `cryptography`, and a plain AES below
    X25519              `cryptography`, and the ladder of RFC 7748 below
    HKDF-SHA512         `hmac`, and `cryptography`
    entropy code        integers below, and `constriction`
    the other codes     an encoder and a decoder that know nothing of each other
    masked sums         with the masks, and without

A disagreement stops the script. What it writes depends on nothing but this file.

    python tools/vectors/generate.py [directory]
"""

import hashlib
import hmac
import json
import math
import struct
import sys
from collections import deque
from fractions import Fraction
from pathlib import Path

import constriction
import numpy as np  # only to hand arrays to constriction
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

OUTPUT = Path(__file__).parents[2] / "tests" / "vectors"
VERSION = 2


def agreed(first, second, what):
    """A value that two ways of computing it have in common."""
    if first != second:
        raise SystemExit(f"two computations of {what} disagree: {first!r} and {second!r}")
    return first


def draw(name, count):
    """Bytes that only the name decides."""
    return hashlib.shake_256(b"cesar vectors " + name.encode()).digest(count)


def numbers(name, count, bits=32):
    """Integers below 2^bits that only the name decides."""
    stream = draw(name, 8 * count)
    return [int.from_bytes(stream[8 * k : 8 * k + 8], "little") % (1 << bits) for k in range(count)]


def u32(*values):
    return b"".join(value.to_bytes(4, "little") for value in values)


def exponent_bytes(exponents):
    return b"".join((exponent + 127).to_bytes(1, "little") for exponent in exponents)


# ── bits ────────────────────────────────────────────────────────────────────────────────────────────────


def bytes_of_bits(text):
    """A string of 0 and 1 as bytes: the first bit is the lowest of the first byte."""
    return b"".join(int(text[k : k + 8][::-1], 2).to_bytes(1, "little") for k in range(0, len(text), 8))


def bits_of_bytes(data):
    return "".join(f"{byte:08b}"[::-1] for byte in data)


def bitmap_of(members, size):
    chosen = set(members)
    return bytes_of_bits("".join("1" if p in chosen else "0" for p in range(size)))


def members_bytes(members, view):
    return bytes_of_bits("".join("1" if node in members else "0" for node in view))


# ── AES in counter mode ─────────────────────────────────────────────────────────────────────────────────


def gf_times(a, b):
    """The product in AES's field, modulo x^8 + x^4 + x^3 + x + 1."""
    product = 0
    while b:
        product ^= a * (b & 1)
        a = (a << 1) ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


def make_sbox():
    def rotated(byte, by):
        return (byte << by | byte >> (8 - by)) & 255

    def substitute(byte):
        inverse = next((c for c in range(256) if gf_times(byte, c) == 1), 0)
        return (
            inverse
            ^ 0x63
            ^ rotated(inverse, 1)
            ^ rotated(inverse, 2)
            ^ rotated(inverse, 3)
            ^ rotated(inverse, 4)
        )

    return bytes(map(substitute, range(256)))


SBOX = make_sbox()
MIX = [[gf_times(factor, byte) for byte in range(256)] for factor in (2, 3)]


def aes_round_keys(key):
    """FIPS 197, section 5.2, for keys of 16 or 32 bytes."""
    width = len(key) // 4
    words = [key[4 * k : 4 * k + 4] for k in range(width)]
    constant = 1
    for k in range(width, 4 * (width + 7)):
        word = words[-1]
        if k % width == 0:
            word = bytes(SBOX[b] for b in word[1:] + word[:1])
            word = bytes([word[0] ^ constant]) + word[1:]
            constant = gf_times(constant, 2)
        elif width > 6 and k % width == 4:
            word = bytes(SBOX[b] for b in word)
        words.append(bytes(a ^ b for a, b in zip(words[k - width], word, strict=True)))
    return [b"".join(words[k : k + 4]) for k in range(0, len(words), 4)]


def aes_block(round_keys, block):
    """FIPS 197, section 5.1; byte 4·c + r of a block is row r of column c."""

    def add(state, key):
        return bytes(a ^ b for a, b in zip(state, key, strict=True))

    def mix(column):
        double, triple = MIX
        return bytes(
            double[column[r]] ^ triple[column[(r + 1) % 4]] ^ column[(r + 2) % 4] ^ column[(r + 3) % 4]
            for r in range(4)
        )

    state = add(block, round_keys[0])
    for number, key in enumerate(round_keys[1:], start=1):
        state = bytes(SBOX[b] for b in state)
        state = bytes(state[4 * ((c + r) % 4) + r] for c in range(4) for r in range(4))
        if number < len(round_keys) - 1:
            state = b"".join(mix(state[c : c + 4]) for c in range(0, 16, 4))
        state = add(state, key)
    return state


def plain_counter_stream(key, count, counter=0):
    round_keys = aes_round_keys(key)
    blocks = (aes_block(round_keys, (counter + k).to_bytes(16, "big")) for k in range(-(-count // 16)))
    return b"".join(blocks)[:count]


def keystream(key, count):
    """AES in counter mode from a counter of zero."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(count))
    checked = min(count, 1024)  # the plain one is slow, and a block tells nothing about the next
    agreed(stream[:checked], plain_counter_stream(key, checked), "an AES keystream")
    return stream


def keystream_vectors():
    cases = []
    for key_bytes in (16, 32):
        for count in (1, 3, 4, 5, 64, 255):
            key = draw(f"keystream {key_bytes} {count}", key_bytes)
            cases.append({"key": key.hex(), "words": count, "stream": keystream(key, 4 * count).hex()})
    return {"cases": cases}


# ── key agreement and derivation ────────────────────────────────────────────────────────────────────────


def plain_x25519(scalar, point):
    """RFC 7748, section 5: the Montgomery ladder."""
    prime, a24 = 2**255 - 19, 121665
    k = int.from_bytes(scalar, "little") & ~7 & ~(1 << 255) | 1 << 254
    u = (int.from_bytes(point, "little") & ~(1 << 255)) % prime
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in range(254, -1, -1):
        swap = k >> bit & 1
        if swap:
            x2, z2, x3, z3 = x3, z3, x2, z2
        total, difference = x2 + z2, x2 - z2
        cross, crossed = (x3 - z3) * total, (x3 + z3) * difference
        x3, z3 = pow(cross + crossed, 2, prime), u * pow(cross - crossed, 2, prime) % prime
        square, other = total * total, difference * difference
        x2, z2 = square * other % prime, (square - other) * (square + a24 * (square - other)) % prime
        if swap:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, -1, prime) % prime).to_bytes(32, "little")


BASE_POINT = (9).to_bytes(32, "little")


def public_key(private):
    library = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return agreed(library, plain_x25519(private, BASE_POINT), "an X25519 public key")


def shared_point(private, public):
    library = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return agreed(library, plain_x25519(private, public), "an X25519 agreement")


def extract(salt, secret):
    """HKDF-Extract, which the library has together with HKDF-Expand only."""
    key = hmac.new(salt, secret, hashlib.sha512).digest()
    whole = HKDF(hashes.SHA512(), 64, salt=salt, info=b"check").derive(secret)
    agreed(expand(key, b"check"), whole, "HKDF-Extract")
    return key


def expand(key, label):
    """The first block of HKDF-Expand; its 64 bytes are all that is ever used."""
    block = hmac.new(key, label + b"\x01", hashlib.sha512).digest()
    return agreed(block, HKDFExpand(hashes.SHA512(), 64, label).derive(key), "HKDF-Expand")


def static_secret(private, peer_public, session):
    shared, publics = shared_point(private, peer_public), sorted((public_key(private), peer_public))
    return extract(b"cesar pair" + session, shared + publics[0] + publics[1])


def pair_secret(static, ephemeral, peer_ephemeral):
    """From the static secret, the own ephemeral private key and the other's ephemeral public key."""
    shared, publics = shared_point(ephemeral, peer_ephemeral), sorted((public_key(ephemeral), peer_ephemeral))
    return extract(b"cesar ephemeral", static + shared + publics[0] + publics[1])


def mask_block(secret, session, round_, ends, receiver, terms, common):
    """`ends` are two (id, seed); the lower id comes first in the label."""
    (low, seed_low), (high, seed_high) = sorted(ends)
    label = b"cesar mask" + bytes([VERSION]) + session + u32(round_, low, high, receiver)
    return expand(secret, label + seed_low + seed_high + common + terms)


def pair_vectors():
    cases = []
    for k in range(4):
        first, second = draw(f"private {k} a", 32), draw(f"private {k} b", 32)
        session = draw(f"pair session {k}", 16)
        publics = public_key(first), public_key(second)
        secret = static_secret(first, publics[1], session)
        agreed(secret, static_secret(second, publics[0], session), "a static secret from both sides")
        cases.append(
            {
                "privates": [first.hex(), second.hex()],
                "publics": [public.hex() for public in publics],
                "session": session.hex(),
                "shared": shared_point(first, publics[1]).hex(),
                "secret": secret.hex(),
            }
        )
    return cases


def ephemeral_vectors():
    """Two keys each: the long-lived one and that of an epoch; the second case has the first one's long-lived keys."""
    cases = []
    for k, number in enumerate(("0", "0", "1")):
        session = draw(f"ephemeral session {number}", 16)
        long, short = (
            [draw(f"{name} {who}", 32) for who in "ab"]
            for name in (f"ephemeral static {number}", f"ephemeral {k}")
        )
        secrets = [
            pair_secret(static_secret(long[a], public_key(long[b]), session), short[a], public_key(short[b]))
            for a, b in ((0, 1), (1, 0))
        ]
        cases.append(
            {
                "privates": [private.hex() for private in long],
                "ephemerals": [private.hex() for private in short],
                "session": session.hex(),
                "secret": agreed(*secrets, "a pair secret from both sides").hex(),
            }
        )
    return cases


def mask_vectors():
    cases = []
    contexts = [  # round, pair, receiver, exponents, group, view
        (0, (0, 1), 2, [0], [0, 1], [0, 1]),
        (7, (5, 3), 4, [-90, 2, -3], [3, 5, 9], [1, 3, 5, 9]),
        (1, (256, 65535), 70000, [128], [256, 65535], [*range(8), 256, 65535]),
        (4294967295, (4294967294, 4294967295), 0, [3, 3], [4294967294, 4294967295], [4294967294, 4294967295]),
    ]
    for k, (round_, nodes, receiver, exponents, group, view) in enumerate(contexts):
        secret, session = draw(f"mask secret {k}", 64), draw(f"mask session {k}", 16)
        ends = [(node, draw(f"mask seed {k} {node}", 16)) for node in nodes]
        terms, common = exponent_bytes(exponents) + members_bytes(group, view), draw(f"common {k}", 32)
        block = mask_block(secret, session, round_, ends, receiver, terms, common)
        cases.append(
            {
                "secret": secret.hex(),
                "session": session.hex(),
                "round": round_,
                "nodes": nodes,
                "seeds": [seed.hex() for _, seed in ends],
                "receiver": receiver,
                "exponents": exponents,
                "group": group,
                "view": view,
                "terms": terms.hex(),
                "common": common.hex(),
                "key": block[:32].hex(),
                "check": block[32:36].hex(),
            }
        )
    return cases


def digest_of(members, size):
    """A hash of the bitmap, padded to whole 64-bit words."""
    bitmap = bitmap_of(members, size)
    return hashlib.sha256(bitmap + bytes(-len(bitmap) % 8)).digest()


def digest_vectors():
    """What two nodes have in common."""
    cases = []
    for size in (1, 8, 64, 65, 300):
        sets = [
            {p for p, n in enumerate(numbers(f"{who} {size}", size)) if n % 2} for who in ("own", "theirs")
        ]
        bitmaps = [bitmap_of(members, size).hex() for members in sets]
        cases.append({"size": size, "bitmaps": bitmaps, "digest": digest_of(sets[0] & sets[1], size).hex()})
    return cases


def facts_of(token, terms, known):
    """What a share rests on: its sender's token, the receiver's terms, and by partner its token and a digest."""
    told = token + terms + b"".join(known[j][0] + known[j][1] for j in sorted(known))
    return hashlib.sha256(b"cesar facts" + told).digest()[:8]


def facts_vectors():
    cases = []
    for partners in ([], [3], [9, 2, 70000]):
        token = draw(f"facts token {len(partners)}", 48)
        known = {j: (draw(f"facts token of {j}", 48), draw(f"facts digest {j}", 32)) for j in partners}
        terms = draw(f"facts terms {len(partners)}", 1 + len(partners))
        cases.append(
            {
                "token": token.hex(),
                "terms": terms.hex(),
                "partners": [[j, known[j][0].hex(), known[j][1].hex()] for j in partners],
                "facts": facts_of(token, terms, known).hex(),
            }
        )
    return cases


def coordinated_vectors():
    cases = []
    for round_, receiver in ((0, 0), (1, 0), (0, 1), (123456, 4294967295)):
        session = draw(f"coordinated {round_} {receiver}", 16)
        seed = expand(session, b"cesar coordinated" + u32(round_, receiver))[:16]
        cases.append({"session": session.hex(), "round": round_, "receiver": receiver, "seed": seed.hex()})
    return cases


def relay_vectors():
    """Which of their common neighbours relays between two nodes."""
    cases = []
    for k, candidates in enumerate(([4], [4, 9], [2, 3, 11], [5, 6, 7, 8, 9, 10, 12], [1, 70000])):
        session, round_ = draw(f"relay {k}", 16), 3 * k
        digest = hashlib.sha256(b"cesar relay" + session + u32(round_, 0, 13)).digest()
        chosen = candidates[int.from_bytes(digest[:8], "little") % len(candidates)]
        cases.append(
            {
                "session": session.hex(),
                "round": round_,
                "nodes": [0, 13],
                "candidates": candidates,
                "relay": chosen,
            }
        )
    return cases


def kdf_vectors():
    extracts, expands = [], []
    for salt_bytes, secret_bytes in ((0, 0), (16, 32), (26, 96), (200, 300)):
        salt, secret = draw(f"salt {salt_bytes}", salt_bytes), draw(f"secret {secret_bytes}", secret_bytes)
        extracts.append({"salt": salt.hex(), "secret": secret.hex(), "key": extract(salt, secret).hex()})
    for key_bytes, label_bytes in ((64, 0), (16, 25), (64, 83), (64, 300)):
        key, label = draw(f"key {key_bytes}", key_bytes), draw(f"label {label_bytes}", label_bytes)
        expands.append({"key": key.hex(), "label": label.hex(), "block": expand(key, label).hex()})
    return {
        "extract": extracts,
        "expand": expands,
        "pair": pair_vectors(),
        "ephemeral": ephemeral_vectors(),
        "mask": mask_vectors(),
        "digest": digest_vectors(),
        "facts": facts_vectors(),
        "coordinated": coordinated_vectors(),
        "relay": relay_vectors(),
    }


# ── the ring ────────────────────────────────────────────────────────────────────────────────────────────


def packed(words, bits):
    """The low `bits` bits of each word without gaps: one long number, little end first."""
    number = sum((word % (1 << bits)) << (bits * k) for k, word in enumerate(words))
    data = number.to_bytes((bits * len(words) + 7) // 8, "little")
    text = "".join(f"{word % (1 << bits):0{bits}b}"[::-1] for word in words)
    return agreed(data, bytes_of_bits(text), "packed words")


def headroom(contributors):
    """One bit, and as many more as it takes to count the contributors."""
    return 1 + next(k for k in range(32) if 1 << k >= contributors)


def fixed_point(value, bits, exponent, contributors):
    """⌊v · 2^f + ½⌋ modulo 2^b, in exact fractions."""
    scaled = Fraction(value) * Fraction(2) ** (bits - 1 - headroom(contributors) - exponent)
    return math.floor(scaled + Fraction(1, 2)) % (1 << bits)


def float32(number):
    return struct.unpack("<f", struct.pack("<f", number))[0]


def packing_vectors():
    cases = []
    for bits in (16, 20, 24, 32):
        for count in (0, 1, 2, 3, 8, 33):
            words = numbers(f"words {bits} {count}", count)
            cases.append({"bits": bits, "words": words, "packed": packed(words, bits).hex()})
        edge = [0, (1 << bits) - 1, 1, 1 << (bits - 1), 0xFFFFFFFF]
        cases.append({"bits": bits, "words": edge, "packed": packed(edge, bits).hex()})
    nearest = []
    for exponent, contributors in ((0, 1), (0, 2), (3, 6), (-5, 64), (-90, 3), (128, 5)):
        units = [word / 2**31 - 1 for word in numbers(f"floats {exponent} {contributors}", 6)]
        halves = [odd * 2.0 ** (headroom(contributors) - 32) for odd in (1, -1, 3, -3)]  # of a step
        values = [float32(unit * 2.0**exponent) for unit in [*units, *halves, 0.0, 0.5, -0.5]]
        if exponent < 128:  # 2^128 itself is above every float32
            values += [2.0**exponent, -(2.0**exponent)]
        nearest.append(
            {
                "exponent": exponent,
                "contributors": contributors,
                "values": [struct.pack("<f", value).hex() for value in values],
                "words": [fixed_point(value, 32, exponent, contributors) for value in values],
            }
        )
    return {"packing": cases, "nearest": nearest, "tensors": tensor_vectors()}


def exponent_of(values):
    """The smallest e ≥ −90 with |v| ≤ 2^e for all of them."""
    largest = max((abs(Fraction(value)) for value in values), default=Fraction(0))
    return next(e for e in range(-90, 129) if largest <= Fraction(2) ** e)


def split(values, sizes):
    """A model as a row of tensors."""
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return [values[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def words_of(values, sizes, bits, exponents, contributors):
    """A model as integers, with a scale for each tensor."""
    return [
        fixed_point(value, bits, exponent, contributors)
        for tensor, exponent in zip(split(values, sizes), exponents, strict=True)
        for value in tensor
    ]


def tensor_vectors():
    """Models of several tensors, some of them empty or zero; the scale may be larger than the model asks for."""
    cases = []
    for k, (scales, sizes, more) in enumerate(
        (
            ([1.0, 0.001], [3, 5], [0, 0]),
            ([0.0, 7.0, 2.0**-100], [2, 64, 3], [0, 1, 100]),
            ([1.0, 1.0, 3e38, 1.0], [0, 63, 70, 0], [5, 0, 0, 90]),
        )
    ):
        units = [word / 2**31 - 1 for word in numbers(f"tensors {k}", sum(sizes))]
        values = [
            float32(unit * scale)
            for scale, tensor in zip(scales, split(units, sizes), strict=True)
            for unit in tensor
        ]
        own = [exponent_of(tensor) for tensor in split(values, sizes)]
        exponents = [a + b for a, b in zip(own, more, strict=True)]
        cases.append(
            {
                "sizes": sizes,
                "values": [struct.pack("<f", value).hex() for value in values],
                "own": own,
                "exponents": exponents,
                "contributors": 3 + k,
                "words": words_of(values, sizes, 32, exponents, 3 + k),
            }
        )
    return cases


# ── index codes ─────────────────────────────────────────────────────────────────────────────────────────

BLOCK = 4096
CLASSES = 32


def gaps_of(members):
    ordered = sorted(members)
    return [b - a for a, b in zip([-1, *ordered], ordered, strict=False)]


def code_gap(gap, rice):
    """One gap as a string of bits; Elias gamma where `rice` is None."""
    if rice is None:
        width = gap.bit_length() - 1
        return "0" * width + "1" + f"{gap - (1 << width):0{width}b}"[::-1][:width]
    quotient, low = divmod(gap - 1, 1 << rice)
    return "0" * quotient + "1" + f"{low:0{rice}b}"[::-1][:rice]


def read_gaps(text, count, rice):
    """The members that a gap code stands for, and where it ended."""
    at, position, members = 0, -1, []
    for _ in range(count):
        zeros = text.index("1", at) - at
        at += zeros + 1
        width = zeros if rice is None else rice
        low = int(text[at : at + width][::-1] or "0", 2)
        at += width
        position += (1 << zeros) + low if rice is None else (zeros << rice) + low + 1
        members.append(position)
    return members, at


def rice_parameter(size, count):
    mean = size / max(count, 1)
    return max(0, round(math.log2(math.log(2) * mean))) if mean > 1 else 0


def gap_code(members, size, *, elias):
    rice = None if elias else rice_parameter(size, len(members))
    text = "".join(code_gap(gap, rice) for gap in gaps_of(members))
    body = bytes_of_bits(text)
    agreed(read_gaps(bits_of_bytes(body), len(members), rice), (sorted(members), len(text)), "a gap code")
    return u32(len(members)) + (b"" if elias else bytes([rice])) + body


def code_lengths(weights):
    """Huffman with two queues: leaves by weight and symbol, joined nodes in the order they were made."""
    leaves = deque(sorted(range(len(weights)), key=lambda symbol: (weights[symbol], symbol)))
    joined, weight, parent = deque(), list(weights), {}

    def lightest():
        if not joined or (leaves and weight[leaves[0]] <= weight[joined[0]]):
            return leaves.popleft()
        return joined.popleft()

    while len(leaves) + len(joined) > 1:
        first, second = lightest(), lightest()
        node = len(weight)
        weight.append(weight[first] + weight[second])
        parent[first] = parent[second] = node
        joined.append(node)

    def depth(node):
        return 1 + depth(parent[node]) if node in parent else 0

    return [depth(symbol) for symbol in range(len(weights))]


def pattern_codes(density_class):
    """The code of each of 256 patterns: canonical Huffman, written from its highest bit on."""
    ones = [symbol.bit_count() for symbol in range(256)]
    k, floor = density_class, 1 << 28
    lengths = code_lengths([max(k**o * (CLASSES - k) ** (8 - o), floor) for o in ones])
    agreed(sum(Fraction(1, 1 << n) for n in lengths), 1, "Kraft's sum")
    agreed(max(lengths) <= 15, True, "the longest code")
    codes, code, previous = {}, 0, 0
    for length, symbol in sorted((n, s) for s, n in enumerate(lengths)):
        code <<= length - previous
        codes[symbol], previous = f"{code:0{length}b}", length
        code += 1
    return codes


def blocks_of(bitmap, size):
    """The bytes, the number of positions and the number of members of each block."""
    for start in range(0, size, BLOCK):
        part = bitmap[start // 8 : (start + BLOCK) // 8]
        yield part, min(BLOCK, size - start), sum(byte.bit_count() for byte in part)


def read_patterns(text, classes, byte_count):
    data, at = [], 0
    for k in range(byte_count):
        inverse = {code: symbol for symbol, code in pattern_table(classes[8 * k // BLOCK]).items()}
        length = next(n for n in range(1, 16) if text[at : at + n] in inverse)
        data.append(inverse[text[at : at + length]])
        at += length
    return bytes(data), at


PATTERN_TABLES = {}


def pattern_table(density_class):
    if density_class not in PATTERN_TABLES:
        PATTERN_TABLES[density_class] = pattern_codes(density_class)
    return PATTERN_TABLES[density_class]


def pattern_code(bitmap, size):
    classes, text = [], ""
    for part, width, members in blocks_of(bitmap, size):
        nearest = math.floor(Fraction(CLASSES * members, width) + Fraction(1, 2))
        classes.append(min(max(nearest, 1), CLASSES - 1))
        text += "".join(pattern_table(classes[-1])[byte] for byte in part)
    body = bytes_of_bits(text)
    agreed(read_patterns(bits_of_bytes(body), classes, len(bitmap)), (bitmap, len(text)), "patterns")
    return bytes(classes) + body


def entropy_level(members, width):
    """The density of a block, as the nearest (level/255)^2 that can express it."""
    if members in (0, width):
        return 255 * (members > 0)
    return min(max(round(255 * math.sqrt(members / width)), 1), 254)


def pattern_probabilities(level):
    density = level * level / 65025
    one, zero = [1.0], [1.0]
    for _ in range(8):
        one.append(one[-1] * density)
        zero.append(zero[-1] * (1 - density))
    return [one[s.bit_count()] * zero[8 - s.bit_count()] for s in range(256)]


def cumulative(probabilities):
    """Boundaries in units of 2^-24: one unit for each symbol, the rest in proportion, rounded down."""
    total = 0.0
    for probability in probabilities:
        total += probability
    scale, so_far, bounds = ((1 << 24) - len(probabilities)) / total, 0.0, []
    for symbol, probability in enumerate(probabilities):
        bounds.append(int(so_far * scale) + symbol)
        so_far += probability
    return [*bounds, 1 << 24]


def plain_ans(symbols):
    """Asymmetric numeral systems with 64 bits of state, 32-bit words and 24-bit probabilities."""
    bounds = {level: cumulative(pattern_probabilities(level)) for level in {level for level, _ in symbols}}
    state, words = 0, []
    for level, symbol in reversed(symbols):
        low, high = bounds[level][symbol : symbol + 2]
        if state >> 40 >= high - low:
            words.append(state & 0xFFFFFFFF)
            state >>= 32
        quotient, rest = divmod(state, high - low)
        state = quotient << 24 | low + rest
    while state:
        words.append(state & 0xFFFFFFFF)
        state >>= 32
    return words


def library_ans(symbols):
    coder = constriction.stream.stack.AnsCoder()
    for level in sorted({level for level, _ in symbols}, reverse=True):
        run = np.array([symbol for its, symbol in symbols if its == level], dtype=np.int32)
        probabilities = np.array(pattern_probabilities(level))
        model = constriction.stream.model.Categorical(probabilities, perfect=False, lazy=False)
        coder.encode_reverse(run, model)
    return coder.get_compressed().tolist()


def entropy_code(bitmap, size):
    blocks = [(entropy_level(members, width), part) for part, width, members in blocks_of(bitmap, size)]
    coded = sorted((item for item in blocks if 0 < item[0] < 255), key=lambda item: item[0])
    symbols = [(level, byte) for level, part in coded for byte in part]
    words = agreed(plain_ans(symbols), library_ans(symbols), "an entropy code")
    return bytes(level for level, _ in blocks) + u32(*words)


def encodings(members, size):
    bitmap = bitmap_of(members, size)
    coded = {
        "BITMAP": b"\x01" + bitmap,
        "PATTERNS": b"\x02" + pattern_code(bitmap, size),
        "RICE": b"\x03" + gap_code(members, size, elias=False),
        "ELIAS_GAMMA": b"\x04" + gap_code(members, size, elias=True),
        "ENTROPY": b"\x05" + entropy_code(bitmap, size),
    }
    if len(members) == size:
        coded["FULL"] = b"\x00"
    return {name: data.hex() for name, data in sorted(coded.items())}


def scattered(name, size, density):
    return [p for p, number in enumerate(numbers(name, size)) if number < density * 2**32]


def codec_sets():
    """(name, size, members): every kind of set that has broken a code before, or could."""
    yield "nothing of nothing", 0, []
    yield "one of one", 1, [0]
    yield "none of one", 1, []
    for size in (7, 8, 9, 63, 64, 65, 200):
        yield f"a third of {size}", size, scattered(f"third {size}", size, 0.34)
    yield "first and last of 129", 129, [0, 128]
    yield "all of 100", 100, list(range(100))
    yield "all but one of 100", 100, [p for p in range(100) if p != 37]
    yield "every other of 300", 300, list(range(0, 300, 2))
    yield "none of 5000", 5000, []
    yield "the last of 10000", 10000, [9999]
    yield "one in a thousand of 10000", 10000, scattered("thousandth", 10000, 0.001)
    yield "one in fifty of 10000", 10000, scattered("fiftieth", 10000, 0.02)
    yield "a third of 10000", 10000, scattered("third 10000", 10000, 0.3422)
    yield "nine in ten of 4097", 4097, scattered("nine", 4097, 0.9)
    layers = scattered("layer a", 4096, 0.05) + list(range(4096, 8192))
    yield (
        "a sparse, a full and a dense layer",
        9000,
        layers + [8192 + p for p in scattered("layer c", 808, 0.7)],
    )
    yield "two runs of 9001", 9001, [*range(100, 900), *range(6000, 6500)]


def codec_vectors():
    cases = []
    for name, size, members in codec_sets():
        case = {"name": name, "size": size, "count": len(members)}
        cases.append(case | {"bitmap": bitmap_of(members, size).hex(), "encodings": encodings(members, size)})
    return {"cases": cases}


# ── subsampling ─────────────────────────────────────────────────────────────────────────────────────────

PART = 64 * 64 * 64
"""Positions drawn at a time: 64 tiles of 64 words of 64 positions."""


class WordStream:
    """64-bit words of a seed's keystream, in order."""

    def __init__(self, seed, count):
        self.data, self.used = keystream(seed, 8 * count), 0

    def take(self, count):
        start, self.used = self.used, self.used + count
        data = self.data[8 * start : 8 * self.used]
        if len(data) < 8 * count:
            raise SystemExit("the keystream that was made is too short")
        return [int.from_bytes(data[k : k + 8], "little") for k in range(0, len(data), 8)]


def settle(tops, threshold, ties):
    """Which of 64 positions, whose numbers start with these eight bits, are below the threshold."""
    known, drawn = 8, list(tops)
    while known < 32 and threshold >> (32 - known) in drawn:
        word = ties()
        drawn = [number << 1 | word >> t & 1 for t, number in enumerate(drawn)]
        known += 1
    return [number < threshold >> (32 - known) for number in drawn]


def subsample_part(stream, count, threshold):
    """One part of `count` positions. Ties come in batches of as many words as the part has."""
    words = -(-count // 64)
    planes = stream.take(512 * -(-words // 64))
    batch, used = stream.take(words), 0

    def tie():
        nonlocal used
        if used == len(batch):
            batch.extend(stream.take(words))
        used += 1
        return batch[used - 1]

    flags = []
    for w in range(words):
        rows = [planes[512 * (w // 64) + 64 * k + w % 64] for k in range(8)]
        tops = [sum((row >> t & 1) << (7 - k) for k, row in enumerate(rows)) for t in range(64)]
        flags += settle(tops, threshold, tie)
    return flags[:count], len(batch) > words


def subsample(seed, size, alpha):
    """The members of the set that a seed stands for, and whether ties had to be drawn twice."""
    threshold = round(alpha * 2.0**32)
    if threshold >= 2**32:
        return list(range(size)), False
    stream = WordStream(seed, 12 * (size // 64 + 1) + 1024)
    members, twice = [], False
    for start in range(0, size, PART):
        flags, more = subsample_part(stream, min(PART, size - start), threshold)
        members += [start + p for p, flag in enumerate(flags) if flag]
        twice |= more
    return members, twice


def subsample_vectors():
    settings = [(size, 0.3422) for size in (1, 2, 63, 64, 65, 128, 1000, 4095, 4096, 4097, 10000)]
    settings += [(500, alpha) for alpha in (2.0**-32, 0.001, 0.25, 0.5, 0.597, 0.999, 1 - 2.0**-32, 1.0)]
    settings += [(60 + k, 0.1 * k) for k in range(1, 9)]
    settings += [(PART, 0.3), (PART + 5000, 0.4253)]
    cases, extended = [], 0
    for size, alpha in settings:
        seed = draw(f"subsample {size} {alpha}", 16)
        members, twice = subsample(seed, size, alpha)
        bitmap = bitmap_of(members, size)
        # A large set would be most of the file; its hash is as good.
        shown = {"bitmap": bitmap.hex()} if size <= 10000 else {"sha256": hashlib.sha256(bitmap).hexdigest()}
        cases.append({"seed": seed.hex(), "size": size, "alpha": alpha, "count": len(members)} | shown)
        extended += twice
    agreed(extended > 2, True, "cases in which the first ties run out")
    return {"cases": cases}


# ── frames ──────────────────────────────────────────────────────────────────────────────────────────────

KINDS = {"announce": 1, "relay": 2, "share": 3, "plain_share": 4, "group_terms": 5}


def header_bytes(kind, round_, sender, session):
    return b"CE" + bytes([VERSION, KINDS[kind]]) + u32(round_, sender) + session


def header_vectors():
    cases = []
    for k, kind in enumerate(KINDS):
        for round_, sender in ((0, 0), (258 + k, 3), (4294967295, 4294967295)):
            session = draw(f"header {kind} {round_}", 16)
            data = header_bytes(kind, round_, sender, session)
            cases.append(
                {
                    "kind": kind,
                    "round": round_,
                    "sender": sender,
                    "session": session.hex(),
                    "bytes": data.hex(),
                }
            )
    return cases


def in_frame(kind, body, fields):
    session = draw(f"frame {kind} {body.hex()}", 16)
    frame = header_bytes(kind, 5, 9, session) + body
    return {"kind": kind, "round": 5, "sender": 9, "session": session.hex(), **fields, "frame": frame.hex()}


def announce_vectors():
    cases = []
    for exponents, indices in (
        ([0], b"\x01\x09"),
        ([-90, 4, 0], b"\x06" + draw("announced", 16)),
        ([128], b""),
    ):
        token = draw(f"announce {exponents}", 48)
        fields = {"token": token.hex(), "exponents": exponents, "indices": indices.hex()}
        cases.append(in_frame("announce", token + exponent_bytes(exponents) + indices, fields))
    return cases


def relay_frame_vectors():
    cases = []
    long_view = [*range(1, 9), 70000]
    for view, group, exponents, sets in (
        ([2, 4, 7], [2, 7], [3], [b"\x01\x05"]),
        (long_view, long_view, [3, -90], [b"", b"\x00", draw("relayed", 40)]),
        ([1, 3], [], [128], []),
    ):
        items = [(draw(f"relay item {k}", 48), indices) for k, indices in enumerate(sets)]
        body = exponent_bytes(exponents) + members_bytes(group, view)
        body += b"".join(token + u32(len(indices)) + indices for token, indices in items)
        shown = [{"token": token.hex(), "indices": indices.hex()} for token, indices in items]
        fields = {"exponents": exponents, "view": view, "group": group, "items": shown}
        cases.append(in_frame("relay", body, fields))
    return cases


def group_terms_vectors():
    cases = []
    long_view = [*range(1, 9), 70000]
    for view, present, partners, exponents, others in (
        ([2, 4, 7, 9], [2, 4, 7, 9], [4], [3], b"\x01\x05"),
        (long_view, [1, 3, 5, 70000], [3, 5, 70000], [0, -90], b""),
        (long_view, [1, 3], [3, 5], [1], b"\x00"),
        ([2, 4], [2], [4], [-1], b""),
    ):
        heard = [node for node in partners if node in present]
        tokens = [draw(f"terms token {node}", 48) for node in heard]
        body = exponent_bytes(exponents) + members_bytes(present, view) + b"".join(tokens) + others
        fields = {
            "exponents": exponents,
            "view": view,
            "present": present,
            "partners": partners,
            "tokens": [token.hex() for token in tokens],
            "others": others.hex(),
        }
        cases.append(in_frame("group_terms", body, fields))
    return cases


def share_vectors():
    cases = []
    for view, partners, indices, bits in (
        ([1, 2, 3], [2, 3], None, 32),
        ([0, 4, 5, 6, 10, 11, 12, 13, 14], [5, 14], b"\x04" + u32(0), 20),
        ([1, 2], [], None, 16),
    ):
        facts, words = draw(f"share facts {bits}", 8), numbers(f"share words {bits}", 5, bits)
        checks = [draw(f"check {partner}", 4) for partner in partners]
        beside = b"" if indices is None else u32(len(indices)) + indices
        body = facts + members_bytes(partners, view) + b"".join(checks) + beside + packed(words, bits)
        fields = {
            "view": view,
            "facts": facts.hex(),
            "partners": partners,
            "checks": [check.hex() for check in checks],
            "indices": None if indices is None else indices.hex(),
            "bits": bits,
            "words": words,
        }
        cases.append(in_frame("share", body, fields))
    return cases


def plain_share_vectors():
    cases = []
    for indices, values in ((b"\x01\x05", [0.5, -3.0]), (b"", []), (b"\x00", [float32(0.1)])):
        raw = struct.pack(f"<{len(values)}f", *values)
        body = u32(len(indices)) + indices + raw
        cases.append(in_frame("plain_share", body, {"indices": indices.hex(), "values": raw.hex()}))
    return cases


def wire_vectors():
    return {
        "headers": header_vectors(),
        "announce": announce_vectors(),
        "relay": relay_frame_vectors(),
        "share": share_vectors(),
        "plain_share": plain_share_vectors(),
        "group_terms": group_terms_vectors(),
    }


# ── fixed groups ────────────────────────────────────────────────────────────────────────────────────────


def division(network, receiver, view, size, draw_):
    """Shuffle the neighbours, then deal them out like cards to as many groups as there can be."""
    text = u32(len(network)) + network + u32(receiver, size, draw_, len(view), *view)
    stream = hashlib.shake_256(b"cesar groups" + text).digest(8 * len(view))
    deck = list(view)
    for last in range(len(view) - 1, 0, -1):
        number = int.from_bytes(stream[8 * last : 8 * last + 8], "little")
        chosen = math.floor(Fraction(number * (last + 1), 2**64))
        deck[last], deck[chosen] = deck[chosen], deck[last]
    count = len(view) // size
    groups = [[] for _ in range(count)]
    for k, node in enumerate(deck):
        groups[k % count].append(node)
    return [sorted(group) for group in groups]


def division_vectors():
    long_view = [*range(3, 20), 70000, 4294967295]
    settings = [
        (b"", 0, [1, 2], 2, 0),
        (b"", 0, [1, 2, 3, 4, 5, 6], 3, 0),
        (b"", 0, [1, 2, 3, 4, 5, 6], 3, 1),
        (b"", 0, [1, 2, 3, 4, 5, 6], 2, 0),
        (b"", 9, [1, 2, 3, 4, 5, 6], 3, 0),
        (b"hospitals", 0, [1, 2, 3, 4, 5, 6], 3, 0),
        (b"hospitals", 70000, [0, 4, 11, 12, 13], 2, 4294967295),
        (draw("network", 32), 4294967295, long_view[:-1], 4, 7),
        (draw("network", 32), 2, long_view, 2, 0),
        (draw("network", 32), 2, long_view, 19, 0),
    ]
    return [
        {
            "network": network.hex(),
            "receiver": receiver,
            "view": view,
            "group_size": size,
            "draw": draw_,
            "groups": division(network, receiver, view, size, draw_),
        }
        for network, receiver, view, size, draw_ in settings
    ]


def turns(session, round_, receiver, size, alpha, count):
    """Number of a group → its positions: a row of groups for each word of 64 positions, of which the first are active."""
    wanted = alpha * count  # in float64, as the rest that is left of it
    whole, rate = math.floor(wanted), wanted - math.floor(wanted)
    extra = set()
    if rate > 0:
        seed = expand(session, b"cesar turns" + u32(round_, receiver))[:16]
        extra = set(subsample(seed, size, rate)[0])
    found = [[] for _ in range(count)]
    for p in range(size):
        row = [(round_ + p // 64 + j) % count for j in range(count)]
        for number in row[: whole + (p in extra)]:
            found[number].append(p)
    return found


def turns_vectors():
    cases = []
    for alpha, count, size, round_, receiver in (
        (0.3, 2, 200, 0, 0),
        (0.3, 2, 200, 1, 0),
        (0.3, 2, 200, 0, 1),
        (0.5, 2, 130, 5, 70000),
        (0.7, 3, 300, 4294967295, 4294967295),
        (0.9, 4, 65, 3, 2),
        (1.0, 3, 70, 3, 2),
        (0.001, 5, 1000, 17, 8),
        (0.29, 100, 640, 2, 1),
        (0.3, 1, 100, 9, 9),
    ):
        session = draw(f"turns {alpha} {count}", 16)
        found = turns(session, round_, receiver, size, alpha, count)
        cases.append(
            {
                "session": session.hex(),
                "round": round_,
                "receiver": receiver,
                "alpha": alpha,
                "size": size,
                "bitmaps": [bitmap_of(members, size).hex() for members in found],
            }
        )
    return cases


class GroupedRound:
    """A whole round with fixed groups in a complete graph: every frame, and every new model.

    Words have 64 bits until they are masked, then the upper 32, rounded. Sets that travel are bitmaps.
    """

    def __init__(self, name, nodes, group_size, tensors, alpha, kind):
        self.size, self.tensors, self.alpha, self.kind = sum(tensors), tensors, alpha, kind
        self.nodes, self.group_size, self.round = list(range(nodes)), group_size, 130
        self.network, self.session = draw(f"{name} network", 9), draw(f"{name} session", 16)
        self.static = [draw(f"{name} static {i}", 32) for i in self.nodes]
        self.ephemeral = [draw(f"{name} ephemeral {i}", 32) for i in self.nodes]
        self.seeds = [draw(f"{name} seed {i}", 16) for i in self.nodes]
        self.tokens = [s + public_key(e) for s, e in zip(self.seeds, self.ephemeral, strict=True)]
        self.models = [self.model(name, i) for i in self.nodes]
        self.own = [[exponent_of(tensor) for tensor in split(model, tensors)] for model in self.models]
        self.groups = [division(self.network, r, self.view(r), group_size, 0) for r in self.nodes]
        self.chosen = [self.select(model) for model in self.models]

    def model(self, name, i):
        units = [word / 2**31 - 1 for word in numbers(f"{name} model {i}", self.size)]
        scales = [2.0 ** (k - i % 3) for k in range(len(self.tensors))]
        parts = zip(split(units, self.tensors), scales, strict=True)
        return [float32(unit * scale) for tensor, scale in parts for unit in tensor]

    def view(self, r):
        return [node for node in self.nodes if node != r]

    def select(self, model):
        """The largest; of equal ones the first."""
        count = max(1, round(self.alpha * self.size))
        return set(sorted(range(self.size), key=lambda p: (-abs(model[p]), p))[:count])

    def positions(self, r):
        """Number of a group of r → where it sends."""
        if self.kind == "topk":
            return [sorted(set().union(*(self.chosen[i] for i in group))) for group in self.groups[r]]
        if self.kind == "full":
            return [list(range(self.size))] * len(self.groups[r])
        return turns(self.session, self.round, r, self.size, self.alpha, len(self.groups[r]))

    def scale(self, r):
        """The largest exponent of each tensor among those who send to r."""
        return [max(self.own[i][k] for i in self.view(r)) for k in range(len(self.tensors))]

    def secret(self, i, j):
        static = static_secret(self.static[i], public_key(self.static[j]), self.session)
        return pair_secret(static, self.ephemeral[i], public_key(self.ephemeral[j]))

    def header(self, kind, sender):
        return header_bytes(kind, self.round, sender, self.session)

    def announce(self, i):
        chosen = b"\x01" + bitmap_of(self.chosen[i], self.size) if self.kind == "topk" else b""
        return self.header("announce", i) + self.tokens[i] + exponent_bytes(self.own[i]) + chosen

    def terms(self, r, j):
        number, group = next((k, group) for k, group in enumerate(self.groups[r]) if j in group)
        frame = self.header("group_terms", r) + exponent_bytes(self.scale(r))
        frame += members_bytes(self.view(r), self.view(r))
        frame += b"".join(self.tokens[i] for i in group if i != j)
        if self.kind == "topk":
            left = [p for p in range(self.size) if p not in self.chosen[j]]
            ranks = [k for k, p in enumerate(left) if p in self.positions(r)[number]]
            frame += b"\x00" if len(ranks) == len(left) else b"\x01" + bitmap_of(ranks, len(left))
        return frame

    def fine(self, i, r):
        """A model in 64-bit words."""
        return words_of(self.models[i], self.tensors, 64, self.scale(r), len(self.view(r)))

    def share(self, i, r):
        """The frame, and its words."""
        number, group = next((k, group) for k, group in enumerate(self.groups[r]) if i in group)
        positions, partners = self.positions(r)[number], [j for j in group if j != i]
        digest = digest_of(positions, self.size)
        terms = exponent_bytes(self.scale(r)) + members_bytes(group, self.view(r))
        whole = self.fine(i, r)
        words, checks = [whole[p] for p in positions], b""
        for j in partners:
            ends = [(i, self.seeds[i]), (j, self.seeds[j])]
            block = mask_block(self.secret(i, j), self.session, self.round, ends, r, terms, digest)
            stream = keystream(block[:32], 8 * len(words))
            masks = [int.from_bytes(stream[8 * k : 8 * k + 8], "little") for k in range(len(words))]
            sign = 1 if i < j else -1
            words = [(word + sign * mask) % 2**64 for word, mask in zip(words, masks, strict=True)]
            checks += block[32:36]
        words = [(word + 2**31) // 2**32 % 2**32 for word in words]
        facts = facts_of(self.tokens[i], terms, {j: (self.tokens[j], digest) for j in partners})
        head = facts + members_bytes(partners, self.view(r)) + checks
        return self.header("share", i) + head + packed(words, 32), words

    def result(self, r):
        """The mean of the own value and of all that came."""
        totals, heard = [0] * self.size, [0] * self.size
        for group, positions in zip(self.groups[r], self.positions(r), strict=True):
            for words in (self.share(i, r)[1] for i in group):
                for p, word in zip(positions, words, strict=True):
                    totals[p] = (totals[p] + word) % 2**32
                    heard[p] += 1
        steps = [2.0 ** (e + headroom(len(self.view(r))) - 31) for e in self.scale(r)]
        step = [s for s, size in zip(steps, self.tensors, strict=True) for _ in range(size)]
        signed = [total - 2**32 * (total >= 2**31) for total in totals]
        # Without any masks: the sum over the groups that are active, which differs by what was rounded.
        clear = [self.fine(i, r) for i in self.nodes]
        for group, positions in zip(self.groups[r], self.positions(r), strict=True):
            for p in positions:
                signed[p] -= sum(clear[i][p] - 2**64 * (clear[i][p] >= 2**63) for i in group) / 2**32
        off = [p for p in range(self.size) if abs(signed[p]) > heard[p] / 2]
        agreed(off, [], "a sum with masks and one without")
        return [
            float32((self.models[r][p] + (total - 2**32 * (total >= 2**31)) * step[p]) / (1 + heard[p]))
            for p, total in enumerate(totals)
        ]

    def vector(self):
        return {
            "kind": self.kind,
            "alpha": self.alpha,
            "group_size": self.group_size,
            "tensors": self.tensors,
            "network": self.network.hex(),
            "session": self.session.hex(),
            "round": self.round,
            "privates": [private.hex() for private in self.static],
            "ephemerals": [private.hex() for private in self.ephemeral],
            "seeds": [seed.hex() for seed in self.seeds],
            "models": [struct.pack(f"<{self.size}f", *model).hex() for model in self.models],
            "groups": self.groups,
            "announces": [self.announce(i).hex() for i in self.nodes],
            "terms": [[r, j, self.terms(r, j).hex()] for r in self.nodes for j in self.view(r)],
            "shares": [[i, r, self.share(i, r)[0].hex()] for r in self.nodes for i in self.view(r)],
            "results": [struct.pack(f"<{self.size}f", *self.result(r)).hex() for r in self.nodes],
        }


def groups_vectors():
    rounds = [
        GroupedRound("union", 5, 2, [9, 0, 12], 0.25, "topk"),
        GroupedRound("turns", 5, 2, [50, 90], 0.3, "random"),
        GroupedRound("everything", 4, 3, [10], 1.0, "full"),
    ]
    return {
        "division": division_vectors(),
        "turns": turns_vectors(),
        "rounds": [one.vector() for one in rounds],
    }


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────

FILES = {
    "keystream": keystream_vectors,
    "kdf": kdf_vectors,
    "packing": packing_vectors,
    "codecs": codec_vectors,
    "subsample": subsample_vectors,
    "wire": wire_vectors,
    "groups": groups_vectors,
}


def write(directory):
    """Write all files, and say what was written."""
    for name, make in FILES.items():
        vectors = make()
        lines = [  # one case per line, so that a change shows as what it is
            f' "{group}": [\n  ' + ",\n  ".join(map(json.dumps, members)) + "\n ]"
            for group, members in vectors.items()
        ]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        (directory / f"{name}.json").write_text(text, encoding="utf-8", newline="\n")
        count = sum(len(members) for members in vectors.values())
        print(f"{directory.name}/{name}.json: {count} cases, {len(text):,} bytes")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT)
