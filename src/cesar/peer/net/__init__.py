"""Links: gRPC with mutual TLS, one conversation per neighbour, large frames in pieces. Frames are opaque here.

Imports `trust` for certificates and addresses. Begin with `transport`.
"""
