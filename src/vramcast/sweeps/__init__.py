"""Thousands of questions from one file: read, answered on one machine or a Ray cluster, kept through crashes."""
