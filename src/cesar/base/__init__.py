"""What everything else may use: names for plain values, every exception, named random streams, files, memory, lists in sentences.

Imports nothing of ours. Begin with `errors`: its docstring draws the whole tree.
"""
