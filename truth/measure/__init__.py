"""Measured GPU memory: `python -m truth.measure --out FOLDER [--only REGEX] [--budget-s N] [--list] [--device cpu]`.

Runs every workload of `table.py` in a process of its own on whatever GPU there is, and writes what its memory did:
FOLDER/runs.jsonl (a line a workload: versions, card, peaks of every step at all levels, step times) and
FOLDER/events.N.jsonl.gz (the allocator's whole history). Results belong to truth/measured/<gpu>-<torch>/ and are never
edited; `python -m truth.measured` scores the traced path against them. `--device cpu` rehearses without a GPU.

Networks that need timm or transformers are left out, and named, where those are not installed.
"""
