"""Checks the node of a replica before its program starts; runs there, by any Python 3.7 or newer, without torchx.

Arguments: the checks, the number of the replica, the number of replicas, GPUs that it asked for, the variable with the
host of replica 0, and a number to add to the port. Writes a line and exits with 1 if the node is not fit.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import time

MARK = "torchx: node check failed: "
LEAST_DISK, LEAST_SHM = 1 << 30, 32 << 20  # bytes
MAX_SKEW_S = 5.0
WAIT_S = 60.0  # for other replicas, which may start later
_SMI = "index,ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.hw_slowdown"
_FINE = ("", "Active", "Not Active", "N/A", "[N/A]", "[Not Supported]", "[Insufficient Permissions]")


class UnfitError(Exception):
    """What is wrong with this node."""


def gpus(wanted: int) -> None:
    """Check number and health of the GPUs that nvidia-smi shows."""
    try:
        code, lines = _smi(_SMI)
        if any("not a valid field" in line for line in lines):  # of another driver
            code, lines = _smi("index")
    except subprocess.TimeoutExpired:
        raise UnfitError("nvidia-smi hangs") from None
    except OSError:
        if wanted:
            raise UnfitError(f"it has no nvidia-smi, and {wanted} GPUs are asked for") from None
        return
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    rows = [row for row in rows if row[0].isdigit()]
    if code:
        if wanted:
            said = [line for line in lines if not line.partition(",")[0].isdigit()]
            raise UnfitError(f"nvidia-smi fails: {(said or ['no output'])[-1]}")
        return
    if len(rows) < wanted:
        raise UnfitError(f"it has {len(rows)} GPUs, and {wanted} are asked for")
    for row in rows:
        index, ecc, slow = [*row, "", ""][:3]
        if ecc.isdigit() and int(ecc):
            raise UnfitError(f"GPU {index} has {ecc} uncorrected memory errors (ECC)")
        if slow == "Active":
            raise UnfitError(f"GPU {index} is throttled by its hardware (heat or power)")
        for cell in row[1:]:  # after an Xid, for example `[GPU requires reset]`
            if not cell.isdigit() and cell not in _FINE:
                raise UnfitError(f"nvidia-smi says of GPU {index}: {cell}")


def _smi(query: str) -> tuple[int, list[str]]:
    """Return exit code and lines of nvidia-smi."""
    argv = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    done = subprocess.run(argv, capture_output=True, errors="replace", timeout=WAIT_S, check=False)
    return done.returncode, [line.strip() for line in (done.stdout or done.stderr).splitlines() if line.strip()]


def disk() -> None:
    """Check the room in the working folder, for temporary files and in shared memory."""
    tmp = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  # where programs write
    for path, least in ((".", LEAST_DISK), (tmp, LEAST_DISK), ("/dev/shm", LEAST_SHM)):  # noqa: S108
        free = shutil.disk_usage(path).free if os.path.isdir(path) else least
        if free < least:
            raise UnfitError(f"{os.path.abspath(path)} has {free >> 20} MiB free, less than {least >> 20}")


def serve(port: int, others: int) -> float:
    """Tell the other replicas the time of replica 0."""
    server = socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET)
    with server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if socket.has_ipv6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            server.bind(("", port))
        except OSError as e:
            raise UnfitError(f"port {port} of replica 0 cannot be used: {e}") from e
        server.listen(1024)
        seen: set[bytes] = set()
        end = time.monotonic() + 1.5 * WAIT_S  # a replica that cannot reach it gives up first, and is the one to blame
        while len(seen) < others and time.monotonic() < end:
            server.settimeout(max(end - time.monotonic(), 0.01))
            try:
                link, _ = server.accept()
                with link:
                    link.settimeout(5)
                    who = link.recv(16)
                    link.sendall(struct.pack("!d", time.time()))
                seen.add(who)
            except OSError:  # a scanner, or a replica that gave up and says itself what is wrong
                continue
    if len(seen) < others:
        raise UnfitError(f"{others - len(seen)} of {others} replicas did not reach it")
    return 0.0


def ask(host: str, port: int, k: int) -> float:
    """Return by how many seconds the clock of replica 0 is ahead."""
    end, why = time.monotonic() + WAIT_S, "no answer"
    while time.monotonic() < end:
        try:
            with socket.create_connection((host, port), timeout=5) as link:
                before = time.time()
                link.sendall(f"{k:<16}".encode())
                data = link.recv(8)
                if len(data) == 8:
                    return float(struct.unpack("!d", data)[0]) - (before + time.time()) / 2
        except OSError as e:
            why = str(e)
        time.sleep(0.2)
    raise UnfitError(f"it does not reach port {port} of replica 0 on {host} in {WAIT_S:g} s: {why}")


def collective(host: str, port: int, k: int, count: int, gpu: int) -> None:
    """Sum up 4 MiB over all replicas, by NCCL where there are GPUs, else by gloo; jobs without PyTorch pass."""
    try:
        from datetime import timedelta

        import torch
        import torch.distributed as dist
    except ImportError:
        return
    try:
        on_gpu = bool(gpu) and torch.cuda.is_available()
        where = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        limit = timedelta(seconds=WAIT_S)
        kind = "nccl" if on_gpu else "gloo"
        dist.init_process_group(kind, init_method=where, rank=k, world_size=count, timeout=limit)
        some = torch.ones(1 << 20, device="cuda" if on_gpu else "cpu")
        dist.all_reduce(some)
        total = float(some[0].item())
        dist.destroy_process_group()
    except Exception as e:
        raise UnfitError("an all_reduce of 4 MiB failed: " + str(e).strip().partition("\n")[0]) from e
    if total != count:
        raise UnfitError(f"an all_reduce of {count} replicas gave {total:g}")


def main(argv: list[str]) -> int:
    """Run the checks; return the exit code."""
    global WAIT_S  # set where a wrong value has a message
    try:
        WAIT_S = float(os.environ.get("TORCHX_CHECK_WAIT_S") or WAIT_S)
    except ValueError as e:
        sys.stderr.write(f"torchx: TORCHX_CHECK_WAIT_S: {e}\n")
        return 2
    checks, variable = argv[0].split(","), argv[4]
    k, count, wanted, shift = (int(argv[at]) for at in (1, 2, 3, 5))
    host = os.environ.get(variable) or "localhost"
    port = int(os.environ.get("TORCHX_RANK0_PORT") or 29500) + shift
    try:
        if "gpus" in checks:
            gpus(wanted)
        if "disk" in checks:
            disk()
        if count > 1 and {"net", "clock"} & {*checks}:
            skew = ask(host, port, k) if k else serve(port, count - 1)
            if "clock" in checks and abs(skew) > MAX_SKEW_S:
                raise UnfitError(
                    f"its clock is {abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} that of replica 0"
                )
        if count > 1 and "collective" in checks:
            collective(host, port, k, count, wanted)
    except UnfitError as e:
        sys.stderr.write(f"{MARK}{os.environ.get('SLURMD_NODENAME') or socket.gethostname()}: {e}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
