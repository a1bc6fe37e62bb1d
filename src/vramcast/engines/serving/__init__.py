"""What serving engines share: weights on a rank, layers of a pipeline stage, caches."""
