"""GPUs and NCCL: there are none here; lines as PyTorch, CUDA and NCCL format them (``documented``), around real traces."""

from __future__ import annotations

from tests.recorded.failures.make.cases import Case

NCCL = "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
LIB = "/opt/venv/lib/python3.11/site-packages/torch/"
CUDA_NOTES = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
    "\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side "
    "assertions.\n"
)
OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.12 GiB is free. "
    "Including non-PyTorch memory, this process has 78.02 GiB memory in use. Of the allocated memory 76.45 GiB is allocated "
    "by PyTorch, and 812.33 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
    "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
)
# id -> class, exception, innermost file, words that must be told
RAISED: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "oom": ("gpu_oom", f"torch.OutOfMemoryError: {OOM}", "nn/functional.py", ("Tried to allocate 2.00 GiB",)),
    "oom-2.4": ("gpu_oom", f"torch.cuda.OutOfMemoryError: {OOM}", "nn/functional.py", ("CUDA out of memory",)),
    "oom-1.13": ("gpu_oom", f"RuntimeError: {OOM}", "nn/functional.py", ("CUDA out of memory",)),
    "oom-hip": ("gpu_oom", f"torch.OutOfMemoryError: {OOM.replace('CUDA', 'HIP', 1)}", "nn/functional.py", ("HIP out of memory",)),
    "oom-error": ("gpu_oom", f"RuntimeError: CUDA error: out of memory{CUDA_NOTES}", "nn/modules/module.py", ()),
    "oom-accelerator": ("gpu_oom", f"torch.AcceleratorError: CUDA error: out of memory{CUDA_NOTES}", "cuda/__init__.py", ()),
    "oom-cublas": (
        "gpu_oom", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "nn/modules/linear.py", (),
    ),
    "oom-nccl": (
        "gpu_oom",
        f"torch.distributed.DistBackendError: NCCL error in: {NCCL}:2251, unhandled cuda error (run with NCCL_DEBUG=INFO for "
        "details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
        "Cuda failure 2 'out of memory'",
        "distributed/distributed_c10d.py", ("Last error:", "Cuda failure 2 'out of memory'"),
    ),
    "oom-jax": (
        "gpu_oom", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 21474836480 "
        "bytes.", "../jax/_src/dispatch.py", (),
    ),
    "assert": (
        "error", f"RuntimeError: CUDA error: device-side assert triggered{CUDA_NOTES}", "nn/functional.py",
        ("device-side assert triggered",),
    ),
    "illegal": ("error", f"RuntimeError: CUDA error: an illegal memory access was encountered{CUDA_NOTES}", "autograd/graph.py", ()),
    "illegal-accelerator": (
        "error", f"torch.AcceleratorError: CUDA error: an illegal memory access was encountered{CUDA_NOTES}", "autograd/graph.py",
        (),
    ),
    "ordinal": ("error", f"RuntimeError: CUDA error: invalid device ordinal{CUDA_NOTES}", "cuda/__init__.py", ()),
    "launch": ("error", f"RuntimeError: CUDA error: unspecified launch failure{CUDA_NOTES}", "autograd/graph.py", ()),
    "no-kernel": (
        "error", f"RuntimeError: CUDA error: no kernel image is available for execution on the device{CUDA_NOTES}",
        "nn/functional.py", (),
    ),
    "no-gpus": ("error", "RuntimeError: No CUDA GPUs are available", "cuda/__init__.py", ()),
    "driver-old": (
        "error", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",
        "cuda/__init__.py", (),
    ),
    "ecc": (
        "node", f"RuntimeError: CUDA error: uncorrectable ECC error encountered{CUDA_NOTES}", "nn/functional.py",
        ("uncorrectable ECC error",),
    ),
    "ecc-accelerator": (
        "node", f"torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered{CUDA_NOTES}", "autograd/graph.py", (),
    ),
    "nvlink": (
        "node", "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution" + CUDA_NOTES,
        "distributed/distributed_c10d.py", (),
    ),
    "not-ready": (
        "node", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
        "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized", "cuda/__init__.py", (),
    ),
    "nccl-ecc": (
        "node",
        f"torch.distributed.DistBackendError: NCCL error in: {NCCL}:2251, unhandled cuda error (run with NCCL_DEBUG=INFO for "
        "details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
        "Cuda failure 214 'uncorrectable ECC error encountered'",
        "distributed/distributed_c10d.py", ("uncorrectable ECC",),
    ),
    "gpu-lost": ("node", "pynvml.NVMLError_GpuIsLost: GPU is lost", "../pynvml.py", ("GPU is lost",)),
    "nccl-remote": (
        "network",
        f"torch.distributed.DistBackendError: NCCL error in: {NCCL}:2251, remote process exited or there was a network error, NCCL "
        "version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
        "prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer n2<41234>",
        "distributed/distributed_c10d.py", ("Last error:", "Connection closed by remote peer"),
    ),
    "nccl-system": (
        "network",
        f"torch.distributed.DistBackendError: NCCL error in: {NCCL}:1691, unhandled system error (run with NCCL_DEBUG=INFO for "
        "details), NCCL version 2.19.3\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or "
        "device error. \nLast error:\nsocketStartConnect: Connect to 10.0.0.2<51033> failed : Software caused connection abort",
        "distributed/distributed_c10d.py", ("socketStartConnect",),
    ),
    "nccl-internal": (
        "network",
        f"torch.distributed.DistBackendError: NCCL error in: {NCCL}:1691, internal error - please report this issue to the NCCL "
        "developers, NCCL version 2.19.3\nncclInternalError: Internal check failed.\nLast error:\nNet : Call to recv from "
        "10.0.0.2<41234> timed out",
        "distributed/distributed_c10d.py", (),
    ),
    "nccl-usage": (
        "error",
        f"torch.distributed.DistBackendError: NCCL error in: {NCCL}:1691, invalid usage (run with NCCL_DEBUG=WARN for details), "
        "NCCL version 2.19.3\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 50000",
        "distributed/distributed_c10d.py", ("Duplicate GPU detected",),
    ),
    "nccl-argument": (
        "error",
        f"torch.distributed.DistBackendError: NCCL error in: {NCCL}:1691, invalid argument (run with NCCL_DEBUG=WARN for details), "
        "NCCL version 2.19.3\nncclInvalidArgument: Invalid value for an argument.\nLast error:\nInvalid config blocking "
        "attribute value -2147483648",
        "distributed/distributed_c10d.py", (),
    ),
    "nccl-cuda": (
        "error",
        f"torch.distributed.DistBackendError: NCCL error in: {NCCL}:2251, unhandled cuda error (run with NCCL_DEBUG=INFO for "
        "details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
        "Cuda failure 700 'an illegal memory access was encountered'",
        "distributed/distributed_c10d.py", ("illegal memory access",),
    ),
    "nccl-store": (
        "network",
        "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
        "key-value store by key '0', but store->get('0') got error: Connection reset by peer",
        "distributed/distributed_c10d.py", (),
    ),
    "nccl-store-timeout": (
        "network",
        "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
        "key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
        "distributed/distributed_c10d.py", (),
    ),
    "oom-runtime": ("gpu_oom", "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCGeneral.cpp:50",
                    "cuda/__init__.py", ()),
    "oom-driver": ("gpu_oom", "RuntimeError: CUDA driver error: out of memory", "nn/functional.py", ()),
    "oom-cupy": ("gpu_oom", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 17,179,869,184 bytes (allocated so far: 0 "
                 "bytes).", "../cupy/_creation/basic.py", ()),
    "oom-numba": ("gpu_oom", "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
                  "../numba/cuda/cudadrv/driver.py", ()),
    "ray-oom": ("oom", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
                "../ray/_private/worker.py", ()),
    "aborted": ("network", "RuntimeError: NCCL communicator was aborted on rank 1.  Original reason for failure was: [Rank 1] "
                "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for "
                "1801021 milliseconds before timing out.", "distributed/distributed_c10d.py", ()),
    "nccl-older": ("network", "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:784, unhandled system "
                   "error, NCCL version 2.7.8", "distributed/distributed_c10d.py", ()),
    "gloo-recv": ("network", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
                  "1800000ms for recv operation to complete", "distributed/distributed_c10d.py", ()),
    "store-connect": ("network", "RuntimeError: connect() timed out. Original timeout was 60000 ms.", "distributed/rendezvous.py",
                      ()),
    "store-socket": ("network", "RuntimeError: The client socket has failed to connect to any network address of (n0, 29500). The "
                     "client socket has timed out after 300s while trying to connect to (n0, 29500).", "distributed/rendezvous.py",
                     ()),
    "store-timeout": ("network", "TimeoutError: The client socket has timed out after 900s while trying to connect to (10.0.0.1, "
                      "29500).", "distributed/rendezvous.py", ()),
    "store-barrier": ("network", "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
                      "store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)",
                      "distributed/distributed_c10d.py", ()),
    "store-reset": ("network", "RuntimeError: Connection reset by peer", "distributed/elastic/utils/store.py", ()),
    "busy": ("error", f"RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable{CUDA_NOTES}",
             "cuda/__init__.py", ()),
    "no-nccl": ("error", "RuntimeError: Distributed package doesn't have NCCL built in", "distributed/distributed_c10d.py", ()),
    "mixed-devices": ("error", "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, "
                      "cuda:0 and cpu!", "nn/functional.py", ()),
}  # fmt: skip
WORK = (
    "WorkNCCL(SeqNum=1234, OpType=ALLREDUCE, NumelIn=25557032, NumelOut=25557032, Timeout(ms)=600000) ran for 600029 "
    "milliseconds before timing out."
)
WATCHDOG = f"""\
step 12
[rank3]:[E1122 10:00:00.123456789 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: {WORK}
[rank3]:[E1122 10:00:00.223456789 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 3] Exception (either an error or \
timeout) detected by watchdog at work: 1234, last enqueued NCCL work: 1240, last completed NCCL work: 1233.
[rank3]:[E1122 10:00:00.323456789 ProcessGroupNCCL.cpp:630] [Rank 3] Some NCCL operations have failed or timed out. Due to the \
asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.
[rank3]:[E1122 10:00:00.423456789 ProcessGroupNCCL.cpp:636] [Rank 3] To avoid data inconsistency, we are taking the entire process \
down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: [Rank 3] Watchdog caught \
collective operation timeout: {WORK}
Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:618 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f0000000000 in /opt/venv/lib/libc10.so)

"""
LINES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "watchdog": ("network", WATCHDOG, "SIGABRT", ("Watchdog caught collective operation timeout",)),
    "watchdog-log": ("network", WATCHDOG.partition("terminate")[0], "SIGABRT", ("Watchdog caught collective operation timeout",)),
    "watchdog-older": (
        "network",
        f"[E ProcessGroupNCCL.cpp:475] [Rank 1] Watchdog caught collective operation timeout: {WORK}\nterminate called after "
        f"throwing an instance of 'std::runtime_error'\n  what():  [Rank 1] Watchdog caught collective operation timeout: {WORK}\n",
        "SIGABRT", ("Watchdog caught collective operation timeout",),
    ),
    "watchdog-illegal": (
        "error",
        "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] "
        "Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n",
        "SIGABRT", ("illegal memory access",),
    ),
    "watchdog-ecc": (
        "node",
        "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] "
        "Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\n",
        "SIGABRT", ("uncorrectable ECC",),
    ),
    "watchdog-hang": (
        "network",
        "[rank0]:[F1122 10:00:00.123456789 ProcessGroupNCCL.cpp:1523] [PG ID 0 PG GUID 0(default_pg) Rank 0] [PG ID 0 PG GUID "
        "0(default_pg) Rank 0] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.\n",
        "SIGABRT", ("watchdog hang",),
    ),
    "watchdog-remote": (
        "network",
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  [Rank 1] NCCL watchdog thread terminated "
        "with exception: NCCL error: remote process exited or there was a network error, NCCL version 2.18.1\n",
        "SIGABRT", ("NCCL error: remote process exited",),
    ),
    "cpp-oom": (
        "gpu_oom",
        f"terminate called after throwing an instance of 'c10::OutOfMemoryError'\n  what():  {OOM}\n", "SIGABRT",
        ("CUDA out of memory",),
    ),
    "cpp-error": (
        "error",
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: device-side assert triggered\n",
        "SIGABRT", ("device-side assert",),
    ),
    "smi-lost": (
        "node", "Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.  Reboot the system to recover this GPU\n",
        "", ("GPU is lost",),
    ),
}  # fmt: skip


def cases() -> list[Case]:
    found = []
    for name, (kind, error, file, said) in RAISED.items():
        path = LIB + file
        trace = (
            f'Traceback (most recent call last):\n  File "/job/train.py", line 40, in <module>\n    main()\n  File "{path}", line '
            f"117, in call\n    return fn(*args)\n           ^^^^^^^^^\n{error}\n"
        )
        ranked = "".join(f"[rank2]: {line}\n" for line in trace.splitlines())
        for suffix, stderr, rank in (("", trace, None), ("-rank", f"step 12\n{ranked}", 2)):
            found.append(
                Case(
                    id=f"{name}{suffix}",
                    by="files",
                    kind=kind,
                    files={"stderr": stderr},
                    exit_code=1,
                    source="documented",
                    said=said,
                    rank=rank,
                    aftermath=kind == "network",
                )
            )
    for name, (kind, stderr, signal, said) in LINES.items():
        found.append(
            Case(
                id=name,
                by="files",
                kind=kind,
                files={"stderr": stderr},
                signal=signal,
                exit_code=None if signal else 1,
                said=said,
                source="documented",
                aftermath=kind == "network",
            )
        )
    return found
