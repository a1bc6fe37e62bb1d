"""What all tests share."""

import signal

from hypothesis import HealthCheck, settings

from vramcast.estimate.changes import BUGS

# .ci/run tests its environments side by side: how long an example takes there says nothing about it.
settings.register_profile("anew", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same code gets the same verdict twice: `pytest --hypothesis-profile anew` draws others each time, twice as many.
settings.register_profile("vramcast", settings.get_profile("anew"), derandomize=True, max_examples=50)
settings.load_profile("vramcast")

# A change that fails for a bug is left out of an answer; here it is what is looked for.
BUGS.are_raised = True

# Started in the background a shell leaves Ctrl-C ignored, and so would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
