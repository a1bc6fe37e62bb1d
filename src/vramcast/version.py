"""The version of this package; answers of two versions are never mixed."""

__version__ = "0.1.0"
