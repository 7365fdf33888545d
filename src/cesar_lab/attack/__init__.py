"""Attacks on recorded runs: they measure what is left to learn for somebody who follows the protocol.

An attack is handed what its adversary sees in a run, no more; the truth is used to judge it afterwards.
"""
