"""One node as a process of its own, over mutual TLS.

`api` is what a training loop holds (begin with `api.peer`), `ops` what an operator looks at, `driver` the course of rounds, `net` the links,
`trust` who is in the network and how that is proved. A room imports only from those after it in this list.
"""
