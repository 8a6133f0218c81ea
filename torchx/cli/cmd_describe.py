"""``torchx describe``: show what was launched."""

from __future__ import annotations

import argparse
import sys

from torchx.cli import spec_page
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.log_targets import JOB_HELP, job_reference, or_last
from torchx.cli.render import document, fields
from torchx.runner import Runner
from torchx.runner.ground.masks import for_display
from torchx.runner.ground.registry import run_registry
from torchx.runner.show.json_output import handle_fields, run_fields
from torchx.runs import Run, unkept
from torchx.runs.records import LAUNCHED_BY
from torchx.specs import AppDef
from torchx.specs.api import UnknownAppException
from torchx.specs.images import image_digests, workspace_hashes
from torchx.specs.serialize import appdef_to_dict, masked
from torchx.util.datetime import ago, local_time
from torchx.util.reexports import reexports
from torchx.util.shlex import join
from torchx.util.term import has_color, printable

reexports(__name__)


class CmdDescribe(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("app_handle", type=job_reference, metavar="JOB", help=JOB_HELP, nargs="?")
        subparser.add_argument("--json", action="store_true", help="one JSON document, for programs")

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        handle = runner.resolve(or_last(runner, args.app_handle))
        app = runner.describe(handle)
        run = runner.recorded(handle)
        if app is None and run is None:
            raise UnknownAppException(handle)
        shown = masked(app) if app is not None else None
        run = for_display(run) if run is not None else None
        if args.json:
            _print_json(handle, shown, run)
        else:
            _print_page(handle, shown, run)


def _print_json(handle: str, app: AppDef | None, run: Run | None) -> None:
    digests, hashes = _provenance(app, run)
    found = {
        **handle_fields(handle),
        "app": appdef_to_dict(app, fallback=repr) if app is not None else None,
        "cfg": run.cfg if run is not None else None,
        "argv": run.argv if run is not None else None,
        "image_digests": digests or None,
        "workspace_hashes": hashes or None,
        "run": run_fields(run) if run is not None else None,
        "launched_by": run.tags.get(LAUNCHED_BY) if run is not None else None,
    }
    print(document(found))


def _print_page(handle: str, app: AppDef | None, run: Run | None) -> None:
    color = has_color(sys.stdout)
    parts = [_head(handle, run, color=color)]
    if app is not None:
        parts.append(spec_page.app_page(app, provenance=_provenance(app, run), color=color))
    if run is not None and run.cfg:
        parts.append(spec_page.cfg_page(run.cfg, title=f"options of {run.scheduler}", color=color))
    print("\n\n".join(parts))


def _provenance(app: AppDef | None, run: Run | None) -> tuple[dict[str, str], dict[str, str]]:
    """Return image digests and workspace hashes by role name, from the record or else from the scheduler."""
    roles = app.roles if app is not None else []
    digests, hashes = image_digests(roles), workspace_hashes(roles)
    return (digests | run.image_digests, hashes | run.workspace_hashes) if run is not None else (digests, hashes)


def _head(handle: str, run: Run | None, *, color: bool) -> str:
    if run is None:
        return fields([("handle", handle)], color=color)
    unkept_why = unkept.why(run_registry(), run.handle)
    commit = run.git_commit[:12] + (", with changes that are not committed" if run.git_dirty else "")
    return fields(
        [
            ("handle", handle),
            ("launched", f"{local_time(run.created_at)} ({ago(run.created_at)})"),
            ("by", f"{run.user} on {run.host}" if run.user else ""),
            ("in", printable(run.cwd)),
            ("command", printable(join(run.argv)) if run.argv else ""),
            ("git commit", commit if run.git_commit else ""),
            ("rerun of", printable(run.tags.get("rerun_of", ""))),
            ("parent run", printable(run.parent_run_id)),
            ("logs", f"not in the archive: {printable(unkept_why)}" if unkept_why else ""),
        ],
        color=color,
    )
