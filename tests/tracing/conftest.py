"""Tests of tracing need torch; without it they are skipped."""

import pytest

pytest.importorskip("torch")
