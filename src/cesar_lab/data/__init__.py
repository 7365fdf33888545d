"""Data sets in their official layouts, where they lie and how they are fetched, and which samples belong to which node.

Imports the library's `base` alone. Begin with `datasets`.
"""
