#!/bin/bash
# Starts the script of a job as a step of a running allocation, `step.sh ALLOCATION FOLDER`, and prints the id of the step:
# torchx/schedulers/slurm/allocations.py. Called again, it only waits for that id: a job starts once.

cd "$2" || exit 78
if mkdir started 2>/dev/null; then
  setsid srun --jobid="$1" --overlap --nodes=1 --ntasks=1 --cpus-per-task=1 --mem=0 --gres=none --relative=0 --export=ALL \
    --chdir="$PWD" --job-name="${PWD##*/}" --output=slurm.log --open-mode=append --kill-on-bad-exit=0 \
    bash job.sh </dev/null >>slurm.log 2>&1 &
  echo "$!" >started/pid
fi
until [[ -s events ]] && read -r _ _ _ id <events && [[ -n $id ]]; do
  if [[ -s started/pid ]] && ! kill -0 "$(<started/pid)" 2>/dev/null && [[ ! -s events ]]; then
    cat slurm.log >&2
    exit 1
  fi
  read -rt 0.02 <> <(:)
done
echo "$id"
