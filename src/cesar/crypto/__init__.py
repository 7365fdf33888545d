"""Keys, key derivation and keystreams: the only code that touches a cipher."""
