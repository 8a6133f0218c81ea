"""Component arguments with several values in one text: ``--name experiment/run``, ``-j 2x8``."""

from __future__ import annotations

import os

from torchx.errors import SpecError
from torchx.specs import resource
from torchx.util.records import dataclass


@dataclass
class StructuredNameArgument:
    """The name of a job: ``experiment/run``."""

    experiment_name: str
    run_name: str

    def __str__(self) -> str:
        return f"{self.experiment_name}/{self.run_name}"

    @staticmethod
    def parse_from(
        name: str,
        m: str | None = None,
        script: str | None = None,
        default_experiment_name: str = "default-experiment",
    ) -> StructuredNameArgument:
        """Parse ``experiment/run``, ``experiment/``, ``/run`` or ``run``.

        The defaults are the default experiment, and the name of the script or module as run.

        Raises:
            SpecError: there is more than one ``/``, or neither a run nor a script or module.

        >>> print(StructuredNameArgument.parse_from("/", script="src/train.py"))
        default-experiment/train
        >>> print(StructuredNameArgument.parse_from("vision/", m="pets.main"))
        vision/main
        """
        if name.count("/") > 1:
            raise SpecError(f"name `{name}` has more than one `/`", hint="write `experiment/run` or `run`")
        experiment, _, run = name.rpartition("/")
        run = run or program_name(script, m)
        if not run:
            hint = "write `experiment/run`"
            raise SpecError(f"name `{name}` has no run, and there is no script or module", hint=hint)
        return StructuredNameArgument(experiment or default_experiment_name, run)


@dataclass
class StructuredJArgument:
    """The size of a job: ``nnodes x nproc_per_node``."""

    nnodes: int
    nproc_per_node: int

    def __str__(self) -> str:
        return f"{self.nnodes}x{self.nproc_per_node}"

    @staticmethod
    def parse_from(h: str, j: str) -> StructuredJArgument:
        """Parse ``2x8``, or ``2`` for a worker per GPU of the named resource (one worker without GPUs).

        Raises:
            SpecError: ``j`` is malformed or elastic (``1:2x8``), or the named resource does not exist.

        >>> StructuredJArgument.parse_from(h="gpu.medium", j="4")
        StructuredJArgument(nnodes=4, nproc_per_node=2)
        """
        size = JobSize.parse(j, gpus=resource(h=h).gpu if h else 0)
        if size.min_nnodes != size.max_nnodes:
            raise SpecError(f"`-j {j}` is elastic, and a fixed number of nodes is needed", hint="for example `-j 2x8`")
        return StructuredJArgument(size.max_nnodes, size.nproc_per_node)


@dataclass(frozen=True)
class JobSize:
    """The size of a possibly elastic job, as given by ``-j``.

    Args:
        min_nnodes: minimum number of nodes with which the job continues.
        max_nnodes: number of nodes that it starts with.
        nproc_per_node: workers on each node.
    """

    min_nnodes: int
    max_nnodes: int
    nproc_per_node: int

    @property
    def nnodes(self) -> str:
        """The value of ``torchrun --nnodes``: ``2`` or ``2:4``."""
        return f"{self.min_nnodes}:{self.max_nnodes}" if self.elastic else str(self.max_nnodes)

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may change while the job runs."""
        return self.min_nnodes != self.max_nnodes

    @staticmethod
    def parse(j: str, *, gpus: int = 0) -> JobSize:
        """Parse ``[min:]nnodes[xnproc_per_node]``.

        Args:
            gpus: GPUs of a node, the default of ``nproc_per_node``; 1 without GPUs.

        Raises:
            SpecError: ``j`` is malformed.

        >>> JobSize.parse("2:4x8")
        JobSize(min_nnodes=2, max_nnodes=4, nproc_per_node=8)
        >>> JobSize.parse("4", gpus=8)
        JobSize(min_nnodes=4, max_nnodes=4, nproc_per_node=8)
        """
        nodes, x, nproc = j.strip().lower().partition("x")
        low, colon, high = nodes.partition(":")
        texts = [low, *([high] if colon else []), *([nproc] if x else [])]
        # isascii: int() accepts digits of other scripts
        if not all(t.isascii() and t.isdigit() and int(t) > 0 for t in texts):
            raise SpecError(
                f"`-j {j}` is not of the form `[min_nnodes:]nnodes[xnproc_per_node]`",
                hint="for example `-j 1x2`, `-j 2x8`, `-j 4`, or elastic `-j 2:4x8`; each number is 1 or more",
            )
        size = JobSize(int(low), int(high) if colon else int(low), int(nproc) if x else max(gpus, 1))
        if size.min_nnodes > size.max_nnodes:
            raise SpecError(
                f"`-j {j}` asks for at least {size.min_nnodes} and at most {size.max_nnodes} nodes",
                hint=f"the smaller number comes first: `-j {high}:{low}{x}{nproc}`",
            )
        return size


def program_name(script: str | None, m: str | None) -> str:
    """Return the short name of a script or module: ``train`` for ``src/train.py`` and ``pets.train``.

    >>> program_name(None, "pets.train.__main__")
    'train'
    """
    if script:
        return os.path.splitext(os.path.basename(script.rstrip("/")))[0]
    return (m or "").removesuffix(".__main__").rpartition(".")[2]
