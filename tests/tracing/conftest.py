"""Tests of tracing need torch; without it none is collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["*"]
