"""A torchx scheduler for Grid Engine (SGE and its heirs), as a plugin package."""

from torchx_gridengine.answers import STATES, app_state
from torchx_gridengine.scheduler import GridEngineScheduler, create_scheduler

__all__ = ["STATES", "GridEngineScheduler", "app_state", "create_scheduler"]
