"""Where the commands of a cluster run and its files are: on this machine, or behind a login node."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from torchx.errors import CommandError, TransientError
from torchx.schedulers.api import Scheduler
from torchx.schedulers.batch.folders import JobFolders
from torchx.schedulers.batch.inherit import environ, unset
from torchx.schedulers.kit.commands import CommandRunner, Completed, LocalCommandRunner, last_line, program_of
from torchx.schedulers.kit.files import Files, LocalFiles
from torchx.specs.api import CfgVal, make_app_handle, runopts
from torchx.specs.handles import JobId
from torchx.util.notices import logger
from torchx.util.records import dataclass

if TYPE_CHECKING:
    from torchx.schedulers.batch.ssh.runner import SSHCommandRunner
    from torchx.schedulers.kit.inside import Tty
    from torchx.schedulers.kit.inside.spawned import SpawnedProcess

PATIENCE_S = 45.0
"""How long a scheduler that does not answer is asked, attempts included: its daemon restarts in less time."""

COMMAND_TIMEOUT_S = 45.0
SUBMIT_TIMEOUT_S = 30.0  # then there is time to look for the job
FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 5.0

_LEAST_S = 5.0  # of the last attempt
_UNTIL: ContextVar[float] = ContextVar("until", default=float("inf"))

Run = Callable[[list[str]], Completed]
"""Runs a command of one cluster to completion."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limits all commands of one question together, so that several that hang do not add up."""
    token = _UNTIL.set(min(_UNTIL.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _UNTIL.reset(token)


@dataclass(frozen=True)
class Site:
    """One cluster, by the name that messages show, such as ``me@login``; empty for this machine."""

    commands: CommandRunner
    files: Files
    name: str = ""

    def spawn(self, argv: list[str], tty: Tty | None) -> SpawnedProcess:
        """Start a command and connects its streams. Raises BackendError if the login node cannot be reached."""
        from torchx.schedulers.kit.inside.spawned import SpawnedProcess

        env = self.commands.environ() if isinstance(self.commands, LocalCommandRunner) else None
        return SpawnedProcess(argv, tty=tty, env=env)


class LoginNode(Site):
    """A cluster behind a login node."""

    commands: SSHCommandRunner

    def spawn(self, argv: list[str], tty: Tty | None) -> SpawnedProcess:
        from torchx.schedulers.batch.ssh.inside import RemoteProcess

        return RemoteProcess(self.commands, argv, tty)


def site_of(cfg: Mapping[str, CfgVal], backend: str = "") -> Site:
    """Return the site for ``cfg["ssh"]``, not connected yet, for ``backend``.

    Raises ConfigError if that is not a valid host.
    """
    from torchx.schedulers.batch.ssh.remote_files import RemoteFiles
    from torchx.schedulers.batch.ssh.runner import SSHCommandRunner

    target = str(cfg["ssh"])
    runner = SSHCommandRunner(target, str(cfg.get("ssh_dir") or ""), before=unset(backend))
    return LoginNode(runner, RemoteFiles(runner), target)


class SiteScheduler(Scheduler[Mapping[str, CfgVal]]):
    """A backend whose jobs may be at several sites.

    Args:
        commands: runs the scheduler's commands; None: on this machine.
        files: the files of the machine on which they run.
        sleep: replaced in tests, so that they do not wait.
    """

    transient: re.Pattern[str] = re.compile(r"(?!)")
    """Matches the stderr of commands that failed for a temporary reason."""

    programs: str = ""
    """What the hint for a missing command calls the scheduler's commands."""

    submits: str = ""
    """The command that submits jobs, where a shell script of torchx runs it."""

    def __init__(
        self,
        backend: str,
        session_name: str,
        *,
        commands: CommandRunner | None = None,
        files: Files | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(backend, session_name)
        self._here = Site(commands or LocalCommandRunner(functools.partial(environ, backend)), files or LocalFiles())
        self._sites: dict[str, Site] = {}
        self._sleep = sleep
        self._defaults: Callable[[], Mapping[str, CfgVal]] = dict

    # -- sites -----------------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        """Options of every batch backend, which select the site, and those of this one."""
        opts = runopts()
        opts.add(
            "ssh",
            type_=str,
            help="login node to run the scheduler's commands on: `host`, `user@host` or a `Host` of ~/.ssh/config;"
            " without it they run on this machine",
        )
        opts.add(
            "ssh_dir",
            type_=str,
            help="with `ssh`: folder for jobs and their logs, on a file system that login node and compute nodes share;"
            " $TORCHX_HOME there, or else ~/.torchx, when it is not given",
        )
        opts.update(super()._run_opts())
        return opts

    def _site_of(self, cfg: Mapping[str, CfgVal] | None) -> Site:
        """Return the site that the run options name; this machine if they name none."""
        target = str((cfg or {}).get("ssh") or "")
        if cfg is None or not target:
            return self._here
        key = f"{target} {cfg.get('ssh_dir') or ''}"
        if key not in self._sites:
            self._sites[key] = site_of(cfg, self.backend)
        return self._sites[key]

    def configure(self, defaults: Callable[[], Mapping[str, CfgVal]]) -> None:
        """Set where run options for jobs that are not on record come from: config files and the environment."""
        self._defaults = defaults

    def _site(self, app_id: str) -> Site:
        """Return the site of a job: where this process submitted it,
        else from the record of runs or the configuration.
        """
        app_id = JobId.of(app_id).job
        return self._sites.get(f"job {app_id}") or self._site_of(self._recorded_cfg(app_id))

    @functools.cache  # noqa: B019  # a scheduler lives as long as its program
    def _recorded_cfg(self, app_id: str) -> Mapping[str, CfgVal]:
        from torchx.runs import default_registry

        run = default_registry().get(make_app_handle(self.backend, self.session_name, app_id))
        if run is None:
            return self._defaults()
        return {key: setting.get("value") for key, setting in run.cfg.items() if isinstance(setting, dict)}

    def folders(self, site: Site) -> JobFolders:
        """Return the folders of this backend's jobs at a site."""
        return JobFolders(site.files, self.backend)

    # -- commands --------------------------------------------------------------------------------

    def run_command(
        self,
        site: Site,
        argv: list[str],
        *,
        stdin: str = "",
        patience_s: float = PATIENCE_S,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> Completed:
        """Run a command that may be repeated, and retries it while the failure is temporary. Other failures are
        returned.

        Args:
            patience_s: for how long temporary failures are retried, seconds.
            timeout_s: time limit of one attempt, seconds.

        Raises:
            CommandError: the command does not exist; the hint says what to do.
            TransientError: no answer within ``patience_s``.
        """
        program, spent, pause = program_of(argv), 0.0, FIRST_PAUSE_S
        limit_s = max(_UNTIL.get() - time.monotonic(), _LEAST_S)  # of the question that this command is part of
        patience_s = min(patience_s, limit_s)
        while True:
            failure, began = None, time.monotonic()
            limit_s = min(timeout_s, limit_s)
            try:
                done = site.commands.run(argv, stdin=stdin, timeout=limit_s)
            except TransientError as e:
                failure = self._by_name(e)
            except CommandError as e:
                raise self._missing(site, e) from e
            else:
                if done.returncode == 127 and argv[0] == "env":
                    raise self._missing(site, CommandError(argv=[program], returncode=127))
                if done.returncode == 0 or not self.transient.search(done.stderr):
                    return done
                failure = TransientError(
                    f"`{program}` failed: {last_line(done.stderr)}", hint="the scheduler does not answer; try again"
                )
            spent += time.monotonic() - began + pause
            if spent > patience_s:
                raise failure
            if pause == FIRST_PAUSE_S and patience_s > MAX_PAUSE_S:
                logger("torchx.schedulers").warning("%s; trying again for %g s", failure, patience_s)
            self._sleep(pause)
            pause = min(pause * 2, MAX_PAUSE_S)
            limit_s = max(patience_s - spent, _LEAST_S)

    def _by_name(self, error: TransientError) -> TransientError:
        """Return the error with the name of the scheduler's program instead of the shell that runs it."""
        if self.submits and (found := re.match(r"`(?:/bin/)?bash`", error.message)):
            return type(error)(f"`{self.submits}`{error.message[found.end() :]}", hint=error.hint)
        return error

    def _missing(self, site: Site, error: CommandError) -> CommandError:
        if error.returncode != 127:
            return error
        if site.name and error.hint:  # already specific to that machine
            return error
        where = f"on `{site.name}`" if site.name else "on this machine"
        return CommandError(
            f"`{error.argv[0] if error.argv else self.backend}` is not installed {where}, or not on PATH",
            argv=error.argv,
            returncode=127,
            hint=f"{self.programs or 'the commands of the scheduler'} are on the login nodes of the cluster: run torchx"
            " there, or from here with `-cfg ssh=<user>@<login node>`",
        )

    def close(self) -> None:
        """Forgets the sites. Jobs go on, and an idle connection closes by itself."""
        self._sites.clear()
        self._recorded_cfg.cache_clear()
