"""What the tests share: the oracle, random cases, networks of peers, and processes that are killed."""
