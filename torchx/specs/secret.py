"""A value that only the job may see, by reference: what is written down and shown says where it is, not what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx.errors import SpecError

if TYPE_CHECKING:
    from typing_extensions import Self

VALUES = ("env", "cmd", "file")
"""Kinds of references whose value is looked up on the machine that submits the job."""

KINDS = (*VALUES, "k8s", "aws-sm")


class Secret(str):
    """A reference to a value, as the value of an environment variable in ``Role.env``.

    It is a string, the reference itself, so that whatever copies or prints an environment shows the reference. The
    value is looked up when the job is submitted, and handed to the replicas in a way that leaves it in no script, no
    list of processes and no database.

    Args:
        reference: one of these:

            ==================  ====================================================================
            ``HF_TOKEN``        what ``[secrets]`` in ``.torchxconfig`` says of this name; where it says nothing, the
                                variable of this name
            ``env:NAME``        a variable of the process that submits
            ``cmd:COMMAND``     what a command of the shell prints, such as ``cmd:pass show wandb``
            ``file:PATH``       what is in a file
            ``k8s:NAME/KEY``    a key of a Secret that the Kubernetes cluster has
            ``aws-sm:ARN``      a secret of AWS Secrets Manager, or a parameter of AWS Systems Manager
            ==================  ====================================================================

    Raises:
        SpecError: it is none of these.

    >>> env = {"HF_TOKEN": Secret("env:HF_TOKEN"), "WANDB_API_KEY": Secret("cmd:pass show wandb")}
    >>> env["WANDB_API_KEY"].kind, env["WANDB_API_KEY"].place
    ('cmd', 'pass show wandb')
    """

    __slots__ = ()

    is_reference = True
    """For lower rooms, which know strings alone."""

    def __new__(cls, reference: str) -> Self:
        kind, colon, place = reference.partition(":")
        forms = "one of `env:NAME`, `cmd:COMMAND`, `file:PATH`, `k8s:NAME/KEY`, `aws-sm:ARN`"
        if not colon:
            if not (kind.isidentifier() and kind.isascii()):  # not shown: it may be the value itself
                raise SpecError("a Secret is a reference to a value, not the value", hint=forms)
        elif kind not in KINDS:
            raise SpecError("a Secret is a reference to a value, and this is none", hint=forms)
        elif not place.strip() or "\0" in place:
            raise SpecError(f"`{kind}:` of a Secret says nothing", hint=forms)
        elif kind == "k8s" and not all(place.partition("/")):
            raise SpecError(f"`{reference}` is not `k8s:NAME/KEY`", hint="name the Secret, and its key")
        elif kind == "aws-sm" and not place.startswith("arn:"):
            raise SpecError(f"`{reference}` is not `aws-sm:ARN`", hint="an ARN begins with `arn:`")
        return super().__new__(cls, reference)

    @property
    def kind(self) -> str:
        """Where the value is: ``env``, ``cmd``, ``file``, ``k8s`` or ``aws-sm``; empty for a name alone."""
        kind, colon, _ = self.partition(":")
        return kind if colon else ""

    @property
    def place(self) -> str:
        """What stands after the kind, or the name alone."""
        return self.partition(":")[2] or str(self)

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
