"""`cesar peer install`: take what the authority signed for this site, and nothing else.

The folder that comes back is written by somebody else. Copying all of it would put its files in the place of the site's own keys
without a word. So four files are taken by their names, each is compared with what the site knows, and all of this before the
first one is written:

    certificate.pem   is for the keys of this site's own request, and signed by the authority
    ca.pem            is the authority's that this site has, or was compared over the telephone
    roster.json       is signed by that authority, lists this certificate, and is not older than the one that is here
    peer.toml         says where this peer listens, and the settings that all share; one that is here already stays
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from cesar.base import files
from cesar.base.errors import ConfigError
from cesar.peer.trust.certificates import (
    CertifiedNode,
    Request,
    check_issuer,
    fingerprint,
    read_authority,
    read_certificate,
    same_authority,
)
from cesar.peer.trust.config import FILE as PEER
from cesar.peer.trust.config import PeerConfig
from cesar.peer.trust.foreign import escaped
from cesar.peer.trust.keyfiles import CA_CERTIFICATE, CERTIFICATE, REQUEST, file_fingerprint, read_public
from cesar.peer.trust.roster import FILE as ROSTER
from cesar.peer.trust.roster import LIMIT, Roster

NAMES = (CERTIFICATE, CA_CERTIFICATE, ROSTER, PEER)
_OURS = {"peer": {"id", "listen", "status"}, "method": None, "rounds": None}
"""What a peer.toml from elsewhere may decide: not where keys lie, nor what is written down, nor who is asked."""


@dataclass(frozen=True, slots=True)
class Installed:
    """What was done.

    Attributes:
        taken: file → what it is, in words.
        kept: files of this site that stay as they are, although others came.
        ignored: names that nobody asked for.
        authority: SHA-256 of ca.pem.
    """

    taken: dict[str, str]
    kept: tuple[str, ...]
    ignored: tuple[str, ...]
    authority: str


def install(folder: Path, source: Path, sha256: str | None = None) -> Installed:
    """Take the files of `source` that this peer needs.

    Args:
        folder: this peer's.
        sha256: of ca.pem, as the authority reads it out; needed when this site has none yet.

    Raises:
        ConfigError: something does not fit; nothing was written.
    """
    try:
        found = sorted(path.name for path in source.iterdir())
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from None
    came = {name: _read(source / name) for name in NAMES if name in found}
    if not came:
        raise ConfigError(
            f"{source} has none of {', '.join(NAMES)}; is it the folder that the authority sent?"
        )
    keys = PeerConfig.load(folder).keys if (folder / PEER).exists() else folder
    authority = _authority(keys, came.get(CA_CERTIFICATE), sha256)
    taken, kept = {}, []
    places = {CERTIFICATE: keys, CA_CERTIFICATE: keys, ROSTER: folder, PEER: folder}
    described = {
        CERTIFICATE: lambda data: _certificate(keys, data, authority),
        CA_CERTIFICATE: lambda data: f"SHA-256 {file_fingerprint(data)}",
        ROSTER: lambda data: _roster(folder, keys, data, authority, came.get(CERTIFICATE)),
        PEER: _settings,
    }
    for name, data in came.items():
        said, mine = described[name](data), places[name] / name
        if name in {CA_CERTIFICATE, PEER} and mine.exists():
            if read_public(mine) != data:
                kept.append(name)
        else:
            taken[name] = said
    for name in taken:  # nothing is written before all of it was looked at
        files.write(places[name] / name, came[name])
    ignored = tuple(name for name in found if name not in came)
    return Installed(taken, tuple(kept), ignored, file_fingerprint(authority))


def _read(path: Path) -> bytes:
    if path.is_symlink():
        raise ConfigError(f"{path} is a link, and what it leads to is not what the authority sent")
    return read_public(path, LIMIT)


def _authority(keys: Path, came: bytes | None, sha256: str | None) -> bytes:
    """The certificate of the authority: the one that this site has, or one that somebody has compared."""
    mine = read_public(keys / CA_CERTIFICATE) if (keys / CA_CERTIFICATE).exists() else None
    if mine is None and came is None:
        raise ConfigError(f"there is no {CA_CERTIFICATE} here, and none came; ask the authority for its own")
    if mine is not None and came is not None and not same_authority(mine, came):
        raise ConfigError(
            f"{CA_CERTIFICATE} is that of another authority than the one beside this peer's keys; ask why over the telephone"
        )
    chosen = mine or came
    assert chosen is not None
    read_authority(chosen)
    if mine is None and sha256 is None:
        raise ConfigError(
            f"compare the SHA-256 of {CA_CERTIFICATE} with what the authority reads out, and give it with --sha256: "
            f"{file_fingerprint(chosen)}"
        )
    if sha256 is not None and "".join(sha256.split()).lower() != file_fingerprint(chosen):
        raise ConfigError(
            f"{CA_CERTIFICATE} has another SHA-256 than --sha256, so it is not what the authority read out"
        )
    return chosen


def _certificate(keys: Path, data: bytes, authority: bytes) -> str:
    certificate = read_certificate(data)
    check_issuer(certificate, read_authority(authority))
    named, asked = CertifiedNode.of(certificate), Request.load(keys / REQUEST)
    wanted, key = asked.open()
    if named != wanted or certificate.public_key() != key:
        raise ConfigError(
            f"{CERTIFICATE} is not what {keys / REQUEST} asked for: it names {_named(named)}, and the request {_named(wanted)}, "
            "or it is for other keys"
        )
    return f"{_named(named)}, until {certificate.not_valid_after_utc:%Y-%m-%d}"


def _named(named: CertifiedNode) -> str:
    return f"node {named.id} of {named.network}" + (
        "" if named.owner is None else f", a peer of {named.owner}"
    )


def _roster(folder: Path, keys: Path, data: bytes, authority: bytes, certificate: bytes | None) -> str:
    here = folder / ROSTER
    seen = Roster.load(here, authority).version if here.exists() else 0
    roster = Roster.parse(data, authority, at_least=seen)
    if certificate is None:
        certificate = read_public(keys / CERTIFICATE)
    mine = read_certificate(certificate)
    member = roster.members.get(CertifiedNode.of(mine).id)
    if member is None or fingerprint(mine) not in (member.fingerprint, member.former_fingerprint):
        raise ConfigError(f"{ROSTER} does not list {CERTIFICATE}; ask the authority for the newest of both")
    return f"version {roster.version} of {roster.network}, until {roster.expires:%Y-%m-%d}"


def _settings(data: bytes) -> str:
    try:
        tables = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise ConfigError(f"{PEER} cannot be read; ask the authority for another") from None
    for table, value in tables.items():
        allowed = _OURS.get(table, set())
        extra = set() if allowed is None else set(value if isinstance(value, dict) else [table]) - allowed
        if extra:
            raise ConfigError(
                f"{PEER} wants to decide {escaped(f'{table}.{min(extra)}', 80)}, which is this site's own business; ask the authority why"
            )
    listens = tables.get("peer", {}).get("listen")
    return f"listens at {escaped(str(listens), 80)}" if listens else "opens no port"
