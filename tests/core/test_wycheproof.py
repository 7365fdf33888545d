"""Vectors that strangers wrote to break implementations (Wycheproof), through the functions that peers call."""

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cesar.base.errors import DataError
from cesar.crypto.keys import KeyPair, hkdf_expand_block, hkdf_extract

FOLDER = Path(__file__).parents[1] / "vectors" / "wycheproof"


def groups(name):
    return json.loads((FOLDER / f"{name}_test.json").read_text(encoding="utf-8"))["testGroups"]


def cases(name):
    return [(group, test) for group in groups(name) for test in group["tests"]]


def said(test):
    return f"case {test['tcId']}, {test['comment']}, {test['flags']}"


def test_the_files_are_those_that_the_page_beside_them_names():
    listed = re.findall(
        r"`(\w+\.json)` \| `([0-9a-f]{64})`", (FOLDER / "README.md").read_text(encoding="utf-8")
    )
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.glob("*.json")}
    assert dict(listed) == found
    assert "Apache License" in (FOLDER / "LICENSE").read_text(encoding="utf-8")


def test_x25519():
    """518 agreements. A public key that gives zero with every private key is refused, though the standard lets it pass."""
    refused = 0
    for _, test in cases("x25519"):
        private, public = bytes.fromhex(test["private"]), bytes.fromhex(test["public"])
        pair = KeyPair.generate(lambda count, private=private: private[:count])
        if "ZeroSharedSecret" in test["flags"]:
            with pytest.raises(DataError, match="not a usable X25519 key"):
                pair.agree(public, bytes(16))
            refused += 1
        else:
            assert pair.exchange(public).hex() == test["shared"], said(test)
    assert refused == 31


def test_hkdf():
    """80 derivations, of which ours are the first block; a request for too much cannot be made at all."""
    checked = 0
    for _, test in cases("hkdf_sha512"):
        if test["result"] == "invalid":
            assert test["flags"] == ["SizeTooLarge"]
            continue
        secret = hkdf_extract(bytes.fromhex(test["salt"]), bytes.fromhex(test["ikm"]))
        block = hkdf_expand_block(secret, bytes.fromhex(test["info"]))
        length = min(test["size"], len(block))
        assert block[:length].hex() == test["okm"][: 2 * length], said(test)
        checked += 1
    assert checked == 80


def certificate(public):
    """A certificate with somebody else's key, as `verify` takes it; who signed it does not matter there."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a stranger")])
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return (
        x509.CertificateBuilder(name, name, public, 1, start, start + timedelta(days=1))
        .sign(ec.derive_private_key(7, ec.SECP256R1()), hashes.SHA256())
    )  # fmt: skip


def test_ecdsa():
    """484 signatures under 113 keys: the roster's check takes the valid ones, and no other encoding of them."""
    verify = pytest.importorskip("cesar.peer.trust.authority", exc_type=ImportError).verify
    taken = 0
    for group in groups("ecdsa_secp256r1_sha256"):
        public = serialization.load_der_public_key(bytes.fromhex(group["publicKeyDer"]))
        authority = certificate(public)
        for test in group["tests"]:
            valid = verify(authority, bytes.fromhex(test["sig"]), bytes.fromhex(test["msg"]))
            assert valid == (test["result"] == "valid"), said(test)
            taken += valid
    assert taken == 174
