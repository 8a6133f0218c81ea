"""Roles in containers on Slurm, by pyxis (``srun --container-image``) or apptainer, whichever the nodes have.

https://github.com/NVIDIA/pyxis#usage, https://apptainer.org/docs/user/latest/cli/apptainer_exec.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx.schedulers.kit.shell import quote

if TYPE_CHECKING:
    from torchx.schedulers.slurm.request import SlurmReplicaRequest

_OF_THE_IMAGE = ("PATH", "LD_LIBRARY_PATH")

RUNTIMES = ("auto", "pyxis", "apptainer")


def container_words(replica: SlurmReplicaRequest) -> tuple[list[str], list[str]]:
    """Options for ``srun``, and words before the program; both empty without a container."""
    if not replica.container:
        return [], []
    if replica.container == "pyxis":
        return _pyxis(replica), []
    if replica.container == "apptainer":
        return [], _apptainer(replica)
    # One of the two arrays is empty, and old shells report empty arrays as unset.
    return ['${pyxis[@]+"${pyxis[@]}"}'], ['${apptainer[@]+"${apptainer[@]}"}']


def environment(replica: SlurmReplicaRequest, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment outside of the container that gives the program inside the wanted one.

    Apptainer lets the image override some variables:
    https://apptainer.org/docs/user/latest/environment_and_metadata.html#environment-overview.
    """
    if replica.container not in ("apptainer", "auto"):
        return dict(env)
    found = {}
    for name, value in env.items():
        if name in _OF_THE_IMAGE:
            found.update({f"{prefix}_{name}": value for prefix in ("APPTAINERENV", "SINGULARITYENV")})
        if name not in _OF_THE_IMAGE or replica.container == "auto":  # auto may mean pyxis, which needs the plain name
            found[name] = value
    return found


def setup_lines(replica: SlurmReplicaRequest) -> list[str]:
    """Shell lines that choose the runtime on the node, for ``container=auto``."""
    if replica.container != "auto":
        return []
    return [
        "pyxis=() apptainer=()",
        "if srun --help 2>&1 | grep -q -e --container-image; then",
        f"  pyxis=({' '.join(_pyxis(replica))})",
        "else",
        f"  apptainer=({' '.join(_apptainer(replica))})",
        "fi",
    ]


def pyxis_image(image: str) -> str:
    """Return an image in enroot's syntax: ``#`` between the registry and the rest.

    >>> pyxis_image("ghcr.io/pytorch/torchx:0.7"), pyxis_image("ubuntu:22.04"), pyxis_image("/shared/a.sqsh")
    ('ghcr.io#pytorch/torchx:0.7', 'ubuntu:22.04', '/shared/a.sqsh')
    """
    first, slash, rest = image.partition("/")
    is_registry = slash and first and ("." in first or ":" in first or first == "localhost")
    return f"{first}#{rest}" if is_registry and "#" not in image and not first.startswith(".") else image


def apptainer_image(image: str) -> str:
    """Return an image in apptainer's syntax: names in a registry need a scheme.

    >>> apptainer_image("ubuntu:22.04"), apptainer_image("/shared/a.sif"), apptainer_image("oras://r/x")
    ('docker://ubuntu:22.04', '/shared/a.sif', 'oras://r/x')
    """
    is_file = image.startswith(("/", ".")) or image.endswith((".sif", ".img", ".sqsh"))
    return image if is_file or "://" in image else f"docker://{image}"


def _pyxis(replica: SlurmReplicaRequest) -> list[str]:
    words = [
        quote(f"--container-image={pyxis_image(replica.image)}"),
        f"--container-mounts={','.join(_mounts(replica))}",
    ]
    return [*words, '--container-workdir="$dir"'] if replica.code else words


def _apptainer(replica: SlurmReplicaRequest) -> list[str]:
    words = ['"$(command -v apptainer || command -v singularity || echo apptainer)"', "exec"]
    words += ["--nv"] if "gpu" in (replica.sbatch_opts.get("gres") or "") else []
    for mount in _mounts(replica):
        words += ["--bind", mount]
    words += ["--pwd", '"$dir"'] if replica.code else []
    return [*words, quote(apptainer_image(replica.image))]


def _mounts(replica: SlurmReplicaRequest) -> list[str]:
    """Return the folders of the job and its code, at the same path inside and outside, and the role's mounts."""
    return ['"$folder:$folder"', *(['"$dir:$dir"'] if replica.code else []), *map(quote, replica.mounts)]
