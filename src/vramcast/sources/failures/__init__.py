"""Any text about memory that ran out -> statements with exact figures, and facts that help to explain them."""

from vramcast.sources.failures.families import FAMILIES
from vramcast.sources.failures.figures import NUMBERS
from vramcast.sources.failures.files import read_failure_file
from vramcast.sources.failures.found import Fact, Failures
from vramcast.sources.failures.read import read_failures

__all__ = ["FAMILIES", "NUMBERS", "Fact", "Failures", "read_failure_file", "read_failures"]
