"""A tracker of our own: one line of text for each value. See docs/trackers.md."""

from torchx.plugins import register
from torchx.tracker.api import Lineage, TrackerArtifact, TrackerBase


class Notes(TrackerBase):
    """One line of text for each value."""

    def __init__(self, path):
        self.path = path

    def add_metadata(self, run_id, **kwargs):
        with open(self.path, "a") as f:
            f.writelines(f"{run_id} {name}={value}\n" for name, value in kwargs.items())

    def metadata(self, run_id):
        with open(self.path) as f:
            lines = [line.rstrip("\n").split(" ", 1) for line in f]
        return dict(rest.split("=", 1) for run, rest in lines if run == run_id)

    def add_artifact(self, run_id, name, path, metadata=None):
        self.add_metadata(run_id, **{f"artifact.{name}": path})

    def artifacts(self, run_id):
        found = {n.removeprefix("artifact."): p for n, p in self.metadata(run_id).items() if n.startswith("artifact.")}
        return {name: TrackerArtifact(name, path, None) for name, path in found.items()}

    def add_source(self, run_id, source_id, artifact_name=None):
        self.add_metadata(run_id, source=source_id)

    def sources(self, run_id, artifact_name=None):
        return []

    def lineage(self, run_id):
        return Lineage()

    def run_ids(self, **kwargs):
        with open(self.path) as f:
            return list(dict.fromkeys(line.split(" ", 1)[0] for line in f))


@register.tracker
def notes(config):
    return Notes(config or "notes.txt")
