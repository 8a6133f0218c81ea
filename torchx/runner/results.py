"""What came out of a sweep: beside the values that its tasks differ in, what each wrote to a tracker."""

from __future__ import annotations

from torchx.runs import default_registry
from torchx.util.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx.tracker.api import TrackerBase


@dataclass(frozen=True, kw_only=True)
class SweepResults:
    """One entry a task in each list.

    Attributes:
        names: of the values that the tasks differ in.
        points: for each task its values, in the order of ``names``.
        metadata: for each task what it wrote to the tracker; empty where it wrote nothing.
    """

    names: Sequence[str]
    points: Sequence[Sequence[str]]
    metadata: Sequence[Mapping[str, object]]

    def columns(self) -> list[str]:
        """The names of what tasks wrote, in order of appearance, but for those of values that they were given.

        >>> SweepResults(names=["lr"], points=[["1e-1"]], metadata=[{"lr": 0.1, "loss": 2.5}]).columns()
        ['loss']
        """
        return [name for name in dict.fromkeys(n for found in self.metadata for n in found) if name not in self.names]


def read_results(handle: str, tracker: TrackerBase) -> SweepResults | None:
    """Reads what the tasks of a sweep wrote; None of a job that is not a sweep on record."""
    registry = default_registry()
    tasks = registry.tasks(registry.get(handle))
    if tasks is None:
        return None
    metadata = [dict(tracker.metadata(f"{handle}/{k}")) for k in range(len(tasks.points))]
    return SweepResults(names=list(tasks.names), points=tasks.points, metadata=metadata)
