#!/bin/bash
# The part of a Slurm job's batch script for spare nodes: it is present in jobs that ask for more nodes than they need, in
# the variables `probe`, the checks of a node as shell, and `probe_options`, those of a replica's step.
#
# shellcheck disable=SC2154

fit_first() {  # hosts: prints those that pass the checks, then the others, which are used only if there are too few
  local node why bad=()
  for node; do
    (
      timeout -k 5 90 srun --nodes=1 --ntasks=1 --nodelist="$node" "${probe_options[@]}" --export=ALL --job-name=check \
        bash -c "$probe" >"check.$node.log" 2>&1
      echo "$?" >"check.$node"
    ) &
  done
  wait
  for node; do
    if [[ $(<"check.$node") == 0 ]]; then echo "$node"; else bad+=("$node"); fi
  done
  for node in "${bad[@]}"; do
    why=$(sed -n 's/^torchx: node check failed: //p' "check.$node.log")
    echo "torchx: node left out: ${why:-$node: $(tail -n 1 "check.$node.log")}" >>"${paths[0]}/stderr.log"
    echo "$node"
  done
}
