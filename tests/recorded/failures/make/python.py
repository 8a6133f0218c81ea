"""Plain Python programs, of several releases of Python."""

from __future__ import annotations

from collections.abc import Iterator

from tests.recorded.failures.make.cases import Case

POOL = """\
def f(x):
    raise ValueError(f"bad shard {x}")
"""
PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "zero": ("print('step 1')\n1 / 0\n", ("ZeroDivisionError: division by zero",)),
    "exit-text": ("import sys\nsys.exit('no data in /data')\n", ("no data in /data",)),
    "exit-stdout": ("import sys\nprint('loading')\nprint('fatal: no data')\nsys.exit(3)\n", ("fatal: no data",)),
    "exit-silent": ("import sys\nsys.exit(3)\n", ()),
    "key": ("cfg = {}\nlr = cfg['optimizer']['lr']\n", ("KeyError: 'optimizer'",)),
    "attribute": ("import math\nmath.sqroot(4)\n", ("AttributeError: module 'math' has no attribute 'sqroot'",)),
    "name": ("def main():\n    return modle\nmain()\n", ("NameError: name 'modle' is not defined",)),
    "import": ("import nosuch_package\n", ("No module named 'nosuch_package'",)),
    "import-name": ("from json import lods\n", ("ImportError: cannot import name 'lods'",)),
    "syntax": ("x = (1,\n", ("SyntaxError",)),
    "indent": ("def f():\nreturn 1\n", ("IndentationError",)),
    "tab": ("if 1:\n\tx = 1\n        y = 2\n", ("TabError",)),
    "no-file": ("open('/data/train.csv')\n", ("FileNotFoundError", "/data/train.csv")),
    "permission": ("import os\nos.setuid(65534)\nopen('/etc/shadow')\n", ("PermissionError", "/etc/shadow")),
    "is-dir": ("open('/etc')\n", ("IsADirectoryError",)),
    "disk-full": ("with open('/dev/full', 'w') as f:\n    f.write('x' * 9999)\n", ("No space left on device",)),
    "json": ("import json\njson.loads('{bad')\n", ("JSONDecodeError: Expecting property name",)),
    "unicode": ("b'\\xff'.decode()\n", ("UnicodeDecodeError",)),
    "recursion": ("def f(n):\n    return f(n + 1)\nf(0)\n", ("RecursionError: maximum recursion depth exceeded",)),
    "assert-text": ("loss = float('nan')\nassert loss == loss, 'loss is NaN at step 7'\n", ("loss is NaN at step 7",)),
    "assert-bare": ("assert 1 == 2\n", ("AssertionError",)),
    "not-implemented": ("raise NotImplementedError\n", ("NotImplementedError",)),
    "stop-iteration": ("it = iter([])\nnext(it)\n", ("StopIteration",)),
    "chain": ("try:\n    int('x')\nexcept ValueError as e:\n    raise RuntimeError('bad --lr') from e\n",
              ("ValueError: invalid literal", "RuntimeError: bad --lr")),
    "during": ("try:\n    {}['a']\nexcept KeyError:\n    undefined\n", ("KeyError: 'a'", "NameError")),
    "three": ("try:\n  try:\n    1 / 0\n  except ZeroDivisionError as e:\n    raise ValueError('b') from e\n"
              "except ValueError as e:\n  raise RuntimeError('c') from e\n", ("ZeroDivisionError", "RuntimeError: c")),
    "suppressed": ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('lr is 0') from None\n",
                   ("ValueError: lr is 0",)),
    "lines": ("raise ValueError('three problems:\\n  - no data\\n  - no model\\n  - no lr')\n", ("- no lr",)),
    "thread-pool": ("from concurrent.futures import ThreadPoolExecutor\n" + POOL
                    + "with ThreadPoolExecutor() as p:\n    list(p.map(f, range(3)))\n", ("ValueError: bad shard 0",)),
    "process-pool": ("from concurrent.futures import ProcessPoolExecutor\n" + POOL
                     + "if __name__ == '__main__':\n  with ProcessPoolExecutor(2) as p:\n    list(p.map(f, range(3)))\n",
                     ("ValueError: bad shard 0",)),
    "mp-pool": ("from multiprocessing import Pool\n" + POOL
                + "if __name__ == '__main__':\n  with Pool(2) as p:\n    p.map(f, range(3))\n", ("ValueError: bad shard",)),
    "broken-pool": ("from concurrent.futures import ProcessPoolExecutor\nimport os\n"
                    "if __name__ == '__main__':\n  with ProcessPoolExecutor(2) as p:\n    p.submit(os._exit, 3).result()\n",
                    ("BrokenProcessPool",)),
    "called": ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'raise ValueError(\"bad row\")'], check=True)\n",
               ("ValueError: bad row",)),
    "called-silent": ("import subprocess\nsubprocess.run(['false'], check=True)\n", ("CalledProcessError",)),
    "called-timeout": ("import subprocess\nsubprocess.run(['sleep', '9'], timeout=0.2)\n", ("TimeoutExpired",)),
    "no-program": ("import subprocess\nsubprocess.run(['nosuch-tool', '-v'])\n", ("FileNotFoundError", "nosuch-tool")),
    "asyncio": ("import asyncio\nasync def main():\n    await asyncio.gather(f(), asyncio.sleep(9))\nasync def f():\n"
                "    raise ValueError('bad message')\nasyncio.run(main())\n", ("ValueError: bad message",)),
    "atexit": ("import atexit\natexit.register(lambda: 1 / 0)\nraise ValueError('bad batch')\n", ("ValueError: bad batch",)),
    "ignored": ("class A:\n    def __del__(self):\n        raise OSError('late')\na = A()\nraise ValueError('bad batch')\n",
                ("ValueError: bad batch",)),
    "ignored-exit": ("import sys\nclass A:\n    def __del__(self):\n        raise OSError('late')\na = A()\ndel a\n"
                     "sys.exit('no data in /data')\n", ("no data in /data",)),
    "logging-bug": ("import logging, sys\nlogging.warning('%d', 'x')\nsys.exit('no data in /data')\n", ("no data in /data",)),
    "logged": ("import logging\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.exception('step failed')\n"
               "    raise SystemExit(1)\n", ("ZeroDivisionError",)),
    "thread": ("import threading, sys\nt = threading.Thread(target=lambda: {}['x'])\nt.start(); t.join()\nsys.exit(2)\n",
               ("KeyError: 'x'",)),
    "excepthook": ("import sys\nsys.excepthook = lambda *a: print('train.py: error: the shard is empty', file=sys.stderr)\n"
                   "raise ValueError\n", ("the shard is empty",)),
    "colour": ("print('\\x1b[31mERROR: no data\\x1b[0m')\nraise SystemExit(1)\n", ("ERROR: no data",)),
    "warnings": ("import warnings\nwarnings.warn('old', FutureWarning)\nprint('fatal: no data')\nraise SystemExit(1)\n",
                 ("fatal: no data",)),
    "tqdm": ("import tqdm\nfor i in tqdm.tqdm(range(9)):\n    if i == 5:\n        raise ValueError('bad row')\n",
             ("ValueError: bad row",)),
    "long-line": ("import sys\nsys.exit('bad row: ' + 'z' * 70000)\n", ()),
    "no-newline": ("import sys\nsys.stderr.write('fatal: no data')\nsys.exit(1)\n", ("fatal: no data",)),
    "crlf": ("import sys\nsys.stderr.buffer.write(b'starting\\r\\nfatal: no data\\r\\n')\nsys.exit(1)\n",
             ("fatal: no data",)),
    "binary": ("import sys\nsys.stderr.buffer.write(bytes(range(256)) + b'\\nfatal: no data\\n')\nsys.exit(1)\n",
               ("fatal: no data",)),
}  # fmt: skip
GROUP = "raise ExceptionGroup('2 shards', [ValueError('shard 3 is cut'), ExceptionGroup('n', [OSError('gone')])])\n"
TASKS = """\
import asyncio
async def f():
    raise ValueError("bad message")
async def main():
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(f())
asyncio.run(main())
"""
OLDER = ("2.7.18", "3.6.15", "3.10.13", "3.12.1", "3.13.0")


def cases() -> list[Case]:
    return [
        *(Case(id=name, program=program, said=said) for name, (program, said) in PROGRAMS.items()),
        Case(id="group", program=GROUP, said=("ValueError: shard 3 is cut",)),
        Case(id="task-group", program=TASKS, said=("ValueError: bad message",)),
        *_versions(),
        *_signals(),
    ]


def _versions() -> Iterator[Case]:
    import os

    chain = "try:\n    int('x')\nexcept ValueError as e:\n    raise RuntimeError('bad --lr')\n"
    for version in OLDER:
        python = os.path.expanduser(f"~/.pyenv/versions/{version}/bin/python")
        said = ("bad --lr",) if version.startswith("2") else ("ValueError: invalid literal", "bad --lr")
        yield Case(id=f"chain-{version}", program=chain, said=said, python=python)
    python = os.path.expanduser("~/.pyenv/versions/3.13.0/bin/python")
    colour = {"FORCE_COLOR": "1"}
    yield Case(id="colour-3.13", program=chain, said=("ValueError: invalid literal",), python=python, env=colour)


def _signals() -> Iterator[Case]:
    """A process that ends itself by a signal, with and without faulthandler; and one that is told to end."""
    for name, code, signal, kind in (
        ("segv", "import ctypes\nctypes.string_at(0)\n", "SIGSEGV", "error"),
        ("abort", "import os\nprint('step 5')\nos.abort()\n", "SIGABRT", "error"),
        ("kill", "import os\nprint('step 5')\nos.kill(os.getpid(), 9)\n", "SIGKILL", "unknown"),
    ):
        yield Case(id=name, program=code, signal=signal, kind=kind)
        if name != "kill":
            yield Case(
                id=f"{name}-faulthandler", program=code, args=("-X", "faulthandler"), signal=signal, kind=kind,
                said=("Fatal Python error",),
            )  # fmt: skip
    sleep = "import time\nprint('step 5', flush=True)\ntime.sleep(60)\n"
    for name, number in (("SIGTERM", 15), ("SIGINT", 2), ("SIGHUP", 1), ("SIGKILL", 9)):
        yield Case(
            id=f"told-{name}", program=sleep, kill_after_s=1, kill_signal=number, signal=name,
            kind="unknown" if name == "SIGKILL" else "cancelled", aftermath=name == "SIGTERM",
        )  # fmt: skip
    yield Case(
        id="cpu-limit", program="import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 2))\nwhile True: pass\n",
        signal="SIGXCPU", kind="timeout",
    )  # fmt: skip
