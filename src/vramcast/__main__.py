"""`python -m vramcast`."""

from vramcast.cli.main import process

process()
