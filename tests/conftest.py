"""What holds for every test: generated examples are the same for the same tree, and nothing is timed."""

from __future__ import annotations

import os

from hypothesis import settings

# A busy machine fails no test; `HYPOTHESIS_PROFILE=search` looks for examples that nobody has seen yet.
settings.register_profile("sparkd", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "sparkd"))
