"""Commands of people who sign a roster beside its authority."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric import ec
from rich.markup import escape

from cesar.base import files
from cesar.base.errors import ConfigError
from cesar.cli.options import Net
from cesar.cli.output import console
from cesar.peer.trust import changes, folder, keyfiles, passphrases
from cesar.peer.trust.roster import FILE, LIMIT, Roster
from cesar.peer.trust.signers import Signers, mark_of, public_of, read_public_key

KEY, PUBLIC = "signer.key", "signer.pub"


def signer(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the key comes to lie.")],
    open_: Annotated[bool, typer.Option("--no-passphrase", help="Leave the key unencrypted.")] = False,
) -> None:
    """Make the key of a signer: signer.key stays here, signer.pub goes to the authority."""
    keyfiles.make_private_folder(out)
    key = ec.generate_private_key(ec.SECP256R1())
    secret = None if open_ else passphrases.chosen(passphrases.AUTHORITY, str(out / KEY))
    keyfiles.write_private(out / KEY, keyfiles.private_pem(key, secret))
    files.write(out / PUBLIC, public_of(key) + "\n")
    console.print(
        f"{escape(str(out / PUBLIC))} has the mark {mark_of(public_of(key))}: read it out.", soft_wrap=True
    )


def name_signers(
    net: Net,
    keys: Annotated[
        list[str], typer.Option("--signer", metavar="NAME=FILE", help="A signer and its signer.pub.")
    ],
    threshold: Annotated[int, typer.Option(min=1, help="How many of them must sign.")],
) -> None:
    """Demand that a number of these sign every version after the next one."""
    found = {}
    for word in keys:
        name, _, path = word.partition("=")
        found[name] = keyfiles.read_public(Path(path)).decode(errors="replace").strip()
        read_public_key(found[name])
        console.print(
            f"{escape(name)}: {mark_of(found[name])}, which must be the mark that was read out.",
            soft_wrap=True,
        )
    changed = folder.Network.open(net).name_signers(Signers(threshold, found), now=datetime.now(UTC))
    console.print(
        f"Version {changed.roster.version} of the roster demands {threshold} of {len(found)} signatures from the next one on. "
        f"Give every site the new {escape(str(net / FILE))}.",
        soft_wrap=True,
    )


def cosign(
    file: Annotated[
        Path, typer.Argument(metavar="ROSTER", help="A roster that waits for signatures; it gets one more.")
    ],
    key: Annotated[Path, typer.Option(help="The signer.key.")],
    since: Annotated[Path, typer.Option(metavar="ROSTER", help="The one that holds now.")],
    ca: Annotated[Path, typer.Option(help="The authority's ca.pem.")],
    sha256: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="The digest of the roster to sign, instead of a question."),
    ] = None,
) -> None:
    """See in words what a roster changes, and sign it."""
    authority = keyfiles.read_public(ca)
    old, new = Roster.load(since, authority), Roster.parse(keyfiles.read_public(file, LIMIT), authority)
    if (old.network_id, True) != (new.network_id, new.version > old.version):
        raise ConfigError(f"version {new.version} does not follow version {old.version} of one network")
    console.print(
        f"Version {new.version} of the roster of {escape(new.network)}, after version {old.version}:"
    )
    for line in changes.differences(old, new) or ["nothing changes but its date"]:
        console.print(f"· {escape(line)}", soft_wrap=True, highlight=False)
    console.print(new.digest.hex(), style="dim", soft_wrap=True, highlight=False)
    if sha256 is not None and sha256.lower() != new.digest.hex():
        raise ConfigError("the roster has another digest than --sha256; look again at what it changes")
    if sha256 is None and not sys.stdin.isatty():
        raise ConfigError("give the digest above with --sha256, or sign at a terminal")
    if sha256 is None and not typer.confirm("Sign it?"):
        raise typer.Exit(1)
    private = keyfiles.read_tls_key(key, partial(passphrases.known, passphrases.AUTHORITY, str(key)))
    if old.signers is None or public_of(private) not in old.signers.keys.values():
        raise ConfigError(f"version {old.version} does not name this key among its signers")
    files.write(file, new.cosigned(private))
    missing = Roster.load(file, authority).follows(old)
    console.print(
        "Signed." + (" It counts now." if missing is None else f" Not enough yet: {escape(missing)}."),
        soft_wrap=True,
    )


def add_to(app: typer.Typer) -> None:
    """These commands are part of `cesar network`."""
    app.command("signer")(signer)
    app.command("signers")(name_signers)
    app.command("cosign")(cosign)
