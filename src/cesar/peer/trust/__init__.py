"""Who is in the network and how that is proved: keys, certificates, the signed roster, the settings that all share.

Knows nothing of links or rounds. Begin with `roster`.
"""
