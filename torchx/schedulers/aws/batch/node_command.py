"""Wraps the command of a multi-node job, which all nodes of a role share, so that each node finds its replica number.

A node finds its index only in its environment, and Batch expands nothing in a command. So the command starts
``node.sh``, and the words follow as its arguments, without quoting.
https://docs.aws.amazon.com/batch/latest/userguide/multi-node-parallel-jobs.html#mnp-env-vars
"""

from __future__ import annotations

from collections.abc import Mapping

from torchx.errors import SpecError
from torchx.schedulers.aws.tags import REPLICA
from torchx.schedulers.kit.shell import is_name, read_script
from torchx.specs.api import macros


def _head() -> list[str]:
    return ["/bin/sh", "-c", read_script(__file__, "node.sh"), "torchx"]


def wrap(words: list[str], env: Mapping[str, str], first_node: int) -> tuple[list[str], dict[str, str]]:
    """Return the command of a role's nodes, from ``first_node`` on, and the variables the same for all of them.

    ``words`` have :data:`~torchx.schedulers.aws.tags.REPLICA` for the replica's number.

    >>> command, shared = wrap(["echo", REPLICA], {"K": f"k{REPLICA}", "A": "1"}, 3)
    >>> command[4:], shared
    (['3', '1', 'K=k@TORCHX_REPLICA_ID@', 'echo', '@TORCHX_REPLICA_ID@'], {'A': '1'})
    """
    own = {name: value for name, value in env.items() if REPLICA in value}
    for name in own:
        if not is_name(name):
            raise SpecError(
                f"variable `{name}` uses the replica's number, but a shell cannot set a variable of that name"
            )
    shared = {name: value for name, value in env.items() if name not in own}
    pairs = [f"{name}={value}" for name, value in sorted(own.items())]
    return [*_head(), str(first_node), str(len(pairs)), *pairs, *words], shared


def unwrap(command: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the inverse of :func:`wrap`: words and variables, with the macro for the replica's number.

    Other commands are returned unchanged.

    >>> unwrap(wrap(["echo", REPLICA], {"K": REPLICA}, 0)[0])
    (['echo', '${replica_id}'], {'K': '${replica_id}'})
    """
    head = _head()
    first, end = len(head), len(head) + 2
    if command[:first] != head or len(command) < end or not command[first + 1].isdigit():
        return command, {}
    rest = [word.replace(REPLICA, macros.replica_id) for word in command[end:]]
    count = int(command[first + 1])
    pairs = (word.partition("=") for word in rest[:count])
    return rest[count:], {name: value for name, _, value in pairs}
