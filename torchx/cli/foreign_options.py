"""Options of other tools, and ours that do the same: hints for options that a verb does not have."""

from __future__ import annotations

_CFG = "`torchx runopts SCHEDULER` lists all options of -cfg"
_ROWS = {
    "-p --partition -q --queue": f"`-cfg partition=NAME` on Slurm, `-cfg queue=NAME` elsewhere; {_CFG}",
    "-A --account --qos --constraint -C --exclusive --nodelist -w --exclude --reservation --namespace": _CFG,
    "-t --time --time-limit --walltime": "`--timeout 2h`",
    "-G --gpus --gpus-per-node --gpus-per-task --gres --num-gpus --num_gpus --accelerator --accelerators --gpu-type":
    "`--gpu 8`, or with a type `--gpu h100:8`",
    "-c --cpus --cpus-per-task --num-cpus --vcpus": "`--cpu 16`",
    "-m --memory --memMB --mem-per-cpu --mem-per-gpu --mem-mb --ram": "`--mem 64G`, for each node",
    "-n --ntasks --np --nproc --nproc-per-node --nproc_per_node --ntasks-per-node --workers --num-workers":
    "`-j 2x8`: 2 nodes with 8 workers each, under torchrun",
    "-N --nnodes --num-nodes --num_nodes --num-replicas --replicas --instance-count":
    "`-j 2x8` for torchrun: 2 nodes with 8 workers each; or `--nodes 2` to run the program once on each",
    "-J --job-name --job_name": "`--name NAME`",
    "-i --container-image --container --docker-image": "`--image IMAGE`",
    "-e --envs --environment --env-vars --export-env": "`--env NAME=VALUE`",
    "-a --array": "`torchx sweep --grid i=0..9 train.py --i {i}`",
    "--dependency --depends-on": "`--after JOB`",
    "-o --output --error --stdout --stderr": "the output is kept: `torchx log @last` prints it",
    "--mount --volume --volumes -v": "`--mounts`, an argument of components: `torchx run dist.ddp --help`",
    "-b --background --no-wait --async": "`-d` returns at once",
    "-f --follow --attach": "`--log` follows the output",
    "--workdir --chdir -D": "`--workspace DIR`",
    "--retries --max-retries --max_retries --restart": "`--retry standard`; see docs/retries.md",
    "--backend --cluster --cloud --target": "`-s SCHEDULER`",
}  # fmt: skip
RUN = {option: hint for options, hint in _ROWS.items() for option in options.split()}
"""Option of another launcher -> hint that names ours, for `torchx run` and `sweep`."""
