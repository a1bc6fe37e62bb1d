"""Any text about memory that ran out -> statements with exact figures, and facts that help to explain them."""

from vramcast.sources.failures.families import FAMILIES
from vramcast.sources.failures.read import Fact, Failures, read_failure_file, read_failures
from vramcast.sources.failures.wording import NUMBERS

__all__ = ["FAMILIES", "NUMBERS", "Fact", "Failures", "read_failure_file", "read_failures"]
