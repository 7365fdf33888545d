"""Names that people take for the same although their letters differ.

Two peers of one hospital that are written as two owners count as two colluders. A person who compares requests sees the difference
between "hospital" and "clinic", and not that between "hospital" and "hоspital", whose second letter is Cyrillic. So a name has
letters of one script, and two names may not have the same `skeleton`: what is left when accents, signs, cases and look-alikes
are taken away. The table has letters that look alike in common typefaces; it is not all of Unicode.
"""

from __future__ import annotations

import unicodedata

_ALIKE = str.maketrans(
    # Cyrillic
    "авеёкмнорстухіјѕһԁԛԝүьпг"
    # Greek
    "αβγεζηικμνορτυχωϲϳ"
    # Armenian and others that pass for Latin letters
    "օսհոգզſıɑɡɩʟ"
    # figures and signs
    "01|!",
    "abeekmhopctyxijshdqwybnrabyeznikuvoptyxwcjouhnqqsiagilolll",
)
_PAIRS = (("rn", "m"), ("vv", "w"), ("cl", "d"))
_EAST = frozenset({"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"})
"""Scripts that are written together."""


def skeleton(name: str) -> str:
    """What two names that look alike have in common.

    >>> skeleton("Hоspital-1") == skeleton("hospitaI l")
    True
    """
    bare = "".join(
        letter
        for letter in unicodedata.normalize("NFKD", name).casefold()
        if not unicodedata.combining(letter)
    )
    plain = bare.translate(_ALIKE).replace("i", "l")
    plain = "".join(filter(str.isalnum, plain))
    for pair, letter in _PAIRS:
        plain = plain.replace(pair, letter)
    return plain


def scripts(name: str) -> set[str]:
    """Which scripts the letters of a name are of, by the names that Unicode gives them."""
    found = {
        unicodedata.name(letter, "UNKNOWN").split()[0]
        for letter in unicodedata.normalize("NFKC", name)
        if letter.isalpha()
    }
    return {"EAST"} | (found - _EAST) if found & _EAST else found
