"""Commands by ECS Exec: the script, through a stand-in of AWS's plugin, with real processes in real terminals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys

import pytest

from tests.backends.inside import read_until, rest_of
from tests.schedulers.aws.batch_cloud import refusal
from tests.schedulers.aws.ecs_exec import RUNTIME, FarEnd, install
from torchx.errors import BackendError, NotSupportedError
from torchx.schedulers.aws.batch.inside import TaskProcess
from torchx.schedulers.aws.client import Clients
from torchx.schedulers.kit.inside import Tty
from torchx.schedulers.kit.inside.run import run
from torchx.schedulers.kit.inside.spawned import SpawnedProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("stty"), reason="needs terminals of Linux")

EVERY_BYTE = bytes(range(256)) * 300
TASK = ("AWSBatch-ce-1", "0123456789abcdef")


class LocalTerminal:
    """Like a container's, except that PID 1 is this machine's, and is not inspected."""

    def __init__(self, words):
        self.process = SpawnedProcess(words, tty=Tty())

    def read(self):
        found = self.process.read()
        return found[1] if found else b""

    def write(self, data):
        self.process.write(data)

    def resize(self, columns, rows):
        self.process.resize(columns, rows)

    def close(self):
        self.process.close()


@pytest.fixture(autouse=True)
def plugin(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("plugin")
    install(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.fixture
def far():
    made = FarEnd(LocalTerminal)
    yield made
    made.close()


def clients_of(far):
    return Clients({"ecs": far, "ssm": far}, {"aws_profile": "mine"})


@pytest.fixture
def enter(far):
    clients = clients_of(far)
    made = []

    def start(*argv, tty=None):
        made.append(TaskProcess(clients, TASK, argv, tty))
        return made[-1]

    yield start
    for process in made:
        process.close()


def test_each_stream_by_itself(enter, far):
    """Streams are separate and binary, the exit code and the words arrive, and the request names the task."""
    done = run(enter("sh", "-c", 'cat; printf "%s|" "$@" >&2; exit 7', "sh", "a b", "it's", "木\n"), EVERY_BYTE)
    assert done == (7, EVERY_BYTE, "a b|it's|木\n|".encode())
    (call,) = far.calls
    assert (call["cluster"], call["task"]) == TASK


def test_the_command_line_of_the_plugin(enter, far):
    """The session as ECS returned it, region, operation, profile, the target with the container's id, and the endpoint."""
    assert run(enter("true")).exit_code == 0
    (((session, region, operation, profile, parameters, endpoint)),) = far.plugins
    assert json.loads(session).keys() == {"sessionId", "streamUrl", "tokenValue"}
    assert (region, operation, profile, endpoint) == ("us-east-1", "StartSession", "mine", "https://aws.example")
    assert json.loads(parameters) == {"Target": f"ecs:AWSBatch-ce-1_{TASK[1]}_{RUNTIME}"}


def test_a_signal(enter):
    """It reaches the command and its children; closing the session ends them."""
    with enter("sh", "-c", 'trap "echo got; exit 5" TERM; echo ready; while :; do sleep 0.1; done') as process:
        assert process.read() == (1, b"ready\n")
        process.send_signal(signal.SIGTERM)
        assert b"got" in rest_of(process)
        assert process.wait() == 5
    with enter("sh", "-c", "echo $$; exec sleep 1000") as process:
        pid = int(process.read()[1])
    while os.path.exists(f"/proc/{pid}"):
        pass


def test_a_terminal(enter):
    """It has a size and a type, can be resized, and returns the exit code."""
    with enter("sh", tty=Tty(101, 37, "screen-256color")) as process:
        process.write(b"PS1=; stty -echo; echo begin; stty size; echo $TERM\n")
        read_until(process, rb"begin\r\n37 101\r\nscreen-256color\r\n")
        process.resize(60, 20)
        process.write(b"until [ \"$(stty size)\" = '20 60' ]; do sleep 0.05; done; echo other; exit 4\n")
        read_until(process, b"other\r\n")
        rest_of(process)
        assert process.wait() == 4


def test_a_link_that_is_cut(enter, far):
    """The outcome is unknown, which is an error and not an exit code."""
    with enter("sh", "-c", "echo ready; exec sleep 1000") as process:
        read_until(process, b"ready")
        far.sessions[0].cut()
        assert rest_of(process) == b""
        with pytest.raises(BackendError, match=r"connection to task .* was lost") as lost:
            process.wait()
        assert "may go on" in lost.value.hint
        with pytest.raises(BrokenPipeError):
            process.write(b"x")
    assert run(enter("echo", "again")).stdout == b"again\n"


def test_who_reads_no_input_holds_back_who_writes(enter):
    """The number of messages in flight is limited, and all of them arrive."""
    data = EVERY_BYTE * 5
    process = enter("sh", "-c", "sleep 1; cat | wc -c")
    assert run(process, data).stdout.split() == [b"%d" % len(data)]


def test_an_agent_that_is_not_there(far, enter):
    """AWS's message, and what the agent requires."""
    pytest.importorskip("botocore")
    far.faults = [refusal("TargetNotConnectedException", "The execute command failed", operation="ExecuteCommand")]
    with pytest.raises(
        BackendError, match=f"task `{TASK[1]}` cannot be entered: The execute command failed"
    ) as refused:
        enter("true")
    assert "ssmmessages" in refused.value.hint
    assert "aws ecs execute-command --cluster AWSBatch-ce-1 --task 0123456789abcdef --interactive" in refused.value.hint
    far.faults = [
        refusal("AccessDeniedException", "User: u is not authorized to perform: ecs:ExecuteCommand on resource: x")
    ]
    with pytest.raises(BackendError, match="AWS denies `ecs:ExecuteCommand` to `u`"):
        enter("true")


@pytest.mark.parametrize("missing", ["sh", "base64"])
def test_an_image_that_lacks_something(missing, tmp_path):
    """The error names it, and no part of the command runs."""
    for name in {"sh", "stty", "dd", "base64", "sed", "tr", "env"} - {missing}:
        (tmp_path / name).symlink_to(shutil.which(name))

    def start(words):
        if not (tmp_path / words[0]).exists():
            raise FileNotFoundError(f"{words[0]}: executable file not found in $PATH")
        return LocalTerminal(["env", f"PATH={tmp_path}", *words])

    poor = FarEnd(start)
    with pytest.raises(
        BackendError, match=f"could not be started in task `[^`]*`: .*{missing}[^\\n]*\\nhint"
    ) as refused:
        run(TaskProcess(clients_of(poor), TASK, ["echo", "x"], None))
    assert "the image needs sh, stty, dd, base64, sed and tr" in refused.value.hint
    poor.close()


def test_without_the_plugin(enter, far, plugin, monkeypatch):
    """One line names it, with the page that says how to install it, and AWS is not called."""
    monkeypatch.setenv("PATH", os.environ["PATH"].replace(str(plugin), "/nowhere"))
    with pytest.raises(NotSupportedError, match=r"`session-manager-plugin`.* is not on PATH") as refused:
        enter("true")
    assert "session-manager-working-with-install-plugin" in refused.value.hint
    assert far.calls == []
