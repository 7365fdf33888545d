"""Experiments: one TOML file in, run directories and reports out."""
