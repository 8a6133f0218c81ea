"""``torchx tracker``: list what jobs wrote to a tracker."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from torchx.cli.argparse_util import JSON, declare
from torchx.cli.cmd_base import SubCommand
from torchx.cli.failures import note
from torchx.cli.log_targets import JOB_HELP, or_last
from torchx.cli.render import document, table
from torchx.errors import BackendError, NotFoundError, TorchXError
from torchx.runner import get_runner
from torchx.runner.ground.trackers import choose_tracker
from torchx.runner.show.json_output import results_fields
from torchx.runner.sweeps.sweeps import read_results
from torchx.tracker.api import Lineage, TrackerArtifact, TrackerBase
from torchx.util.reexports import reexports
from torchx.util.strings import did_you_mean
from torchx.util.term import is_tty

reexports(__name__)

T = TypeVar("T")


class CmdTracker(SubCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = "`torchx tracker` alone means `torchx tracker list metadata @last`."
        verbs = subparser.add_subparsers(title="what to do", metavar="list", dest="tracker_verb")
        text = "list what is in a tracker"
        kinds = verbs.add_parser("list", description=text, help=text).add_subparsers(
            title="of what", metavar="jobs|metadata|artifacts|lineage", dest="tracker_kind"
        )
        for name, line, add, run in (
            ("jobs", "jobs that wrote to the tracker", self.add_list_job_arguments, self.list_jobs_command),
            ("metadata", "metadata of a job", self.add_metadata_arguments, self.list_metadata_command),
            ("artifacts", "artifacts of a job", self.add_artifacts_arguments, self.list_artifacts_command),
            ("lineage", "sources and descendants of a job", self.add_job_lineage_arguments, self.job_lineage_command),
        ):
            parser = kinds.add_parser(name, description=line, help=line)
            add(parser)
            declare(parser, (("--tracker", "NAME", "default: the first configured tracker"), JSON))
            parser.set_defaults(func=run, _parser=parser)

    def run(self, args: argparse.Namespace) -> None:
        """List the metadata of the newest run: `torchx tracker` without further words."""
        args.RUN_ID, args.tracker, args.json = None, None, False
        self.list_metadata_command(args)

    @property
    def tracker(self) -> TrackerBase:
        """The first configured tracker.

        Raises:
            ConfigError: no tracker is configured.
        """
        return choose_tracker()[1]

    def add_list_job_arguments(self, subparser: argparse.ArgumentParser) -> None:
        declare(subparser, [("--parent-run-id --parent_run_id", "RUN_ID", "only jobs whose parent is this run")])

    def add_metadata_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("RUN_ID", nargs="?", help=JOB_HELP)

    def add_artifacts_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("--artifact", metavar="NAME", help="only the artifact of this name")
        subparser.add_argument("RUN_ID", nargs="?", help=JOB_HELP)

    def add_job_lineage_arguments(self, subparser: argparse.ArgumentParser) -> None:
        only = subparser.add_mutually_exclusive_group()
        sources, descendants = "only jobs that this one used", "only jobs that used this one"
        only.add_argument("--sources-only", "--sources_only", action="store_true", help=sources)
        only.add_argument("--descendants-only", "--descendants_only", action="store_true", help=descendants)
        subparser.add_argument("--artifact", metavar="NAME", help="only jobs that used this artifact")
        subparser.add_argument("RUN_ID", nargs="?", help=JOB_HELP)

    def list_jobs_command(self, args: argparse.Namespace) -> None:
        name, tracker = choose_tracker(args.tracker)
        parent = _run_id(args.parent_run_id) if args.parent_run_id else None
        given = {"parent_run_id": parent} if parent else {}
        ids = _ask(name, lambda: list(tracker.run_ids(**given)))
        if args.json:
            _document(name, None, jobs=[{"id": run_id} for run_id in ids])
        else:
            _table(["JOB"], [[run_id] for run_id in ids], nothing=f"no job has written to the tracker `{name}`")

    def list_metadata_command(self, args: argparse.Namespace) -> None:
        """Print names and values; for a sweep a row per task."""
        name, tracker = choose_tracker(args.tracker)
        run_id = _run_id(args.RUN_ID)
        results = _ask(name, lambda: read_results(run_id, tracker))
        values = _ask(name, lambda: dict(tracker.metadata(run_id)))
        if not values and results is None:
            _must_be_known(name, tracker, run_id)
        if args.json:
            _document(name, run_id, metadata=values, **({"tasks": results_fields(results)} if results else {}))
        elif results is not None:
            columns = results.columns()
            found = zip(results.points, results.metadata, strict=True)
            tasks = [
                [str(k), *point, *(_text(wrote[c]) if c in wrote else "" for c in columns)]
                for k, (point, wrote) in enumerate(found)
            ]
            _table(["TASK", *results.names, *columns], tasks, nothing="")
        else:
            rows = [[key, _text(values[key])] for key in sorted(values)]
            _table(["NAME", "VALUE"], rows, nothing=f"`{run_id}` has written no metadata")

    def list_artifacts_command(self, args: argparse.Namespace) -> None:
        name, tracker = choose_tracker(args.tracker)
        run_id = _run_id(args.RUN_ID)
        found = _ask(name, lambda: dict(tracker.artifacts(run_id)))
        if not found:
            _must_be_known(name, tracker, run_id)
        shown = [a for a in found.values() if args.artifact in (None, a.name)]
        if args.json:
            _document(name, run_id, artifacts=[_artifact_fields(a) for a in shown])
        else:
            rows = [[a.name, a.path, _text(dict(a.metadata)) if a.metadata else ""] for a in shown]
            _table(["ARTIFACT", "PATH", "METADATA"], rows, nothing=f"`{run_id}` has no such artifact")

    def job_lineage_command(self, args: argparse.Namespace) -> None:
        name, tracker = choose_tracker(args.tracker)
        run_id = _run_id(args.RUN_ID)
        found = _ask(name, lambda: _lineage(tracker, run_id, args.artifact))
        if not found.sources and not found.descendants:
            _must_be_known(name, tracker, run_id)
        sources = [] if args.descendants_only else found.sources
        descendants = [] if args.sources_only else found.descendants
        if args.json:
            fields: dict[str, Any] = {
                "sources": None
                if args.descendants_only
                else [{"id": s.source_run_id, "artifact": s.artifact_name} for s in sources],
                "descendants": None if args.sources_only else [{"id": run_id} for run_id in descendants],
            }
            _document(name, run_id, **fields)
            return
        rows = [["made from", s.source_run_id, s.artifact_name or ""] for s in sources]
        rows += [["used by", job, ""] for job in descendants]
        _table(["RELATION", "JOB", "ARTIFACT"], rows, nothing=f"`{run_id}` has no lineage of this kind")


def _run_id(reference: str | None) -> str:
    """Resolve a short reference; return one that is not on record as it is, because the tracker may know it."""
    if reference is None:
        with get_runner() as runner:
            return or_last(runner, None)
    if "://" in reference:
        return reference
    try:
        with get_runner() as runner:
            return runner.resolve(reference)
    except NotFoundError:
        if reference.startswith("@"):
            raise
        return reference


def _ask(name: str, question: Callable[[], T]) -> T:
    """Call ``question``, and raise BackendError if the tracker cannot be read."""
    try:
        return question()
    except TorchXError:
        raise
    except Exception as e:
        reason = " ".join(str(e).split()) or type(e).__name__
        hint = "is it up, and do its settings in `.torchxconfig` still hold?"
        raise BackendError(f"the tracker `{name}` cannot be read: {reason}", hint=hint) from e


def _must_be_known(name: str, tracker: TrackerBase, run_id: str) -> None:
    known = _ask(name, lambda: list(tracker.run_ids()))
    if run_id not in known:
        hint = did_you_mean(run_id, known) or "`torchx tracker list jobs` shows its jobs"
        raise NotFoundError(f"the tracker `{name}` has no job `{run_id}`", hint=hint)


def _lineage(tracker: TrackerBase, run_id: str, artifact: str | None) -> Lineage:
    found = tracker.lineage(run_id)
    if artifact is None:
        return found
    users = [d for d in found.descendants if any(s.source_run_id == run_id for s in tracker.sources(d, artifact))]
    return Lineage(sources=[s for s in found.sources if s.artifact_name == artifact], descendants=users)


def _artifact_fields(artifact: TrackerArtifact) -> dict[str, Any]:
    metadata = dict(artifact.metadata) if artifact.metadata else None
    return {"name": artifact.name, "path": artifact.path, "metadata": metadata}


def _document(tracker: str, run_id: str | None, **fields: object) -> None:
    print(document({"tracker": tracker, **({"id": run_id} if run_id is not None else {}), **fields}))


def _table(headers: list[str], rows: list[list[str]], *, nothing: str) -> None:
    if rows or not is_tty(sys.stdout):
        table(headers, rows, shrink=[len(headers) - 1] if len(headers) > 1 else ())
    else:
        note(nothing)


def _text(value: object) -> str:
    """Format a value for a cell: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    import json

    return json.dumps(value, ensure_ascii=False, default=str)
