"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A machine may be slow or busy: no test is about time. Fixtures of one function are fine where examples share them.
settings.register_profile(
    "florilegium",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("florilegium")
