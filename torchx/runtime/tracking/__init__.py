"""Results of trials, stored where the program that started them can read them.

>>> import tempfile
>>> base = tempfile.mkdtemp()
>>> FsspecResultTracker(base).put("trial_1", accuracy=0.97)
>>> FsspecResultTracker(base).get("trial_1")
{'accuracy': 0.97}
"""

from torchx.runtime.tracking.api import FsspecResultTracker, ResultTracker

__all__ = ["FsspecResultTracker", "ResultTracker"]
