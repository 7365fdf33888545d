"""What a training loop holds: `Peer`, and the way from a PyTorch module to one vector and back.

The only room of peers that imports torch. Begin with `peer`.
"""
