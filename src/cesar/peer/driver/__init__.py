"""The course of rounds: who is there, which round it is, when to go on, and what is on disk before a frame leaves.

Drives one `cesar.node.Node` over the links of `net`. Begin with `runtime`.
"""
