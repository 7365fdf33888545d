"""Experiments: one TOML file in, a folder of results out, in this process or on a Ray cluster.

Imports `learn`, `data` and the library's simulator. Begin with `execute`.
"""
