"""Write tests/vectors/*.json: what the wire format says, computed without the package.

Nothing here imports `cesar` or numba. Each value is made the obvious way (strings of bits, big integers, one
position at a time) and, where there is a library that knows it too, made a second time with that:

    AES                 `cryptography`, and a plain AES below
    X25519              `cryptography`, and the ladder of RFC 7748 below
    HKDF-SHA512         `hmac`, and `cryptography`
    index codes         an encoder and a decoder that know nothing of each other
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

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

OUTPUT = Path(__file__).parents[2] / "tests" / "vectors"
VERSION = 3


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


def encodings(members, size):
    bitmap = bitmap_of(members, size)
    coded = {
        "BITMAP": b"\x01" + bitmap,
        "PATTERNS": b"\x02" + pattern_code(bitmap, size),
        "RICE": b"\x03" + gap_code(members, size, elias=False),
        "ELIAS_GAMMA": b"\x04" + gap_code(members, size, elias=True),
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

KINDS = {"announce": 1, "relay": 2, "share": 3, "plain_share": 4}


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
    }


# ── cells ───────────────────────────────────────────────────────────────────────────────────────────────

CELL_KINDS = {"agree": 6, "scatter": 7, "exchange": 8, "gather": 9}
NEVER = 2**32 - 1
SHORT = 2**16


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def uniform(counter):
    """The finaliser of splitmix64 over a counter, as a number in [0, 1)."""
    z = counter * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return Fraction((z ^ z >> 31) >> 11, 2**53)


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


class CellRounds:
    """Two cells of three that hear each other: every frame of two rounds, and every common model.

    A model has three words of 64 positions, so that each member looks after one word. With `samples` members count by them.
    """

    MEMBERS = ((0, 2, 5), (1, 3, 4))
    MOST = 1000

    def __init__(self, name, tensors, kind, alpha, block=0, samples=None):
        self.samples, self.carried = (
            samples,
            [(0.0, 0.0), (0.0, 0.0)],
        )  # a cell's weight, and its members' samples
        self.name, self.tensors, self.size = name, tensors, sum(tensors)
        self.kind, self.alpha, self.block = kind, alpha, block
        self.nodes = range(6)
        self.session = draw(f"{name} session", 16)
        self.static = [draw(f"{name} static {i}", 32) for i in self.nodes]
        self.ephemeral = [draw(f"{name} ephemeral {i}", 32) for i in self.nodes]
        self.common = [self.numbers_of(f"{name} common {c}", 1.0) for c in (0, 1)]
        self.claims = [sha(b"cesar cell start", floats(x)) + u32(NEVER) + bytes(1) for x in self.common]
        self.chains = [claim[:32] for claim in self.claims]
        self.unsent = [[0.0] * self.size for _ in self.nodes]
        self.blocks = -(-self.size // block) if block else 0
        self.scores = [[0] * self.blocks for _ in (0, 1)]
        self.rounds = [self.play(round_) for round_ in (0, 1)]

    def numbers_of(self, name, scale):
        units = [float32((word / 2**31 - 1) * scale) for word in numbers(name, self.size)]
        return [unit * (1 + (p >= self.tensors[0])) for p, unit in enumerate(units)]

    def positions(self, round_, c):
        """U, the same for all members of a cell."""
        if self.kind == "full":
            return list(range(self.size))
        if self.kind == "random":
            seed = expand(self.session, b"cesar cell positions" + u32(round_))[:16]
            return subsample(seed, self.size, self.alpha)[0]
        label = b"cesar cell blocks" + self.session + u32(round_)
        stream = hashlib.shake_256(label).digest(4 * self.blocks)
        ties = [int.from_bytes(stream[4 * b : 4 * b + 4], "little") for b in range(self.blocks)]
        order = sorted(range(self.blocks), key=lambda b: (-self.scores[c][b], ties[b]))
        chosen = sorted(order[: max(1, round(self.alpha * self.blocks))])
        return [p for b in chosen for p in range(self.block * b, min(self.block * (b + 1), self.size))]

    def tensors_in(self, positions, word):
        """The chosen positions of a slice, by the tensors that reach into it."""
        ends = [sum(self.tensors[: k + 1]) for k in range(len(self.tensors))]
        low, high = 64 * word, min(64 * word + 64, self.size)
        touched = [k for k, end in enumerate(ends) if end > low and end - self.tensors[k] < high]
        here = [p for p in positions if low <= p < high]
        return [[p for p in here if ends[k] - self.tensors[k] <= p < ends[k]] for k in touched]

    def grid(self, values, groups, seed):
        """Exponents and words of public values, and what the words stand for."""
        exponents = [exponent_of([values[p] for p in group]) for group in groups]
        start, words, meant = int.from_bytes(sha(b"cesar cell dither", seed)[:8], "little"), [], {}
        for exponent, group in zip(exponents, groups, strict=True):
            for p in group:
                up = uniform((start + len(words)) % 2**64)
                word = math.floor(Fraction(values[p]) * Fraction(2) ** (15 - exponent) + up)
                word = min(max(word, -(2**15)), 2**15 - 1)
                words.append(word % SHORT)
                meant[p] = word * 2.0 ** (exponent - 15)
        return exponent_bytes(exponents) + packed(words, 16), meant

    def bitmap(self, positions, word):
        """Which blocks of a slice are in a set."""
        if not self.block:
            return b""
        per_word = 64 // self.block
        chosen = {p // self.block - word * per_word for p in positions if p // 64 == word}
        return bitmap_of(chosen, per_word)

    def header(self, kind, round_, sender):
        return b"CE" + bytes([VERSION, CELL_KINDS[kind]]) + u32(round_, sender) + self.session

    def play(self, round_):
        name = f"{self.name} {round_}"
        steps = [self.numbers_of(f"{name} step {i}", 0.01) for i in self.nodes]
        seeds = [draw(f"{name} seed {i}", 16) for i in self.nodes]
        tokens = [s + public_key(e) for s, e in zip(seeds, self.ephemeral, strict=True)]
        models, frames, handed = [None] * 6, [], [None] * 6
        for c, cell in enumerate(self.MEMBERS):
            for i in cell:
                start = [float32(x + e) for x, e in zip(self.common[c], self.unsent[i], strict=True)]
                models[i] = [float32(x + step) for x, step in zip(start, steps[i], strict=True)]
                handed[i] = [float32(v - x) for v, x in zip(models[i], self.common[c], strict=True)]
        chosen = [self.positions(round_, c) for c in (0, 1)]
        values, sums = [dict(enumerate(x)) for x in self.common], [None, None]
        for c, cell in enumerate(self.MEMBERS):
            sums[c] = self.inside(c, cell, round_, handed, chosen[c], seeds, tokens, frames)
            for p in chosen[c]:
                values[c][p] = float32(self.common[c][p] + sums[c][0][p])
        told = [{}, {}]
        weights = [weight for weight, _ in self.carried]
        for c, cell in enumerate(self.MEMBERS):  # each keeper tells the one of the other cell
            for word, i in enumerate(cell):
                to = self.MEMBERS[1 - c][word]
                groups = self.tensors_in(chosen[c], word)
                row, meant = self.grid(values[c], groups, self.session + u32(round_, i, to))
                head = self.header("exchange", round_, i) + u32(word, word + 1)
                head += (struct.pack("<d", weights[c]) if self.samples else b"") + self.bitmap(
                    chosen[c], word
                )
                frames.append([i, to, (head + row).hex()])
                told[c] |= meant
        for c, cell in enumerate(self.MEMBERS):
            part = 0.5
            if self.samples:
                mixed = weights[c] + 0.5 * (weights[1 - c] - weights[c])
                self.carried[c], part = (mixed, self.carried[c][1]), 0.5 * weights[1 - c] / mixed
            self.gather(c, cell, round_, chosen, values[c], told[1 - c], part, sums[c][1], frames)
        for c, cell in enumerate(self.MEMBERS):
            for i in cell:
                gone = set(chosen[c])
                self.unsent[i] = [0.0 if p in gone else v for p, v in enumerate(handed[i])]
        return {
            "seeds": [seed.hex() for seed in seeds],
            "models": [floats(model).hex() for model in models],
            "frames": frames,
            "common": [floats(x).hex() for x in self.common],
            "unsent": [floats(e).hex() for e in self.unsent],
        }

    def score(self, i, handed, positions):
        """What is left of each block, or where it is handed in, what was trained since the last time."""
        gone, sums = set(positions), []
        for b in range(self.blocks):
            total = 0.0
            for p in range(self.block * b, min(self.block * (b + 1), self.size)):
                total += abs(
                    float32(handed[i][p] - self.unsent[i][p]) if self.block * b in gone else handed[i][p]
                )
            sums.append(float32(total))
        return sums

    def inside(self, c, cell, round_, handed, positions, seeds, tokens, frames):
        """Agreement and masked slices of a cell; the mean at each position, and the sums of scores."""
        own = {i: [exponent_of(t) for t in split(handed[i], self.tensors)] for i in cell}
        scores = {i: self.score(i, handed, positions) for i in cell}
        if self.block:
            own = {i: own[i] + [exponent_of(scores[i])] for i in cell}
        for i in cell:
            frame = self.header("agree", round_, i) + tokens[i] + exponent_bytes(own[i])
            frame += members_bytes([], cell) + bytes(8) + self.claims[c]  # nothing was thrown away
            frames.extend([i, j, frame.hex()] for j in cell if j != i)
        scale = [max(own[i][k] for i in cell) for k in range(len(own[cell[0]]))]
        digest = digest_of(positions, self.size)
        agreed_on, weighs = exponent_bytes(scale), self.samples and not self.carried[c][1]
        if self.samples:
            unit = float(self.MOST if weighs else min(self.MOST, self.carried[c][1]))
            agreed_on += struct.pack("<dB", unit, weighs)
        terms = sha(b"cesar cell terms", u32(c, 3, *cell), digest, self.chains[c], agreed_on)
        facts = sha(b"cesar cell facts", terms, *(tokens[i] for i in cell))[:8]
        totals, score_totals = dict.fromkeys(positions, 0), [0] * self.blocks
        clear, extra_total = dict.fromkeys(positions, 0), 0
        for i in cell:
            brought = handed[i]
            if self.samples:
                own_weight = float32(self.samples[i] / unit)
                brought = [float32(v * own_weight) for v in brought]
            whole = words_of(brought, self.tensors, 64, scale[: len(self.tensors)], 3)
            words = [whole[p] for p in positions]
            words += (
                words_of(scores[i], [self.blocks], 64, scale[len(self.tensors) :], 3) if self.block else []
            )
            words += words_of([own_weight], [1], 64, [0], 3) if weighs else []
            for p, word in zip(positions, words, strict=False):
                clear[p] += word - 2**64 * (word >= 2**63)
            checks = []
            for j in cell:
                if j == i:
                    continue
                static = static_secret(self.static[i], public_key(self.static[j]), self.session)
                secret = pair_secret(static, self.ephemeral[i], public_key(self.ephemeral[j]))
                (low, low_seed), (high, high_seed) = sorted([(i, seeds[i]), (j, seeds[j])])
                label = b"cesar cell mask" + bytes([VERSION]) + self.session
                label += u32(round_, low, high, c) + low_seed + high_seed + terms
                block = expand(secret, label)
                stream = keystream(block[:32], 8 * len(words))
                sign = 1 if i < j else -1
                words = [
                    (word + sign * int.from_bytes(stream[8 * k : 8 * k + 8], "little")) % 2**64
                    for k, word in enumerate(words)
                ]
                checks.append(block[32:36])
            extra = [(words.pop() + 2**31) // 2**32 % 2**32] if weighs else []
            extra_total = (extra_total + sum(extra)) % 2**32
            words = [(word + 2**47) // 2**48 % SHORT for word in words]
            for p, word in zip(positions, words, strict=False):
                totals[p] = (totals[p] + word) % SHORT
            rest = words[len(positions) :]
            score_totals = [(a + b) % SHORT for a, b in zip(score_totals, rest, strict=True)]
            for k, keeper in enumerate(cell):
                if keeper == i:
                    continue
                row = [word for p, word in zip(positions, words, strict=False) if p // 64 == k]
                ranked = rest[64 * k // self.block : 64 * (k + 1) // self.block] if self.block else []
                body = facts + b"".join(checks) + packed(row, 16) + packed(ranked, 16) + packed(extra, 32)
                frames.append([i, keeper, (self.header("scatter", round_, i) + body).hex()])
        signed = {p: total - SHORT * (total >= SHORT // 2) for p, total in totals.items()}
        off = [p for p in positions if abs(signed[p] - clear[p] / 2**48) > 1.5]
        agreed(off, [], "a cell's sum with masks and one without")
        if weighs:
            found = extra_total - 2**32 * (extra_total >= 2**31)
            total = float(round(found * 2.0 ** (headroom(3) - 31) * unit))
            agreed(total, float(sum(self.samples[i] for i in cell)), "samples with masks and without")
            self.carried[c] = (total, total)
        part = unit / self.carried[c][0] if self.samples else 1 / 3
        step = [2.0 ** (e + headroom(3) - 15) * part for e in scale]
        steps = [s for s, size in zip(step, self.tensors, strict=False) for _ in range(size)]
        unit_of_scores = 2.0 ** (scale[-1] + headroom(3) - 15)
        sums = [(t - SHORT * (t >= SHORT // 2)) * unit_of_scores for t in score_totals]
        return {p: signed[p] * steps[p] for p in positions}, sums

    def gather(self, c, cell, round_, chosen, value, told, part, sums, frames):
        """The new common model: what each keeper tells its members."""
        codes = [min(max(round(8 * math.log2(s)) + 160, 1), 255) if s > 0 else 0 for s in sums]
        new, digests, changed = dict(value), b"", list(self.common[c])
        for p, heard in told.items():
            new[p] = float32(value[p] + part * (heard - value[p]))
        union = sorted({*chosen[c], *told})
        for word, i in enumerate(cell):
            groups = self.tensors_in(union, word)
            change = {p: float32(new[p] - self.common[c][p]) for group in groups for p in group}
            row, meant = self.grid(change, groups, self.session + u32(round_, i))
            here = codes[64 * word // self.block : 64 * (word + 1) // self.block] if self.block else []
            carried = struct.pack("<dd", *self.carried[c]) if self.samples else b""
            body = bytes(1) + carried + self.bitmap(union, word) + bytes(here) + row
            frame = self.header("gather", round_, i) + body
            frames.extend([i, j, frame.hex()] for j in cell if j != i)
            digests += sha(b"cesar cell slice", body)
            for p, step in meant.items():
                changed[p] = float32(self.common[c][p] + step)
        self.common[c], self.scores[c] = changed, codes
        self.claims[c] = self.chains[c] + u32(round_) + members_bytes(cell, cell) + digests
        self.chains[c] = sha(b"cesar cell chain", self.chains[c], u32(round_, 3, *cell), digests)

    def vector(self):
        weighed = {"samples": self.samples, "most_samples": self.MOST} if self.samples else {}
        return {
            "kind": self.kind,
            **weighed,
            "alpha": self.alpha,
            "block": self.block,
            "tensors": self.tensors,
            "session": self.session.hex(),
            "cells": self.MEMBERS,
            "privates": [private.hex() for private in self.static],
            "ephemerals": [private.hex() for private in self.ephemeral],
            "start": [floats(self.numbers_of(f"{self.name} common {c}", 1.0)).hex() for c in (0, 1)],
            "rounds": self.rounds,
        }


def cells_vectors():
    rounds = [
        CellRounds("cells full", [100, 70], "full", 1.0),
        CellRounds("cells random", [64, 128], "random", 0.4),
        CellRounds("cells blocks", [90, 90], "blocks", 0.3, 16),
        CellRounds("cells samples", [90, 90], "blocks", 0.3, 16, samples=[190, 20, 333, 7, 900, 41]),
        CellRounds("cells full samples", [100, 70], "full", 1.0, samples=[190, 20, 333, 7, 900, 41]),
    ]
    return {"rounds": [one.vector() for one in rounds]}


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────

FILES = {
    "keystream": keystream_vectors,
    "kdf": kdf_vectors,
    "packing": packing_vectors,
    "codecs": codec_vectors,
    "subsample": subsample_vectors,
    "wire": wire_vectors,
    "cells": cells_vectors,
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
