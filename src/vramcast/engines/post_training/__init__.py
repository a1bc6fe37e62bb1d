"""Post-training frameworks: a trainer and an engine that generates, on the same cards or apart."""
