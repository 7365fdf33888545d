"""The files of a peer's and an authority's folder: their names, and how secrets are written and read.

Private files are created with mode 0600 and never overwritten, and one that others can read is not loaded. One
encryption is replaced by a better one (`sealed`), with the same key in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
    load_pem_private_key,
)

from cesar.base import files
from cesar.base.errors import ConfigError, EncodingError, PassphraseError
from cesar.peer.trust import sealed

log = logging.getLogger("cesar.peer")

CA_KEY, CA_CERTIFICATE = "ca.key", "ca.pem"
TLS_KEY, AGREEMENT_KEY, CERTIFICATE, REQUEST = "key.pem", "agreement.key", "certificate.pem", "request.json"
_LIMIT = 1 << 16


def write_private(path: Path, data: bytes) -> None:
    """A secret into a new file that nobody else can read.

    Raises:
        ConfigError: the file exists. A key that is overwritten is gone for good.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists already, and a private key is never overwritten; choose another folder"
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(handle)


def read_private(path: Path) -> bytes:
    """A secret, if it is one: nobody but its owner may be able to read it."""
    with _opened(path) as handle:
        if os.name == "posix" and os.fstat(handle).st_mode & 0o077:
            raise ConfigError(
                f"others can read {path}; make it private with: chmod 600 {shlex.quote(str(path))}"
            )
        return os.read(handle, _LIMIT)


def read_public(path: Path, limit: int = _LIMIT) -> bytes:
    """A file of at most `limit` bytes."""
    with _opened(path) as handle, os.fdopen(handle, "rb", closefd=False) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ConfigError(f"{path} has more than {limit:,} bytes; that is not the file it should be")
    return data


def make_private_folder(folder: Path) -> None:
    """A folder for secrets; one that exists keeps its mode, and the files in it are private anyway."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    try:
        yield handle
    except IsADirectoryError:
        raise ConfigError(f"cannot read {path}: it is a folder") from None
    finally:
        os.close(handle)


def private_pem(key: ec.EllipticCurvePrivateKey | X25519PrivateKey, passphrase: bytes | None = None) -> bytes:
    """A private key as it stands in a file, encrypted if there is a passphrase."""
    if passphrase is None:
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return sealed.seal(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()), passphrase)


def read_tls_key(path: Path, passphrase: Callable[[], bytes]) -> ec.EllipticCurvePrivateKey:
    """A key that signs; `passphrase` is asked for if it is encrypted."""
    key = _read_key(path, passphrase)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is not a key on the curve P-256")
    return key


def read_agreement_key(path: Path, passphrase: Callable[[], bytes]) -> X25519PrivateKey:
    """A key from which masks follow."""
    key = _read_key(path, passphrase)
    if not isinstance(key, X25519PrivateKey):
        raise ConfigError(f"{path} is not an agreement key (X25519)")
    return key


def is_closed(path: Path) -> bool:
    """Whether a private key needs a passphrase."""
    data = read_private(path)
    return sealed.is_sealed(data) or _is_former(data)


def _is_former(data: bytes) -> bool:
    """Whether a key is encrypted as earlier releases did it, which is quick to guess."""
    return b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in data


def _read_key(path: Path, passphrase: Callable[[], bytes]) -> PrivateKeyTypes:
    data, closed = read_private(path), is_closed(path)
    secret = passphrase() if closed else None
    try:
        if secret is not None and sealed.is_sealed(data):
            return load_der_private_key(sealed.unseal(data, secret), None)
        key = load_pem_private_key(data, secret)
    except EncodingError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (PassphraseError, ValueError, TypeError, UnsupportedAlgorithm):
        # The library's message could quote the file, and the file is secret.
        wrong = f"that is not the passphrase of {path}" if closed else f"{path} is not a private key in PEM"
        raise ConfigError(wrong) from None
    if secret is not None and isinstance(key, ec.EllipticCurvePrivateKey | X25519PrivateKey):
        _seal_anew(path, private_pem(key, secret))
    return key


def _seal_anew(path: Path, closed: bytes) -> None:
    """Put a better envelope in the place of a file that is quick to guess."""
    try:
        files.write(path, closed, mode=0o600)
    except OSError as error:
        log.warning(
            "%s is encrypted in a way that is quick to guess and cannot be replaced (%s); make the folder "
            "writable for one start",
            path,
            error.strerror,
        )
    else:
        log.info("%s was encrypted in a way that is quick to guess; it was written anew with scrypt", path)


def file_fingerprint(data: bytes) -> str:
    """What `sha256sum` prints for the file, to compare over the telephone."""
    return hashlib.sha256(data).hexdigest()
