"""Workers of torchrun that die, with a traceback and without one; no collectives."""

from __future__ import annotations

from collections.abc import Iterator

from tests.recorded.failures.make.cases import Case

HEAD = """\
import os, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print(f"worker {rank} of {world}: loading")
"""


def on(rank: int, then: str, *, others: str = "time.sleep(60)", head: str = "") -> str:
    """A program in which one rank fails while the others do something else."""

    def block(text: str) -> str:
        return "".join(f"    {line}\n" for line in text.splitlines())

    return f"{HEAD}{head}\nif rank == {rank}:\n{block(then)}else:\n{block(others)}"


def n(workers: int, *more: str) -> tuple[str, ...]:
    return ("--nproc_per_node", str(workers), *more)


TRAINER = ("--tee", "3", "--role", "trainer")
PLAIN = ("--tee", "0")
SIGNALS = {
    "segv": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "kill": ("os.kill(os.getpid(), 9)", "SIGKILL"),
    "abort": ("os.abort()", "SIGABRT"),
    "bus": ("os.kill(os.getpid(), 7)", "SIGBUS"),
    "fpe": ("os.kill(os.getpid(), 8)", "SIGFPE"),
    "ill": ("os.kill(os.getpid(), 4)", "SIGILL"),
}
SETUPS = {
    "tee2": (n(2), 1),
    "role2": (n(2, *TRAINER), 1),
    "plain2": (n(2, *PLAIN), 1),
    "tee4": (n(4), 2),
    "one": (n(1), 0),
}
CHAIN = """\
try:
    raise ValueError("bad batch")
except ValueError as e:
    raise RuntimeError("training failed in epoch 3") from e
"""
DURING = """\
try:
    {}["lr"]
except KeyError:
    open("/nosuch/defaults.yaml")
"""
GROUP = 'raise ExceptionGroup("two shards failed", [ValueError("shard 3 is cut"), OSError("shard 4 is gone")])'
LOAD = """\
print("loading the checkpoint")
raise RuntimeError('''Error(s) in loading state_dict for Net:
\\tMissing key(s) in state_dict: "fc.weight", "fc.bias".
\\tUnexpected key(s) in state_dict: "head.weight".
\\tsize mismatch for conv.weight: copying a param with shape torch.Size([8, 3, 3, 3]) from checkpoint.''')
"""
BAR = """\
for i in range(5):
    sys.stderr.write(f"\\r {i * 20}%|{'#' * i}{' ' * (5 - i)}| {i}/5 [00:0{i}<00:05,  1.00s/it]")
raise IndexError("batch 5 of 5")
"""
ERRORS = {
    "value": ('raise ValueError("bad batch")', ("ValueError: bad batch",)),
    "exit-text": ('sys.exit("no data in /data")', ("no data in /data",)),
    "exit-3": ("sys.exit(3)", ()),
    "os-exit": ("os._exit(17)", ()),
    "stdout-words": (
        'print("fatal: the tokenizer has no vocabulary"); sys.exit(3)',
        ("the tokenizer has no vocabulary",),
    ),
    "chain": (CHAIN, ("ValueError: bad batch",)),
    "during": (DURING, ("KeyError: 'lr'", "/nosuch/defaults.yaml")),
    "group": (GROUP, ("ValueError: shard 3 is cut",)),
    "load": (LOAD, ("Missing key(s) in state_dict", "size mismatch")),
    "bar": (BAR, ("IndexError: batch 5 of 5",)),
    "long": ('raise ValueError("x" * 50000)', ("ValueError: xxxxx",)),
    "long-exit": ('sys.exit("no data: " + "y" * 50000)', ("no data: yyyy",)),
    "colour": ('sys.exit("\\x1b[1;31mERROR\\x1b[0m: no \\x1b[4mdata\\x1b[0m")', ("ERROR: no data",)),
    "assert": ("assert world == 3", ("AssertionError",)),
    "unicode": ('raise ValueError("Größe 差 🏖")', ("Größe 差 🏖",)),
    "warned": (
        'import warnings; warnings.warn("use lr2", DeprecationWarning); warnings.warn("slow")\nsys.exit("lr is not set")',
        ("lr is not set",),
    ),
    "logged": (
        "import logging; logging.basicConfig(level=20); logging.error('no config')\nlogging.info('bye')\nsys.exit(1)",
        ("no config",),
    ),
    "argparse": (
        "import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr', required=True); p.parse_args()",
        ("the following arguments are required: --lr",),
    ),
    "atexit": (
        "import atexit; atexit.register(lambda: print('bye', file=sys.stderr))\nraise KeyError('epoch')",
        ("KeyError: 'epoch'",),
    ),
    "notes": ("e = ValueError('bad step')\ne.add_note('step 12')\nraise e", ("ValueError: bad step", "step 12")),
    "handled": (
        "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
        "for i in range(60):\n    print('epoch', i, file=sys.stderr)\nos.kill(os.getpid(), 9)",
        (),
    ),
}


def _signals() -> Iterator[Case]:
    for name, (code, signal) in SIGNALS.items():
        for setup in ("tee2", "role2", "plain2", "tee4", "one") if name in ("segv", "kill") else ("tee2",):
            args, rank = SETUPS[setup]
            kind = "unknown" if name == "kill" else "error"
            yield Case(
                id=f"{name}-{setup}", by="torchrun", program=on(rank, code), args=args, rank=rank, kind=kind, signal=signal,
                unsaid=("====", "torch/distributed", "OMP_NUM"),
            )  # fmt: skip
    faults = {"PYTHONFAULTHANDLER": "1"}
    for setup in ("tee2", "plain2"):
        args, rank = SETUPS[setup]
        yield Case(
            id=f"faulthandler-{setup}", by="torchrun", program=on(rank, SIGNALS["segv"][0]), args=args, env=faults,
            rank=rank, signal="SIGSEGV", said=("Segmentation fault",) if setup == "tee2" else (),
        )  # fmt: skip


def _errors() -> Iterator[Case]:
    several = ("value", "exit-text", "exit-3", "stdout-words", "chain", "load", "bar")
    for name, (code, said) in ERRORS.items():
        for setup in SETUPS if name in several else ("tee2",):
            args, rank = SETUPS[setup]
            killed = name == "handled"
            yield Case(
                id=f"{name}-{setup}", by="torchrun", program=on(rank, code), args=args, rank=rank, said=said,
                kind="unknown" if killed else "error", signal="SIGKILL" if killed else "",
                unsaid=("====", "ChildFailedError", "SIGTERM", "use lr2", *(["ZeroDivision"] if killed else [])),
            )  # fmt: skip


def _recorded() -> Iterator[Case]:
    """Workers under ``@record``: torchelastic's error file."""
    head = "from torch.distributed.elastic.multiprocessing.errors import record\n"
    for name, code in {"value": 'raise ValueError("bad batch")', "chain": CHAIN, "load": LOAD}.items():
        main = "@record\ndef main():\n" + "".join(f"    {line}\n" for line in code.replace("\\t", "\\t").splitlines())
        said = ("Missing key(s)",) if name == "load" else ("ValueError: bad batch",)
        yield Case(
            id=f"record-{name}", by="torchrun", program=on(1, "main()", head=head + main), args=n(2), rank=1, said=said
        )
    both = "@record\ndef main():\n    time.sleep(2 * rank)\n    raise RuntimeError(f'no shard for {rank}')\n"
    yield Case(
        id="record-all",
        by="torchrun",
        program=f"{HEAD}{head}{both}main()\n",
        args=n(2),
        rank=0,
        said=("no shard for 0",),
    )


def _programs() -> Iterator[Case]:
    """What never starts."""
    yield Case(
        id="no-module", by="torchrun", args=(*n(2), "-m", "nosuchmodule"), said=("No module named nosuchmodule",)
    )
    yield Case(id="no-script", by="torchrun", args=(*n(2), "nosuch.py"), said=("can't open file", "nosuch.py"))
    yield Case(id="no-module-1", by="torchrun", args=(*n(1), "-m", "nosuchmodule"), rank=0, said=("nosuchmodule",))
    yield Case(id="no-program", by="torchrun", args=(*n(1), "--no-python", "nosuch-binary"), said=("nosuch-binary",))
    for setup in ("tee2", "plain2"):
        args, _ = SETUPS[setup]
        yield Case(
            id=f"syntax-{setup}",
            by="torchrun",
            program="import os\ndef f(:\n    pass\n",
            args=args,
            said=("SyntaxError",),
        )
        yield Case(
            id=f"import-{setup}", by="torchrun", program="import numpy\nimport nosuch.sub\n", args=args,
            said=("ModuleNotFoundError: No module named 'nosuch'",),
        )  # fmt: skip
        yield Case(
            id=f"all-fail-{setup}", by="torchrun", program=HEAD + "raise FileNotFoundError('no /data/train')\n", args=args,
            said=("FileNotFoundError: no /data/train",),
        )  # fmt: skip
    yield Case(
        id="bad-option",
        by="torchrun",
        program="",
        args=("--nproc_per_node", "many"),
        said=("Unsupported nproc_per_node",),
    )
    cpp = '#include <stdexcept>\\nint main() { throw std::runtime_error("bad data"); }'
    build = f"os.system('''printf '{cpp}' > a.cpp && g++ -o a.out a.cpp''')\nos.execv('./a.out', ['./a.out'])"
    for setup in ("tee2", "plain2"):
        args, rank = SETUPS[setup]
        yield Case(
            id=f"cpp-{setup}", by="torchrun", program=on(rank, build), args=args, rank=rank, signal="SIGABRT",
            said=("std::runtime_error: bad data",) if setup == "tee2" else (),
        )  # fmt: skip


def _told_to_end() -> Iterator[Case]:
    sleep = HEAD + "time.sleep(60)\n"
    for name, number in (("term", 15), ("int", 2), ("hup", 1)):
        yield Case(
            id=f"told-{name}", by="torchrun", program=sleep, args=n(2), kill_after_s=9, kill_signal=number,
            kind="cancelled", aftermath=number == 15,
        )  # fmt: skip


def cases() -> list[Case]:
    return [*_signals(), *_errors(), *_recorded(), *_programs(), *_told_to_end()]
