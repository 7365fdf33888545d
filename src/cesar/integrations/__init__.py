"""Peers in the training loops of others: a callback each for Transformers and Lightning."""
