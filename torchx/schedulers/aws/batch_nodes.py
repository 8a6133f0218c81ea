"""What a node of a multi-node job runs: all nodes of a role share one command, and each has to find its own number.

Batch tells a node its index in the environment only, and a command is given to the image as it is. So each starts with
a few constant lines of POSIX shell, and the words of the command stand behind them as they are, unquoted and unparsed.
https://docs.aws.amazon.com/batch/latest/userguide/multi-node-parallel-jobs.html#mnp-env-vars
"""

from __future__ import annotations

from torchx.errors import SpecError
from torchx.schedulers.aws.marks import REPLICA
from torchx.specs.api import macros

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# $1: the index of the role's first node; $2: how many of the words that follow are NAME=value.
# The main node is told no address: it is itself.
SCRIPT = """\
_tx_k=$((${AWS_BATCH_JOB_NODE_INDEX:-0} - $1)) _tx_n=$2
shift 2
export TORCHX_REPLICA_ID="$_tx_k" TORCHX_RANK0_HOST="${AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS:-localhost}"
_tx_i=$#
while [ "$_tx_i" -gt 0 ]; do
  _tx_rest=$1 _tx_word=
  shift
  while :; do
    case $_tx_rest in
      *"@TORCHX_REPLICA_ID@"*)
        _tx_word=$_tx_word${_tx_rest%%"@TORCHX_REPLICA_ID@"*}$_tx_k
        _tx_rest=${_tx_rest#*"@TORCHX_REPLICA_ID@"} ;;
      *) break ;;
    esac
  done
  set -- "$@" "$_tx_word$_tx_rest"
  _tx_i=$((_tx_i - 1))
done
while [ "$_tx_n" -gt 0 ]; do
  export "$1"
  shift
  _tx_n=$((_tx_n - 1))
done
exec "$@"
"""
_HEAD = ["/bin/sh", "-c", SCRIPT, "torchx"]


def wrap(words: list[str], env: Mapping[str, str], first_node: int) -> tuple[list[str], dict[str, str]]:
    """The command of a role's nodes, and what of its environment is the same for all of them.

    Args:
        words: entrypoint and arguments, with :data:`~marks.REPLICA` for the replica's number.
        first_node: index of the role's first node.

    >>> command, shared = wrap(["echo", REPLICA], {"K": f"k{REPLICA}", "A": "1"}, 3)
    >>> command[4:], shared
    (['3', '1', 'K=k@TORCHX_REPLICA_ID@', 'echo', '@TORCHX_REPLICA_ID@'], {'A': '1'})
    """
    own = {name: value for name, value in env.items() if REPLICA in value}
    for name in own:
        if not name.isidentifier():
            raise SpecError(
                f"variable `{name}` has the replica's number in its value, and no shell can set one of that name"
            )
    shared = {name: value for name, value in env.items() if name not in own}
    pairs = [f"{name}={value}" for name, value in sorted(own.items())]
    return [*_HEAD, str(first_node), str(len(pairs)), *pairs, *words], shared


def unwrap(command: list[str]) -> tuple[list[str], dict[str, str]]:
    """The inverse of :func:`wrap`, with the macro for the replica's number; a command of others is as it is.

    >>> unwrap(wrap(["echo", REPLICA], {"K": REPLICA}, 0)[0])
    (['echo', '${replica_id}'], {'K': '${replica_id}'})
    """
    if command[: len(_HEAD)] != _HEAD or len(command) < len(_HEAD) + 2 or not command[len(_HEAD) + 1].isdigit():
        return command, {}
    rest = [word.replace(REPLICA, macros.replica_id) for word in command[len(_HEAD) + 2 :]]
    count = int(command[len(_HEAD) + 1])
    pairs = (word.partition("=") for word in rest[:count])
    return rest[count:], {name: value for name, _, value in pairs}
