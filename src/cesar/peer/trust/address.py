"""host:port, as rosters, settings and browsers write it; an address of version 6 stands in brackets."""

from __future__ import annotations

import ipaddress
import re

from cesar.base.errors import ConfigError

_ADDRESS = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")


def check_address(address: str) -> str:
    """The address as it is.

    Raises:
        ConfigError: it is not host:port.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[1]) < 65536:
        raise ConfigError(f"{address!r} is not an address; write host:port, such as node.example.org:7400")
    return address


def split(address: str) -> tuple[str, int]:
    """Host and port of a checked address; the host as sockets want it, without brackets.

    >>> split("[::1]:7400")
    ('::1', 7400)
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def host_in(said: str) -> str:
    """The host in what a browser asked for: anything may stand there, and the port may be left out.

    >>> host_in("localhost:7500"), host_in("localhost"), host_in("[::1]")
    ('localhost', 'localhost', '::1')
    """
    # The colons of "[::1]" belong to the host, and "localhost" has none: then all of it is the host.
    host = said if said.endswith("]") else said.rpartition(":")[0]
    return (host or said).strip("[]")


def is_this_machine(host: str) -> bool:
    """Whether a host is this machine under a name that no other machine can have.

    >>> is_this_machine("127.0.0.2"), is_this_machine("127.example.org")
    (True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
