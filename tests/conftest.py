"""What all tests share."""

from hypothesis import HealthCheck, settings

# .ci/run tests its environments side by side: how long an example takes there says nothing about it.
settings.register_profile("vramcast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vramcast")
