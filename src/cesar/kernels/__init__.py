"""The inner loops, compiled: bitmaps, fixed point on the ring, packed words, linear systems.

Imports `base` alone. Speed lives here and nowhere else; begin with `ring`, whose docstring says why nothing overflows.
"""
