"""Out-of-memory texts diagnosed: why memory ran out, how sure that is, what would help and by how much."""
