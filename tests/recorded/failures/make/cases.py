"""One case of the corpus: how a failure is made, and what is to be said of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program that fails.

    Attributes:
        id: unique in its family.
        by: who runs it: ``python``, ``torchrun``, ``sh``, or ``files`` (the outputs are given).
        program: source of the program; or of ``files``, nothing.
        args: options of who runs it, before the program.
        env: more environment.
        nodes: of torchrun: how many run side by side; `node` is the one whose output is recorded.
        kill_after_s: end what was started, after so many seconds, with `kill_signal`.
        memory_mb: run it in a memory cgroup of this size.
        kind: the class that is right.
        rank: the rank that is to be named; None: any, or none.
        said: what must be in the message.
        unsaid: what must not be in it.
        aftermath: whether it failed only because another had.
        files: `stderr`, `stdout`, `said`, `error_file` that are given, not made.
        exit_code, signal: of what is given.
        source: ``made`` here, ``recorded`` of a real system elsewhere, ``documented``: its words are public.
    """

    id: str
    by: str = "python"
    program: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    nodes: int = 1
    node: int = 0
    kill_after_s: float = 0
    kill_signal: int = 15
    memory_mb: int = 0
    python: str = ""
    kind: str = "error"
    rank: int | None = None
    said: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    signal: str = ""
    aftermath: bool = False
    files: dict[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    source: str = "made"
