"""A user's bugs that look like something transient: all of class error."""

from __future__ import annotations

from tests.recorded.failures.make.cases import Case
from tests.recorded.failures.make.torchrun import PLAIN, n, on

RAISED = {
    "node-failure": "RuntimeError('node failure')",
    "nccl-timeout": "ValueError('NCCL timeout is no number: 10m')",
    "nccl-error": "RuntimeError('NCCL error in: my.cpp:12, unhandled system error')",
    "preempted": "RuntimeError('preempted')",
    "preemption-words": "RuntimeError('CANCELLED AT 2026-11-22 DUE TO PREEMPTION')",
    "time-limit": "RuntimeError('DUE TO TIME LIMIT')",
    "closed": "RuntimeError('Connection closed by peer')",
    "gloo": "RuntimeError('[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:4')",
    "timeout": "TimeoutError('the label service did not answer in 30 s')",
    "connection": "ConnectionError('no connection to the feature store')",
    "refused": "ConnectionRefusedError(111, 'Connection refused')",
    "oom-word": "ValueError('gpu_oom is no policy; choose oom or none')",
    "ecc": "ValueError('column uncorrectable ECC error is missing')",
    "xid": "KeyError('Xid 79')",
    "evicted": "LookupError('key was Evicted from the cache')",
    "store": "RuntimeError('Timed out after 30 seconds waiting for clients. 1/2 clients joined.')",
    "watchdog": "RuntimeError('Watchdog caught collective operation timeout')",
    "broken-pipe": "OSError(32, 'Broken pipe')",
    "image-pull": "RuntimeError('ImagePullBackOff')",
    "cancelled": "RuntimeError('the trial was CANCELLED')",
    "deadline": "TimeoutError('DeadlineExceeded')",
}
# They may be the aftermath of another's end, and are not blamed when another has an error of its own.
LOST = ("closed", "gloo", "refused", "broken-pipe", "socket")
EXITS = {
    "exit-node": "node n1 lost: no data in /data",
    "exit-preempted": "preempted by a newer trial",
    "exit-timeout": "Timed out waiting for the label service",
    "exit-nccl": "error: NCCL_SOCKET_IFNAME is not set",
    "exit-gpu": "error: the GPU is lost in translation",
    "exit-xid": "error: Xid 79 is no number",
    "exit-ecc": "fatal: column uncorrectable ECC error has no values",
    "exit-oom": "policy is OOMKilled or nothing",
    "exit-refused": "http://labels:80: Connection refused",
    "exit-cancelled": "trial CANCELLED by the pruner",
}
REAL: dict[str, tuple[str, tuple[str, ...]]] = {
    "group": ("raise ExceptionGroup('2', [RuntimeError('Connection closed by peer'), OSError('x')])\n", ("ExceptionGroup: 2",)),
    "tasks": (
        "import asyncio\nasync def f():\n    raise RuntimeError('[gloo/pair.cc:5] Connection closed by peer [n1]:4')\n"
        "async def main():\n    async with asyncio.TaskGroup() as tasks:\n        tasks.create_task(f())\nasyncio.run(main())\n",
        ("Connection closed by peer",),
    ),
    "requests": ("import requests\nrequests.get('http://localhost:9/labels')\n", ("ConnectionRefusedError",)),
    "requests-dns": ("import requests\nrequests.get('http://no-such-host.invalid/')\n", ("NameResolutionError",)),
    "requests-timeout": (
        "import socket, requests\ns = socket.socket(); s.bind(('localhost', 0)); s.listen()\n"
        "requests.get(f'http://localhost:{s.getsockname()[1]}', timeout=0.5)\n", ("timed out",),
    ),
    "urllib": ("import urllib.request\nurllib.request.urlopen('http://localhost:9')\n", ("Connection refused",)),
    "socket": ("import socket\nsocket.create_connection(('localhost', 9))\n", ("Connection refused",)),
    "socket-timeout": (
        "import socket\ns = socket.socket(); s.bind(('localhost', 0)); s.listen()\n"
        "c = socket.create_connection(s.getsockname()); c.settimeout(0.3); c.recv(1)\n", ("timed out",),
    ),
    "dns": ("import socket\nsocket.getaddrinfo('no-such-host.invalid', 80)\n", ("Name or service not known",)),
    "future": (
        "import concurrent.futures as f, time\np = f.ThreadPoolExecutor(); j = p.submit(time.sleep, 1)\nj.result(0.1)\n",
        ("TimeoutError",),
    ),
    "asyncio-timeout": (
        "import asyncio\nasync def main():\n    await asyncio.wait_for(asyncio.sleep(9), 0.1)\nasyncio.run(main())\n",
        ("TimeoutError",),
    ),
    "queue": ("import queue\nqueue.Queue().get(timeout=0.1)\n", ("Empty",)),
    "pipe": (
        "import multiprocessing as mp, os\na, b = mp.Pipe()\na.close()\nb.recv()\n", ("EOFError",),
    ),
    "own-classes": (
        "class PreemptedError(Exception): pass\nclass NodeFailure(PreemptedError): pass\nraise NodeFailure('NODE_FAIL')\n",
        ("NodeFailure: NODE_FAIL",),
    ),
    "own-oom": ("class OutOfMemoryError(Exception): pass\nraise OutOfMemoryError('CUDA out of memory')\n", ()),
    "wrapped-api": (
        "import requests\ntry:\n    requests.get('http://localhost:9/labels')\nexcept requests.ConnectionError as e:\n"
        "    raise RuntimeError('no labels: is NCCL preempted?') from e\n", ("no labels",),
    ),
}  # fmt: skip


LIBRARY = """\
import os, sys
os.makedirs("site-packages")
with open("site-packages/features.py", "w") as f:
    f.write("def read():\\n    raise {}\\n")
sys.path.insert(0, "site-packages")
import features
features.read()
"""
# Raised by a library that is not PyTorch's.
BY_LIBRARY = ("closed", "gloo", "timeout", "connection", "refused", "store", "nccl-error", "node-failure", "deadline")


def cases() -> list[Case]:
    raised = {name: f"def check(cfg):\n    raise {text}\ncheck(1)\n" for name, text in RAISED.items()}
    ranks = ("nccl-error", "closed", "node-failure", "timeout", "refused", "store")
    return [
        *(Case(id=name, program=program, aftermath=name in LOST) for name, program in raised.items()),
        *(
            Case(id=name, program=f"import sys\nprint('loading')\nsys.exit({t!r})\n", said=(t,))
            for name, t in EXITS.items()
        ),
        *(Case(id=f"library-{i}", program=LIBRARY.format(RAISED[i]), aftermath=i in LOST) for i in BY_LIBRARY),
        *(Case(id=i, program=p, said=said, aftermath=i in LOST) for i, (p, said) in REAL.items()),
        *(
            Case(
                id=f"{name}-tee2",
                by="torchrun",
                program=on(1, f"raise {RAISED[name]}"),
                args=n(2),
                rank=1,
                aftermath=name in LOST,
            )
            for name in ranks
        ),
        *(
            Case(
                id=f"{name}-plain2",
                by="torchrun",
                program=on(1, f"raise {RAISED[name]}"),
                args=n(2, *PLAIN),
                rank=1,
                aftermath=name in LOST,
            )
            for name in ranks
        ),
    ]
