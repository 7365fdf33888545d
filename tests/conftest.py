"""Its place makes `tests/` importable: `oracle` and `harness` are shared by the test modules."""
