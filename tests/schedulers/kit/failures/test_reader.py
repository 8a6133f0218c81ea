"""Why a replica failed, read out of what it left behind; the corpus of real outputs has a test of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.schedulers.kit.failures.classes import classify, is_aftermath
from torchx.schedulers.kit.failures.reader import Evidence, read_failure, signal_name
from torchx.specs.failures import Failure, parse_failure


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (9, "SIGKILL"),
        (-11, "SIGSEGV"),
        (137, "SIGKILL"),
        (139, "SIGSEGV"),
        (134, "SIGABRT"),
        (143, "SIGTERM"),
        (-35, "signal 35"),
        (128, ""),
        (193, ""),
        (255, ""),
        (0, ""),
    ],
)
def test_names_of_signals(number: int, name: str) -> None:
    """By number, as subprocess has it and as a shell has it; what is no signal has no name."""
    assert signal_name(number) == name


@pytest.mark.parametrize("code", [137, -9])
def test_killed_without_a_word(code: int) -> None:
    """The usual cause is said as a guess, and its class is not guessed."""
    failure = read_failure(Evidence(), exit_code=code, ended=7.0)
    assert failure.summary() == "killed by SIGKILL (often: out of memory)"
    assert (failure.exit_code, failure.signal, failure.kind, failure.timestamp) == (None, "SIGKILL", "unknown", 7.0)


def test_what_the_system_said_comes_first() -> None:
    """A program that is killed cannot know why."""
    said = "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-22T10:00:00 DUE TO TIME LIMIT ***"
    assert classify(Failure("ValueError: x", 1), said) == ("timeout", said)


def test_who_it_was_is_written_and_read_back() -> None:
    """A status page need not guess the culprit again."""
    failure = Failure("x", 3, rank=0, kind="error", evidence="x", role="trainer", replica=0, host="n1")
    assert parse_failure(failure.to_structured_msg()) == failure
    assert '"class": "error"' in failure.to_structured_msg()


def test_keys_of_others_in_the_error_file_are_ignored() -> None:
    """As are ours with values that make no sense."""
    failure = parse_failure('{"message": "x", "rank": "one", "role": 3, "replica": true, "class": "oom", "new": [1]}')
    assert failure == Failure("x", kind="oom")


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: NCCL timed out because of NODE_FAIL",
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='api', port=80): Connection refused",
        "TimeoutError: the label service did not answer",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/preempted'",
        "node failure: no data",
    ],
)
def test_a_users_bug_is_never_transient(message: str) -> None:
    """Whatever words are in it."""
    failure = Failure(message, 1)
    assert classify(failure)[0] == "error"
    assert not is_aftermath(failure)


TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\nValueError: bad lr\n'
)


def _failure(stderr: str, error: str | None = None, code: int | None = 1) -> Failure:
    return read_failure(Evidence(error_file=error, stderr=stderr), exit_code=code, ended=7.0)


def test_the_last_traceback_of_stderr_is_the_cause() -> None:
    """Its last line is the message, and it is shown without what came before or after."""
    failure = _failure("warning: x\n" + TRACEBACK + "srun: done\n")
    assert failure.summary() == "exit code 1: ValueError: bad lr"
    assert failure.traceback == TRACEBACK.rstrip("\n")
    assert failure.timestamp == 7.0


REPORT = """\
E1121 failed (exitcode: 1) local_rank: 1 (pid: 11381) of binary: python
Traceback (most recent call last):
  File "torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_09:24:31
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : 1 (pid: 11381)
============================================================
"""


def _worker(prefix: str, error: str) -> list[str]:
    return [f"{prefix}{line}\n" for line in TRACEBACK.replace("ValueError: bad lr", error).splitlines()]


@pytest.mark.parametrize(
    "prefixes",
    [("[1]:[rank3]: ", "[0]:[rank2]: "), ("[trainer1]:", "[trainer0]:"), ("", "")],
    ids=["ranks", "tee", "plain"],
)
def test_the_worker_that_torchrun_calls_the_root_cause(prefixes) -> None:
    """Its traceback counts: not that of a worker that lost its peer, nor torchrun's own. Prefixes are taken off."""
    cause, effect = prefixes
    stderr = "".join(_worker(cause, "ValueError: bad lr") + _worker(effect, "RuntimeError: Connection closed"))
    failure = _failure(stderr + REPORT)
    assert failure.message == "ValueError: bad lr"
    assert failure.traceback == TRACEBACK.rstrip("\n")


def test_tracebacks_of_workers_that_are_mixed_line_by_line() -> None:
    """Only lines of the one worker are taken."""
    pairs = zip(
        _worker("[0]:[rank2]: ", "RuntimeError: Connection closed"),
        _worker("[1]:[rank3]: ", "ValueError: bad lr"),
        strict=True,
    )
    failure = _failure("".join(a + b for a, b in pairs) + REPORT)
    assert failure.message == "ValueError: bad lr"
    assert failure.traceback == TRACEBACK.rstrip("\n")


def test_without_traceback_the_last_line_counts() -> None:
    """Programs in other languages explain themselves in their last line."""
    assert _failure("one\ntwo: not found\n\n", code=127).summary() == "exit code 127: two: not found"
    assert _failure("").summary() == "exit code 1"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_report_of_a_step_is_no_cause(stream: str) -> None:
    """On schedulers without shared files, ranks print one every ten seconds, and other programs at each step."""
    text = "no data in /data\n[trainer0]:::torchx progress step=7 total=9\n::torchx progress step=8 total=9\n"
    found = read_failure(Evidence(**{stream: text}), exit_code=3)
    assert found.summary() == "exit code 3: no data in /data" and "progress" not in found.traceback


def test_the_error_file_wins_when_it_says_more() -> None:
    """torchelastic's file with a traceback is the cause; one without yields to the traceback in stderr."""
    full = '{"message": {"message": "RuntimeError: x", "extraInfo": {"py_callstack": "T", "timestamp": "5"}}}'
    assert _failure(TRACEBACK, full).message == "RuntimeError: x"
    bare = '{"message": {"message": "worker failed"}}'
    assert _failure(TRACEBACK, bare).message == "ValueError: bad lr"
    assert _failure("", bare).message == "worker failed"


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_garbage_in_the_files_is_survived(stderr: bytes, error: bytes) -> None:
    """Whatever a dying program leaves behind, its failure can be told."""
    found = _failure(stderr.decode("utf-8", "replace"), error.decode("utf-8", "replace"))
    assert found.summary()
    assert parse_failure(found.to_structured_msg()) == found


IGNORED = "Exception ignored in: <function A.__del__ at 0x7f>\n" + TRACEBACK


def test_an_exception_that_python_ignored_is_no_cause() -> None:
    """The program went on after it."""
    assert _failure(IGNORED + "no data in /data\n").message == "no data in /data"
    assert _failure(TRACEBACK.replace("bad lr", "bad batch") + IGNORED).message == "ValueError: bad batch"


def test_an_ignored_exception_that_is_printed_twice_is_no_cause() -> None:
    """Cython prints one of a destructor by ``sys.excepthook`` first, here while the program ends by another one."""
    failed = TRACEBACK.replace("bad lr", "bad batch")
    assert _failure(failed + TRACEBACK + IGNORED).message == "ValueError: bad batch"
    assert _failure(failed + "\n" + TRACEBACK + IGNORED).message == "ValueError: bad batch"


ASSERTED = (
    "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [0,0,0], thread: [{},0,0] "
    'Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.\n'
)
ON_GPU = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/job/train.py", line 47, in step
[rank0]:     print(x.sum().item())
[rank0]: torch.AcceleratorError: CUDA error: device-side assert triggered
[rank0]: Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
[rank0]: CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
[rank0]: For debugging consider passing CUDA_LAUNCH_BLOCKING=1
[rank0]: Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

"""


def test_the_assertion_of_a_kernel_is_said_and_the_advice_is_not() -> None:
    """The exception only says that some thread of the GPU failed; each prints its own line before."""
    failure = _failure("step 4\n" + ASSERTED.format(0) + ASSERTED.format(1) + ON_GPU)
    assert failure.message == (
        'Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed\n'
        "-> torch.AcceleratorError: CUDA error: device-side assert triggered"
    )
    assert failure.kind == "error"
    assert "CUDA_LAUNCH_BLOCKING" in failure.traceback
    assert _failure(ON_GPU).message == "torch.AcceleratorError: CUDA error: device-side assert triggered"


def test_a_fatal_line_of_long_ago_is_no_cause() -> None:
    """Some programs go on after what they call fatal."""
    steps = "".join(f"step {i}\n" for i in range(300))
    assert _failure(f"fatal error: no cache\n{steps}no data in /data\n").message == "no data in /data"
    assert _failure("fatal error: no cache\nstep 1\n").message == "fatal error: no cache"


def test_a_message_of_many_lines_ends_where_logging_goes_on() -> None:
    """A handled exception is not told with all that came after it."""
    steps = "".join(f"step {i}\n" for i in range(60))
    assert _failure(TRACEBACK + steps).message == "ValueError: bad lr"


def test_a_long_last_line_is_bounded_and_told_once() -> None:
    """Megabytes of a line do not become a status."""
    failure = _failure("no data: " + "y" * 60_000 + "\n")
    assert failure.message.startswith("no data: yyy")
    assert len(failure.message) <= 2000
    assert len(failure.summary()) < 450
    assert failure.traceback == ""


def test_several_ranks_of_which_torchrun_reports_nothing() -> None:
    """As of mpirun: the one that lost its peer wrote first, the other is named."""
    victim = _worker("[rank0]: ", "RuntimeError: [gloo/pair.cc:5] Connection closed by peer [n1]:4")
    found = _failure("".join([*victim, *_worker("[rank1]: ", "ValueError: bad lr")]))
    assert (found.rank, found.message, found.kind) == (1, "ValueError: bad lr", "error")
    alone = _failure("".join(victim))
    assert (alone.rank, alone.kind, is_aftermath(alone)) == (0, "network", True)


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("/opt/venv/lib/python3.11/site-packages/vllm/worker.py", "gpu_oom"),
        ("/usr/lib/python3/dist-packages/vllm/worker.py", "gpu_oom"),
        ("/usr/local/lib/python3.11/vllm/worker.py", "gpu_oom"),
        ("/job/train.py", "error"),
    ],
)
def test_what_a_library_raises_is_not_of_the_user(file: str, kind: str) -> None:
    """But what a line of the user's has raised is, whatever its name."""
    trace = (
        f'Traceback (most recent call last):\n  File "{file}", line 3, in f\n    raise torch.OutOfMemoryError(text)\n'
    )
    assert _failure(f"{trace}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n").kind == kind


def test_the_evidence_is_one_line() -> None:
    """Of a message of several lines, the first; or the one that decided."""
    assert (
        _failure(TRACEBACK.replace("bad lr", "three problems:\n  - no data")).evidence == "ValueError: three problems:"
    )
    last = "RuntimeError: failed\n  CUDA out of memory. Tried to allocate 2 GiB"
    assert classify(Failure(last, 1)) == ("error", "RuntimeError: failed")


def test_an_exception_before_an_abort_at_exit_is_the_cause() -> None:
    """PyTorch's threads may abort an interpreter that an exception is ending: the exception came first."""
    stderr = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n'
        '    raise RuntimeError("boom")\n'
        "RuntimeError: boom\n"
        "terminate called without an active exception\n"
    )
    found = read_failure(Evidence(stderr=stderr), exit_code=None, signal="SIGABRT")
    assert (found.message, found.kind, found.signal) == ("RuntimeError: boom", "error", "SIGABRT")
    alone = read_failure(Evidence(stderr="terminate called without an active exception\n"), exit_code=134)
    assert alone.message == "terminate called without an active exception"


SNAKEMAKE = """\
Select jobs to execute...
[Mon Nov 23 11:02:05 2026]
localrule train:
    output: out/a.txt
    reason: Missing output files: out/a.txt
%s
[Mon Nov 23 11:02:06 2026]
Error in rule train:
    message: None
    shell:
        python3 train.py out/a.txt
        (command exited with non-zero exit code)
Shutting down, this might take some time.
Exiting because a job execution failed. Look above for error messages
Complete log(s): /flow/.snakemake/log/2026-11-23T110205.807598.snakemake.log
Elapsed time: 0:00:00.282470
WorkflowError:
At least one job did not complete successfully.
"""
"""What Snakemake 9.27 writes of a rule that has failed."""
RULE = """RuleException:
%s in file "/flow/Snakefile", line 5:
%s"""


@pytest.mark.parametrize(
    ("wrote", "cause"),
    [
        (
            'Traceback (most recent call last):\n  File "/flow/train.py", line 2, in <module>\n    main()\n'
            "RuntimeError: no more frobs\n"
            + RULE
            % ("CalledProcessError", "Command 'python3 train.py' returned non-zero exit status 1."),
            "RuntimeError: no more frobs",
        ),
        ("begun\nno data in /data", "no data in /data"),
        (RULE % ("ValueError", "bad batch"), "ValueError: bad batch"),
    ],
    ids=["exception", "words", "rule in Python"],
)
def test_what_a_rule_of_snakemake_said(wrote: str, cause: str) -> None:
    """The cause is the program's, not that a job of the workflow did not complete."""
    assert read_failure(Evidence(stderr=SNAKEMAKE % wrote), exit_code=1).summary() == f"exit code 1: {cause}"


@pytest.mark.parametrize("line", ["step 1", "Epoch 3/10", "[step 12] loss=0.1 lr: 1e-3", "iteration 7 of 9", "batch=4"])
def test_progress_is_no_cause(line: str) -> None:
    """A program that wrote nothing but how far it was has only its exit code."""
    warned = "train.py:5: UserWarning: option is old\n  load(3)\n"
    assert read_failure(Evidence(stderr=warned, stdout=f"{line}\n"), exit_code=3).summary() == "exit code 3"
    assert read_failure(Evidence(stderr=f"{line}: no data\n"), exit_code=3).summary() == f"exit code 3: {line}: no data"
