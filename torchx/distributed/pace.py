"""Reports the step of each rank, and how much of its time it spends outside of collectives.

A thread writes one record a rank, at most once a second, to the file ``$TORCHX_STEPS`` of its replica: JSON in a slot
of :data:`torchx.settings.STEPS_SLOT` bytes, by local rank. Without such a file, each rank prints a line
``::torchx progress step=..`` every ten seconds. :mod:`torchx.schedulers.kit.pace` reads both.

In synchronous training a slow rank makes all ranks slow, so the time between two steps shows nothing. The thread
samples the stack of the training loop twenty times a second: a rank that sleeps in a collective, or in a backward pass
of several ranks, waits for others; all other time is its own.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from torchx.distributed.ranks import local_rank, rank, world_size
from torchx.settings import ENV_STEPS, ENV_STRAGGLER, STEPS_LINE, STEPS_SLOT
from torchx.util.any import Any
from torchx.util.strings import whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

STRAGGLER_S = 300.0
"""Default of ``$TORCHX_STRAGGLER_S``."""

_WRITE_S, _LINE_S, _SAMPLE_S = 1.0, 10.0, 0.05
_WRITERS = 64  # in a large job, so many ranks write in each second
_POINTS, _PARTS = 48, 8  # points kept, points in the time after which a rank counts as slow
_MAX_METRICS = 16
_INNERMOST = 2  # frames: of a collective, and of its wrapper


class Pace:
    """The steps of this rank. The thread that creates it is the one that is sampled."""

    def __init__(self) -> None:
        self.step = -1
        self.total: int | None = None
        self.metrics: dict[str, Any] = {}
        self._path = os.environ.get(ENV_STEPS, "")
        try:
            self._slow_s = max(float(os.environ.get(ENV_STRAGGLER) or STRAGGLER_S), 1.0)
        except ValueError:
            self._slow_s = STRAGGLER_S
        self._began = time.time()
        self._points: list[tuple[float, int, float]] = []
        self._last = (-1, self._began)  # the newest step, and when it was seen
        self._busy = 0.0
        self._thread = (threading.get_ident(), threading.get_native_id())
        self._several = world_size() > 1
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._writer = threading.Thread(target=self._run, name="torchx-pace", daemon=True)
        self._writer.start()
        import atexit

        atexit.register(self._end)

    def _run(self) -> None:
        every_s = _WRITE_S if self._path else _LINE_S
        every_s *= max(1.0, world_size() / _WRITERS)
        due, before = time.monotonic() + _WRITE_S / 4, time.monotonic()
        pause_s = _SAMPLE_S if self._several else every_s / 4
        while not self._over.wait(min(pause_s, max(due - before, 0.01))):
            now = time.monotonic()
            if not (self._several and self._waits()):
                self._busy += now - before
            before = now
            if now >= due:
                due = now + every_s
                self._write()

    def _end(self) -> None:
        """Write the last step. PyTorch may abort a process that exits while a thread runs."""
        self._over.set()
        self._writer.join(_WRITE_S)
        self._write()

    def _waits(self) -> bool:
        """Whether the rank waits for others: it sleeps in a collective, or in a backward pass."""
        frame: FrameType | None = sys._current_frames().get(self._thread[0])
        for _ in range(_INNERMOST):
            if frame is None:
                return False
            name = frame.f_code.co_filename
            if "/torch/distributed/" in name or name.endswith("/torch/autograd/graph.py"):
                break
            frame = frame.f_back
        else:
            return False
        try:
            with open(f"/proc/self/task/{self._thread[1]}/stat", "rb", buffering=0) as f:
                return f.read().rpartition(b") ")[2][:1] == b"S"
        except OSError:  # not Linux
            return True

    def _write(self) -> None:
        with self._lock:  # at exit, the thread may still be writing
            now, step = time.time(), whole(self.step)
            if step is None:
                return
            if step != self._last[0]:
                self._last = (step, now)
            self._add((round(now, 2), step, round(self._busy, 2)))
            try:
                if self._path:
                    fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
                    try:
                        os.pwrite(fd, self._record(now, step), local_rank() * STEPS_SLOT)
                    finally:
                        os.close(fd)
                else:
                    os.write(1, self._line(now, step).encode())
            except OSError:
                pass  # for example a full disk: the job continues without

    def _add(self, point: tuple[float, int, float]) -> None:
        """Keep points at intervals of an eighth of the time after which a rank counts as slow, the old half sparser."""
        points = self._points
        if len(points) > 1 and point[0] - points[-2][0] < self._slow_s / _PARTS:
            points[-1] = point
        else:
            points.append(point)
        if len(points) > _POINTS:
            del points[1 : _POINTS // 2 : 2]

    def _record(self, now: float, step: int) -> bytes:
        metrics = self.metrics.items()
        numbers = [(k, v) for k, v in metrics if isinstance(v, float) or (isinstance(v, int) and abs(v) < 1 << 53)]
        row = {
            **{
                "t": round(now, 2),
                "rank": rank(),
                "world": world_size(),
                "step": step,
                "total": whole(self.total),
            },
            **{"at": round(self._last[1], 2), "began": round(self._began, 2), "slow_s": self._slow_s},
            **{"metrics": dict(numbers[:_MAX_METRICS]), "points": self._points},
        }
        text = json.dumps(row, separators=(",", ":"))
        if len(text) >= STEPS_SLOT:
            text = json.dumps({**row, "metrics": {}}, separators=(",", ":"))
        return f"{text:<{STEPS_SLOT - 1}}\n".encode()

    def _line(self, now: float, step: int) -> str:
        count = whole(self.total)
        total = "" if count is None else f" total={count}"
        where = f"rank={rank()} world={world_size()} slow_s={self._slow_s:g}" if self._several else ""
        return f"{STEPS_LINE} step={step}{total} t={now:.1f} busy={self._busy:.1f} {where}".rstrip() + "\n"
