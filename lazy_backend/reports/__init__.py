"""Reports: what ran where, and what the tests have shown."""
