"""Write tests/vectors/*.json: what the wire format says, computed without the package.

Nothing here imports `cesar` or numba. Each value is made the obvious way (strings of bits, big integers, one
position at a time) and, where there is a library that knows it too, made a second time with that:

    AES                 `cryptography`, and a plain AES below
    X25519              `cryptography`, and the ladder of RFC 7748 below
    HKDF-SHA512         `hmac`, and `cryptography`
    entropy code        integers below, and `constriction`
    the other codes     an encoder and a decoder that know nothing of each other

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
VERSION = 1


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
    return hmac.new(salt, secret, hashlib.sha512).digest()


def expand(key, label):
    """The first block of HKDF-Expand; its 64 bytes are all that is ever used."""
    block = hmac.new(key, label + b"\x01", hashlib.sha512).digest()
    return agreed(block, HKDFExpand(hashes.SHA512(), 64, label).derive(key), "HKDF-Expand")


def pair_secret(private, peer_public, session):
    shared, publics = shared_point(private, peer_public), sorted((public_key(private), peer_public))
    salt, secret = b"cesar pair" + session, shared + publics[0] + publics[1]
    key = extract(salt, secret)
    whole = HKDF(hashes.SHA512(), 64, salt=salt, info=b"check").derive(secret)
    agreed(expand(key, b"check"), whole, "HKDF-Extract")
    return key


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
        secret = pair_secret(first, publics[1], session)
        agreed(secret, pair_secret(second, publics[0], session), "a pair secret from both sides")
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


def mask_vectors():
    cases = []
    contexts = [  # round, pair, receiver, exponent, group, view
        (0, (0, 1), 2, 0, [0, 1], [0, 1]),
        (7, (5, 3), 4, -90, [3, 5, 9], [1, 3, 5, 9]),
        (1, (256, 65535), 70000, 128, [256, 65535], [*range(8), 256, 65535]),
        (4294967295, (4294967294, 4294967295), 0, 3, [4294967294, 4294967295], [4294967294, 4294967295]),
    ]
    for k, (round_, nodes, receiver, exponent, group, view) in enumerate(contexts):
        secret, session = draw(f"mask secret {k}", 64), draw(f"mask session {k}", 16)
        ends = [(node, draw(f"mask seed {k} {node}", 16)) for node in nodes]
        terms, common = bytes([exponent + 127]) + members_bytes(group, view), draw(f"common {k}", 32)
        block = mask_block(secret, session, round_, ends, receiver, terms, common)
        cases.append(
            {
                "secret": secret.hex(),
                "session": session.hex(),
                "round": round_,
                "nodes": nodes,
                "seeds": [seed.hex() for _, seed in ends],
                "receiver": receiver,
                "exponent": exponent,
                "group": group,
                "view": view,
                "terms": terms.hex(),
                "common": common.hex(),
                "key": block[:32].hex(),
                "check": block[32:36].hex(),
            }
        )
    return cases


def digest_vectors():
    """What two nodes have in common: a hash of the bitmap, padded to whole 64-bit words."""
    cases = []
    for size in (1, 8, 64, 65, 300):
        sets = [
            {p for p, n in enumerate(numbers(f"{who} {size}", size)) if n % 2} for who in ("own", "theirs")
        ]
        common = bitmap_of(sets[0] & sets[1], size)
        padded = common + bytes(-len(common) % 8)
        bitmaps = [bitmap_of(members, size).hex() for members in sets]
        cases.append({"size": size, "bitmaps": bitmaps, "digest": hashlib.sha256(padded).hexdigest()})
    return cases


def facts_vectors():
    """What a share rests on: its sender's seed, the receiver's terms, and by partner seed and digest."""
    cases = []
    for partners in ([], [3], [9, 2, 70000]):
        seed = draw(f"facts seed {len(partners)}", 16)
        known = {j: (draw(f"facts seed of {j}", 16), draw(f"facts digest {j}", 32)) for j in partners}
        terms = draw(f"facts terms {len(partners)}", 1 + len(partners))
        told = seed + terms + b"".join(known[j][0] + known[j][1] for j in sorted(partners))
        cases.append(
            {
                "seed": seed.hex(),
                "terms": terms.hex(),
                "partners": [[j, known[j][0].hex(), known[j][1].hex()] for j in partners],
                "facts": hashlib.sha256(b"cesar facts" + told).digest()[:8].hex(),
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
    return {"packing": cases, "nearest": nearest}


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
    for exponent, indices in ((0, b"\x01\x09"), (-90, b"\x06" + draw("announced", 16)), (128, b"")):
        seed = draw(f"announce {exponent}", 16)
        fields = {"seed": seed.hex(), "exponent": exponent, "indices": indices.hex()}
        cases.append(in_frame("announce", seed + bytes([exponent + 127]) + indices, fields))
    return cases


def relay_frame_vectors():
    cases = []
    long_view = [*range(1, 9), 70000]
    for view, group, sets in (
        ([2, 4, 7], [2, 7], [b"\x01\x05"]),
        (long_view, long_view, [b"", b"\x00", draw("relayed", 40)]),
        ([1, 3], [], []),
    ):
        items = [(draw(f"relay item {k}", 16), indices) for k, indices in enumerate(sets)]
        body = bytes([3 + 127]) + members_bytes(group, view)
        body += b"".join(seed + u32(len(indices)) + indices for seed, indices in items)
        shown = [{"seed": seed.hex(), "indices": indices.hex()} for seed, indices in items]
        cases.append(in_frame("relay", body, {"exponent": 3, "view": view, "group": group, "items": shown}))
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


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────

FILES = {
    "keystream": keystream_vectors,
    "kdf": kdf_vectors,
    "packing": packing_vectors,
    "codecs": codec_vectors,
    "subsample": subsample_vectors,
    "wire": wire_vectors,
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
