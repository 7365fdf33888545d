"""Models, losses and local training. Nothing here knows of masks or frames.

Imports `data`. Begin with `training`.
"""
