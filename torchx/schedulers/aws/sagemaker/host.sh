#!/bin/sh
# What a host of a training job does before it becomes its program: it finds its number. The lines are joined by `; `, for
# SageMaker takes no line ends; `_tx_n` is one, which stands for those in the words of the command.
_tx_k=$(sed -n 's/.*"current_host" *: *"algo-\([0-9]*\)".*/\1/p' /opt/ml/input/config/resourceconfig.json)
_tx_k=$((${_tx_k:-1}-1))
_tx_n="$(printf '\n_')"
_tx_n="${_tx_n%_}"
export TORCHX_REPLICA_ID="$_tx_k" TORCHX_RANK0_HOST=algo-1
