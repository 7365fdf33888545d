"""Lists as sentences have them."""

from __future__ import annotations

from collections.abc import Iterable


def listed(things: Iterable[object]) -> str:
    """All of them, with "and" before the last one; nothing if there are none.

    >>> listed([1, 5, 9]), listed(["Ada"]), listed([])
    ('1, 5 and 9', 'Ada', '')
    """
    *most, last = [str(thing) for thing in things] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def braced(things: Iterable[object]) -> str:
    """A set, as mathematicians write it.

    >>> braced([1, 5, 9])
    '{1, 5, 9}'
    """
    return "{" + ", ".join(map(str, things)) + "}"
