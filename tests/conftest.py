"""Settings of the whole suite."""

import os

from hypothesis import HealthCheck, settings

from models.privacy import silence

silence(os.environ)

# How long an example takes says more about the machine than about the code. In CI examples are always the same: new
# ones are looked for where somebody can look at what they find.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("suite")
