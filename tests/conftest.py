"""How the tests run: nobody fails for being slow, and CI tries the same examples each time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "everywhere",
    deadline=None,  # the machine may be busy
    max_examples=60,
    derandomize=bool(os.environ.get("CI")),  # elsewhere every run looks at new ones
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("everywhere")
