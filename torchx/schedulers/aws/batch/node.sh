#!/bin/sh
# Starts the program of a node of a multi-node job, after it has computed the replica's number within its role.
#
#   sh -c <this> torchx FIRST COUNT [NAME=value ...] WORD...
#
# FIRST: index of the role's first node; COUNT: number of NAME=value words. In all words, @TORCHX_REPLICA_ID@ is replaced
# by the number. Batch does not give the main node its own address: it uses localhost.
#
# shellcheck disable=SC2163
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
