"""A private key under a passphrase, in an envelope of our own.

PKCS#8 as libraries write it asks 2,048 times for a hash, which a graphics card does a million times a second: a passphrase that
people can remember does not hold out. scrypt with n = 2^17 takes 128 MiB for every guess. The envelope is text, as PEM is:

    -----BEGIN CESAR ENCRYPTED KEY-----
    base64 of: version (u8, 1), log2 n (u8), r (u8), p (u8), salt (16 bytes), nonce (12 bytes), AES-256-GCM of the key's PKCS#8 (DER)
    -----END CESAR ENCRYPTED KEY-----

Everything before the nonce is authenticated with the key.
"""

from __future__ import annotations

import base64
import os
import struct
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from cesar.base.errors import EncodingError, PassphraseError

_BEGIN, _END = b"-----BEGIN CESAR ENCRYPTED KEY-----", b"-----END CESAR ENCRYPTED KEY-----"
_HEAD = struct.Struct("<BBBB16s")
_NONCE = 12
VERSION, LOG_N, R, P = 1, 17, 8, 1
MOST = 20
"""2^20 takes a gigabyte: no file may ask for more."""


def is_sealed(data: bytes) -> bool:
    return data.lstrip().startswith(_BEGIN)


def seal(secret: bytes, passphrase: bytes) -> bytes:
    """The envelope of a secret."""
    head, nonce = _HEAD.pack(VERSION, LOG_N, R, P, os.urandom(16)), os.urandom(_NONCE)
    closed = head + nonce + AESGCM(_derive(passphrase, head)).encrypt(nonce, secret, head)
    text = base64.b64encode(closed)
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return b"\n".join((_BEGIN, *lines, _END, b""))


@lru_cache(
    maxsize=4
)  # a peer looks at its keys in every round while a certificate that is not in the roster lies beside them
def unseal(data: bytes, passphrase: bytes) -> bytes:
    """The secret of an envelope.

    Raises:
        EncodingError: it is none, or asks for less work than a guess must cost, or for too much.
        PassphraseError: it was closed with another, or somebody has changed it.
    """
    try:
        text = data.strip().removeprefix(_BEGIN).removesuffix(_END)
        closed = base64.b64decode(b"".join(text.split()), validate=True)
        version, log_n, r, p, _ = _HEAD.unpack_from(closed)
    except (ValueError, struct.error):
        raise EncodingError("this is not an encrypted key") from None
    if version != VERSION or not LOG_N <= log_n <= MOST or (r, p) != (R, P):
        raise EncodingError("it was encrypted in a way that this release does not know")
    head, rest = closed[: _HEAD.size], closed[_HEAD.size :]
    try:
        return AESGCM(_derive(passphrase, head)).decrypt(rest[:_NONCE], rest[_NONCE:], head)
    except (InvalidTag, ValueError):
        raise PassphraseError("the passphrase does not open this envelope") from None


def _derive(passphrase: bytes, head: bytes) -> bytes:
    _, log_n, r, p, salt = _HEAD.unpack(head)
    return Scrypt(salt, 32, 1 << log_n, r, p).derive(passphrase)
