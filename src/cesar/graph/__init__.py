"""Who is next to whom: what one node knows of the graph, graphs by name, cells and the graph of cells, and how much of a model is
shared.

Imports `base`, `kernels` and key derivation. Begin with `neighbourhood`, or for cells with `cells`.
"""
