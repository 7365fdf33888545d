"""Measurements beside a floor from the same run, because machines are noisy."""
