"""The Runner's verbs that work inside running replicas."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from torchx.errors import NotFoundError
from torchx.runner.watching.handling import Handles
from torchx.schedulers.kit.inside import NotRunningError

if TYPE_CHECKING:
    from torchx.runner.inside.copy import Copied
    from torchx.runner.inside.forward import Forwarding
    from torchx.schedulers.kit.inside import InsideProcess, Tty
    from torchx.schedulers.kit.inside.run import Ran
    from torchx.schedulers.kit.simulations import Simulation
    from torchx.schedulers.kit.stacks import Stacks


class Enters(Handles):
    """Runs commands in replicas, copies files, forwards ports, reads stacks, and injects faults."""

    def open(
        self, app_handle: str, argv: Sequence[str], role_name: str | None = None, k: int = 0, *, tty: Tty | None = None
    ) -> InsideProcess:
        """Start a command inside replica ``k`` of a role.

        Args:
            argv: the command. It runs in the replica's working directory, environment and container.
            role_name: name of the role; None: the first role.
            tty: size of the terminal to allocate; None: no terminal, but pipes for stdin, stdout and stderr.

        Returns:
            The process: ``read``, ``write``, ``close_stdin``, ``send_signal``, ``wait``. Closing it, as the end of a
            ``with`` block does, kills it.

        Raises:
            NotFoundError: there is no such job or replica, or it is not running.
            NotSupportedError: the scheduler, or this job, does not support commands inside replicas.
        """
        from torchx.runner.inside import entering
        from torchx.runner.watching import answers

        handle, backend, app_id = self._locate(app_handle)
        role = self._role(handle, role_name)
        try:
            return entering.enter(backend, app_id, (role, k), argv, tty)
        except NotFoundError:
            answers.check_replica(self.log_replicas(handle), handle, role, k)  # its hint lists the replicas
            raise

    def check_open(self, scheduler: str) -> None:
        """Raise NotSupportedError if a scheduler cannot run commands inside replicas, before a job is submitted."""
        from torchx.runner.inside import entering

        entering.able(self._scheduler(scheduler))

    def exec(
        self, app_handle: str, argv: Sequence[str], role_name: str | None = None, k: int = 0, *, stdin: bytes = b""
    ) -> Ran:
        """Run a command inside a replica and wait for it. Other arguments and errors are those of :meth:`open`.

        Returns:
            ``exit_code`` (128+n if signal n killed the command), ``stdout``, ``stderr``.
        """
        from torchx.schedulers.kit.inside.run import run

        return run(self.open(app_handle, argv, role_name, k), stdin)

    def copy(
        self,
        app_handle: str,
        source: str,
        target: str,
        role_name: str | None = None,
        k: int = 0,
        *,
        into: bool = False,
        progress: Callable[[int], None] = lambda _: None,
        private: Callable[[str], bool] = lambda _: False,
    ) -> Copied:
        """Copy a file or folder out of a replica, or into it. Files that are already there are skipped.

        Of a replica that has ended, the files come from where its backend keeps them.

        Args:
            source: path to copy; with a trailing slash: the contents of the folder instead of the folder itself.
            target: an existing folder, or the new path.
            into: copy from this machine into the replica, instead of the other way.
            progress: called with the number of bytes of each chunk.
            private: whether a name in a replica is left out.

        Returns:
            How many ``files`` and ``bytes`` were copied, and how many files ``skipped``: those of the same size and
            modification time; names ``left_out``: links that point out of the folder, and special files.

        Raises:
            NotFoundError: there is no such job, replica or file.
            BackendError: the copy was interrupted; the same call resumes it.
        """
        from torchx.runner.inside import copy, entering

        start = partial(self.open, app_handle, role_name=role_name, k=k)
        where = entering.job_of(*self._locate(app_handle)[1:], (self._role(app_handle, role_name), k))
        archive, here = entering.archives(*where), entering.shares_files(*where[:2])
        if into:
            return copy.upload(start, source, target, progress, archive, here=here)
        try:
            return copy.download(start, source, target, progress, archive, here=here, private=private)
        except NotRunningError as e:
            from torchx.runner.inside.ended import download_kept

            run = self.recorded(app_handle)
            cwd = "" if run is None else run.cwd
            ends = (source, target)
            return download_kept(*where, ends, cwd=cwd, progress=progress, private=private, running=e)

    def fetch(
        self,
        app_handle: str,
        progress: Callable[[int], None] = lambda _: None,
        done: Callable[[str, Copied], None] = lambda *_: None,
    ) -> dict[str, Copied]:
        """Copy the results of a job that its ``fetch`` wish names: the same paths below the current folder.

        They come from the first replica of the first role. Private files, which uploads leave out, are left out.

        Args:
            done: called with each path and what was copied of it.

        Returns:
            What was copied, by path; empty if the job names none.

        Raises:
            NotFoundError: there is no such job, or it lacks a path; all others have been copied.
        """
        from torchx.specs.wishes.fetch import FETCH, parse_fetch

        run = self.recorded(app_handle)
        found: dict[str, Copied] = {}
        missing = None
        for source, target in parse_fetch(str(run.app.get("metadata", {}).get(FETCH, ""))) if run is not None else ():
            try:
                found[source] = self._fetched(app_handle, source, target, progress)
            except NotFoundError as e:
                missing = missing or e
            else:
                done(source, found[source])
        if missing is not None:
            raise missing
        return found

    def _fetched(self, app_handle: str, source: str, target: str, progress: Callable[[int], None]) -> Copied:
        from torchx.workspace.private import is_private_name

        copy = partial(self.copy, app_handle, target=target, progress=progress, private=is_private_name)
        if os.path.isdir(target):  # it may be that of an earlier copy: the folder is not to be in itself
            with suppress(NotFoundError):
                return copy(f"{source.rstrip('/')}/")
        return copy(source)

    def forward(
        self, app_handle: str, ports: Sequence[tuple[int, int]], role_name: str | None = None, k: int = 0
    ) -> Forwarding:
        """Forward local ports, on the loopback interface only, to ports of a replica.

        Args:
            ports: pairs of replica port and local port (0: any free port).

        Returns:
            An object with the ``local_ports``. It forwards while its ``run()`` runs; close it to stop.
        """
        from torchx.runner.inside import entering
        from torchx.runner.inside.forward import forwarding

        where = (*self._locate(app_handle)[1:], (self._role(app_handle, role_name), k))
        start = partial(self.open, app_handle, role_name=role_name, k=k)
        return forwarding(start, lambda: entering.port_opener(*entering.job_of(*where)), ports)

    def stacks(self, app_handle: str, replicas: Sequence[tuple[str, int]] | None = None) -> Stacks:
        """Return the stacks of all ranks: ``groups`` of ranks with equal stacks, and a ``sentence`` that sums them up.

        Args:
            replicas: as ``(role, number)``; None: all running replicas.

        Raises:
            NotFoundError: there is no such job or replica, or none is running.
            NotSupportedError: the scheduler, or this job, does not support commands inside replicas.
        """
        from torchx.schedulers.kit.stacks.look import look

        handle = self.resolve(app_handle)
        bring = partial(self.copy, handle, into=True)
        return look(partial(self.exec, handle), self.status(handle), self.log_replicas(handle), replicas, bring)

    def simulate(self, reference: str, fault: str, chosen: Sequence[tuple[str, int]] | None = None) -> Simulation:
        """Prepare the injection of a fault into one of your jobs; call ``make()`` of the result to inject it.

        Args:
            fault: one of :data:`torchx.schedulers.kit.simulations.FAULTS`.
            chosen: the replica to hit, as ``[(role, number)]``; None: the first replica, or the whole job.

        Raises:
            NotSupportedError: the job is not yours, or its scheduler cannot inject this fault.
            BackendError: the job is not running.
        """
        from torchx.runner.inside import simulations

        return simulations.plan(self, reference, fault, chosen)
