"""One node as a process of its own: who it is, whom it knows, and how it talks to them."""
