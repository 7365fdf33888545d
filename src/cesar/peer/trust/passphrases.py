"""Passphrases of private keys: from a file, from the environment, or asked for on a terminal; never an argument, which others see.

CESAR_PASSPHRASE_FILE, CESAR_PASSPHRASE          of a peer's keys
CESAR_CA_PASSPHRASE_FILE, CESAR_CA_PASSPHRASE    of an authority's key
"""

from __future__ import annotations

import getpass
import os
import sys
from functools import cache
from pathlib import Path

from cesar.base.errors import ConfigError
from cesar.peer.trust.keyfiles import read_private

PEER, AUTHORITY = "CESAR_PASSPHRASE", "CESAR_CA_PASSPHRASE"


def known(variable: str, what: str) -> bytes:
    """The passphrase of keys that exist.

    Args:
        variable: `PEER` or `AUTHORITY`.
        what: which key, for the person who is asked.

    Raises:
        ConfigError: there is none, and nobody to ask.
    """
    return _given(variable) or _asked(what)


def chosen(variable: str, what: str) -> bytes:
    """A passphrase for new keys; who is asked types it twice."""
    given = _given(variable)
    if given is not None:
        return given
    first = _asked(what)
    if getpass.getpass("The same again: ").encode() != first:
        raise ConfigError("the two passphrases differ; nothing was made")
    return first


def _given(variable: str) -> bytes | None:
    file = os.environ.get(f"{variable}_FILE")
    found = read_private(Path(file)).rstrip(b"\r\n") if file else os.environ.get(variable, "").encode()
    if file and not found:
        raise ConfigError(f"{file} is empty, but {variable}_FILE says that a passphrase is in it")
    return found or None


@cache
def _asked(what: str) -> bytes:
    """Asked for once: several parts of a program may need it."""
    if not sys.stdin.isatty():
        names = f"{PEER}_FILE or {PEER} (of an authority {AUTHORITY}_FILE or {AUTHORITY})"
        raise ConfigError(f"{what} needs a passphrase, and there is no terminal to ask at; set {names}")
    said = getpass.getpass(f"Passphrase of {what}: ").encode()
    if not said:
        raise ConfigError(f"{what} needs a passphrase that is not empty")
    return said
