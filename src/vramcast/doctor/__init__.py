"""Diagnosis: what servers say about themselves, held against what was predicted."""
