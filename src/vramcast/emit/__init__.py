"""Recordings as files that other tools open: memory snapshots and traces."""
