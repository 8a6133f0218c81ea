"""References to secret values: everything that torchx stores or displays contains the reference, not the value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx.errors import SpecError

if TYPE_CHECKING:
    from typing_extensions import Self

VALUES = ("env", "cmd", "file")
"""Kinds of references that are resolved on the submitting machine."""

KINDS = (*VALUES, "k8s", "aws-sm")


class Secret(str):
    """A reference to a secret, as the value of an environment variable in ``Role.env``.

    A Secret is a string, the reference itself, so code that copies or prints an environment shows the reference. It is
    resolved when the job is submitted. The value reaches the replicas without appearing in a script, a process list
    or a database.

    Args:
        reference: one of these:

            ==================  ====================================================================
            ``HF_TOKEN``        the reference that ``[secrets]`` in ``.torchxconfig`` has for this name; without one,
                                the environment variable of this name
            ``env:NAME``        an environment variable of the submitting process
            ``cmd:COMMAND``     the output of a shell command, for example ``cmd:pass show wandb``
            ``file:PATH``       the content of a file
            ``k8s:NAME/KEY``    a key of a Secret in the Kubernetes cluster
            ``aws-sm:ARN``      a secret of AWS Secrets Manager, or a parameter of AWS Systems Manager
            ==================  ====================================================================

    Raises:
        SpecError: the reference is malformed.

    >>> env = {"HF_TOKEN": Secret("env:HF_TOKEN"), "WANDB_API_KEY": Secret("cmd:pass show wandb")}
    >>> env["WANDB_API_KEY"].kind, env["WANDB_API_KEY"].place
    ('cmd', 'pass show wandb')
    """

    __slots__ = ()

    is_reference = True
    """Marks the class for modules of lower layers, which cannot import it."""

    def __new__(cls, reference: str) -> Self:
        kind, colon, place = reference.partition(":")
        forms = "one of `env:NAME`, `cmd:COMMAND`, `file:PATH`, `k8s:NAME/KEY`, `aws-sm:ARN`"
        if not colon:
            if not (kind.isidentifier() and kind.isascii()):  # not quoted: it may be the secret value
                raise SpecError("a Secret is a reference to a value, not the value", hint=forms)
        elif kind not in KINDS:
            raise SpecError("the reference of a Secret has an unknown kind", hint=forms)
        elif not place.strip() or "\0" in place:
            raise SpecError(f"nothing follows `{kind}:` of a Secret", hint=forms)
        elif kind == "k8s" and not all(place.partition("/")):
            raise SpecError(f"`{reference}` is not `k8s:NAME/KEY`", hint="name the Secret, and its key")
        elif kind == "aws-sm" and not place.startswith("arn:"):
            raise SpecError(f"`{reference}` is not `aws-sm:ARN`", hint="an ARN begins with `arn:`")
        return super().__new__(cls, reference)

    @property
    def kind(self) -> str:
        """Kind of the reference: ``env``, ``cmd``, ``file``, ``k8s`` or ``aws-sm``; empty for a bare name."""
        kind, colon, _ = self.partition(":")
        return kind if colon else ""

    @property
    def place(self) -> str:
        """The reference without its kind, or the bare name."""
        return self.partition(":")[2] or str(self)

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
