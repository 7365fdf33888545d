"""Several signers of a roster: with the authority, k of n people whose keys lie elsewhere.

A roster may name signers and how many of them must sign. Every newer version counts only if that number of the signers whom the
version *before* names have signed it: the one that a peer goes by, as TUF has it for its root. So the authority's key alone can change nothing,
nor name other signers. Without signers the authority decides by itself: one of one.

A signature is ECDSA P-256 over "cesar cosigned 1" ‖ 0 ‖ the bytes of the roster object, as the authority's is over another label. It stands in the file behind the
authority's, "authority;mark:signature;mark:signature", by ascending marks: the first eight hexadecimal digits of the SHA-256 of a key.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from cesar.base.errors import ConfigError
from cesar.peer.trust.certificates import check_curve, check_name

MOST = 16
_DOMAIN = b"cesar cosigned 1\0"


@dataclass(frozen=True, slots=True)
class Signers:
    """Who must sign the next version.

    Attributes:
        threshold: k.
        keys: name → public key (DER, in hexadecimal).
    """

    threshold: int
    keys: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.threshold <= len(self.keys) <= MOST:
            raise ConfigError(
                f"{self.threshold} of {len(self.keys)} signers cannot be: at least one, not more than there are, and {MOST} of "
                "them at the most"
            )
        for name, key in self.keys.items():
            check_name(name)
            read_public_key(key)
        if len({mark_of(key) for key in self.keys.values()}) != len(self.keys):
            raise ConfigError("two signers have one key; each makes its own with `cesar network signer`")

    @classmethod
    def of(cls, value: object) -> Signers | None:
        """As a roster names them; None if it names none.

        Raises:
            ConfigError: they cannot be.
        """
        match value:
            case None:
                return None
            case {"threshold": int() as threshold, "keys": dict() as keys, **rest} if not rest and all(
                isinstance(key, str) for key in keys.values()
            ):
                return cls(threshold, keys)
            case _:
                raise ConfigError(
                    "the roster names signers in a way that this version does not know; update cesar"
                )

    def to_json(self) -> dict[str, object]:
        return {"threshold": self.threshold, "keys": dict(self.keys)}

    def who(self, body: bytes, marked: Mapping[str, bytes]) -> list[str]:
        """The names of those who have signed a roster object; `marked` has what stands in its file."""
        return [
            name for name, key in sorted(self.keys.items()) if _signed(key, body, marked.get(mark_of(key)))
        ]

    def objection(self, body: bytes, marked: Mapping[str, bytes]) -> str | None:
        """Why a version does not count, in words; None if it does."""
        found = self.who(body, marked)
        if len(found) >= self.threshold:
            return None
        lacking = ", ".join(name for name in sorted(self.keys) if name not in found)
        return (
            f"it is signed by {len(found)} of the {self.threshold} signers that the version before it asks for "
            f"({', '.join(found) or 'none'}; not by {lacking}); they sign with `cesar network cosign`"
        )


def mark_of(key: str) -> str:
    """A short name of a public key."""
    return hashlib.sha256(key.encode()).hexdigest()[:8]


def public_of(key: ec.EllipticCurvePrivateKey) -> str:
    """The public half, as a roster lists it."""
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo).hex()


def read_public_key(text: str) -> ec.EllipticCurvePublicKey:
    """A signer's public key.

    Raises:
        ConfigError: it is none.
    """
    try:
        return check_curve(load_der_public_key(bytes.fromhex(text.strip())))
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError("that is no signer's public key; `cesar network signer` makes one") from None


def cosign(key: ec.EllipticCurvePrivateKey, body: bytes) -> tuple[str, bytes]:
    """Mark and signature of a signer."""
    return mark_of(public_of(key)), key.sign(_DOMAIN + body, ec.ECDSA(hashes.SHA256()))


def joined(authority: str, marked: Mapping[str, bytes]) -> str:
    """All signatures as they stand in the file."""
    return ";".join(
        [authority, *(f"{mark}:{base64.b64encode(marked[mark]).decode()}" for mark in sorted(marked))]
    )


def parted(text: str) -> tuple[str, dict[str, bytes]]:
    """The authority's signature, and the others by mark.

    Raises:
        ConfigError: they are spelled in another way than `joined` does.
    """
    first, *others = text.split(";")
    marked: dict[str, bytes] = {}
    try:
        for other in others:
            mark, _, signature = other.partition(":")
            marked[mark] = base64.b64decode(signature, validate=True)
    except ValueError:
        marked = {}
    if joined(first, marked) != text:
        raise ConfigError("the signatures of the roster are spelled as none are; fetch it again")
    return first, marked


def _signed(key: str, body: bytes, signature: bytes | None) -> bool:
    if signature is None:
        return False
    try:
        read_public_key(key).verify(signature, _DOMAIN + body, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True
