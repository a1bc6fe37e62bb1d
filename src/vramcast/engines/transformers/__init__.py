"""Hugging Face transformers: one batch through eager modules, keys and values concatenated token by token.

[HF] huggingface/transformers generation/utils.py, cache_utils.py, models/*/modeling_*.py, releases 4.30 to 5.23
"""
