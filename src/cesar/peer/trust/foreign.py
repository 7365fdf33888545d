"""Words that come from outside, fit to be shown: on one line, without codes that move a terminal's cursor or turn text around.

They are escaped where they come in, so that every log and every page has them so, and once more where they are printed.
"""

from __future__ import annotations

MOST = 300
"""No more letters of a stranger's words are worth a line."""


def escaped(text: str, most: int | None = None, *, keep: str = "") -> str:
    r"""The text with everything that cannot be printed written out.

    Args:
        most: how many letters to show.
        keep: what may stay, such as the line breaks of our own messages.

    >>> escaped("no\n\x1b[2Jyes \u202e", 11)
    'no\\n\\x1b[2Jye …'
    """
    shown = text if most is None or len(text) <= most else f"{text[: most - 2]} …"
    return "".join(
        letter
        if letter.isprintable() or letter in keep
        else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in shown
    )
