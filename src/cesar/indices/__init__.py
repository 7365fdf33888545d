"""Sets of parameter positions, and how they are written to the wire."""

from cesar.indices.codecs import Code, decode, encode
from cesar.indices.indexset import IndexSet

__all__ = ["Code", "IndexSet", "decode", "encode"]
