"""Generated examples have no deadline of their own here: a slow core is not a failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("specs", deadline=None)
settings.load_profile("specs")
