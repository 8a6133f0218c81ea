# shellcheck shell=bash disable=SC2154
# The part of a Slurm job's batch script that sends the data of `--stage`, the array `staged`, to all nodes at once, so that not
# each of them reads the shared file system; `stage_node` is the function of the replicas, which copy what did not arrive.
if ((${SLURM_JOB_NUM_NODES:-1} > 1)) && command -v sbcast >/dev/null; then
  while IFS= read -r packed && IFS= read -r sent; do
    sbcast --force "$packed" "$sent" || break
  done < <(stage_node --send "${staged[@]}")
  stage_node --sent "${staged[@]}"
fi >>slurm.log 2>&1
