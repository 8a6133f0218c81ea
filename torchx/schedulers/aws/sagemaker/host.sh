#!/bin/sh
# Finds the number of a training job's host, before it executes the program. The lines are joined by `; `, because
# SageMaker allows no line ends; the variable `_tx_n` replaces those in the words of the command.
_tx_k=$(sed -n 's/.*"current_host" *: *"algo-\([0-9]*\)".*/\1/p' /opt/ml/input/config/resourceconfig.json)
_tx_k=$((${_tx_k:-1}-1))
_tx_n="$(printf '\n_')"
_tx_n="${_tx_n%_}"
export TORCHX_REPLICA_ID="$_tx_k" TORCHX_RANK0_HOST=algo-1
