"""``torchx ssh-config``: print ~/.ssh/config entries for replicas."""

from __future__ import annotations

import argparse

from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.cmd_exec import WHERE, WHERE_ALL_HELP, find_replicas
from torchx.errors import BackendError
from torchx.runner import Runner, ssh
from torchx.specs.api import parse_app_handle


class CmdSshConfig(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("identifier", metavar=WHERE, help=WHERE_ALL_HELP)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        keys = ssh.public_keys()
        handle, replicas = find_replicas(runner, args.identifier)
        done = runner.exec(handle, ["id", "-un"], *replicas[0])
        if done.exit_code:
            raise BackendError(f"the replica has no `id`: exit code {done.exit_code}")
        user = done.stdout.decode("utf-8", "replace").strip()
        names = ssh.host_names(parse_app_handle(handle)[2], replicas)
        for replica in replicas:
            print(ssh.entry(handle, replica, name=names[replica], user=user, keys=keys))
