"""What each function of ``replica.sh`` does in each case; LSF's commands are stand-ins."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from tests.schedulers.lsf.steps import lines, steps
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.lsf import replicas


def test_a_script_whose_folder_is_gone() -> None:
    """It ends at once."""
    program = read_script(replicas.__file__, "replica.sh")
    done = subprocess.run(
        ["bash", "-c", f"{program}\necho on", "/nowhere/replicas.sh"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", ["tick", "tick", "tick"]),
        ("python=p", ["watch", "tick", "due", "tick", "due", "tick", "due"]),
        ("wish=10m", ["tick", "look", "tick", "look", "tick", "look"]),
        ("python=p wish=10m", ["watch", *["tick", "due", "look"] * 3]),
    ],
)
def test_what_is_done_each_second(given: str, said: list[str], tmp_path: Path) -> None:
    """The sizes of the logs are looked at; with a policy the time limit, with a watchdog the silence."""
    stubs = "torchx_tick() { echo tick; }; torchx_due() { echo due; }; torchx_watch() { echo watch; }"
    stop = "torchx_look_out() { echo look; }; paused() { ((++n < 3)) || exit 5; }"
    found = steps(tmp_path, f"{stubs}; {stop}\n{given}\ntorchx_clock")
    assert (found.code, found.out, found.pauses) == (5, said, ["1"] * 3)


# -- the address of replica 0 ------------------------------------------------------------------------

SHOW = 'echo "$? ${TORCHX_RANK0_HOST-none} ${TORCHX_RANK0_PORT-none}"'


def free_ports() -> tuple[socket.socket, int]:
    """A port in use in the range of the jobs' ports, followed by a free one."""
    for port in range(28000, 29990):
        with socket.socket() as taken, socket.socket() as after:
            try:
                after.bind(("127.0.0.1", port + 1))
                taken.bind(("127.0.0.1", port))
            except OSError:
                continue
            taken.listen()
            return taken.dup(), port
    raise AssertionError("no port is free")


def test_replica_0_chooses_a_free_port(tmp_path: Path) -> None:
    """It depends on the job's id, and moves on while it is in use; the file says where it is."""
    taken, port = free_ports()
    with taken:
        given = f"LSB_MCPU_HOSTS='127.0.0.1 4 h2 4' LSB_JOBID={port - 20000 + 10000}"
        found = steps(tmp_path, f"{given}; torchx_rank0; {SHOW}")
    assert found.out == [f"0 127.0.0.1 {port + 1}"]
    assert (tmp_path / "rank0.0.0").read_text() == f"127.0.0.1 {port + 1}\n"
    assert not (tmp_path / "rank0.0.0.new").exists()
    assert found.said == found.pauses == []


@pytest.mark.parametrize(
    ("given", "there"),
    [
        ("LSB_MCPU_HOSTS=localhost LSB_JOBID=", "localhost 20000"),
        ("LSB_MCPU_HOSTS= LSB_JOBID=10001; hostname() { echo localhost; }", "localhost 20001"),
    ],
    ids=["no id", "no hosts"],
)
def test_replica_0_without_what_lsf_says(given: str, there: str, tmp_path: Path) -> None:
    """The port is the first, the host that of the machine."""
    host, port = there.split()
    with socket.socket() as probe:
        if not probe.connect_ex((host, int(port))):
            pytest.skip(f"port {port} is in use")
    assert steps(tmp_path, f"{given}; torchx_rank0; {SHOW}").out == [f"0 {there}"]


def test_a_network_of_its_own_has_no_port(tmp_path: Path) -> None:
    """A port of the host says nothing about that of a container; the host counts."""
    (tmp_path / "rank0.0.0").write_text("h9 20007\n")
    for given, port in (("own_network=1", "none"), ("own_network=", "20007")):
        assert steps(tmp_path, f"k=1 {given}; torchx_rank0; {SHOW}").out == [f"0 h9 {port}"]


def test_a_file_that_appears_while_others_are_listed(tmp_path: Path) -> None:
    """NFS shows it after its folder was listed: before it is read again, and after LSF was asked."""
    shown = 'ls() { [ "$1" = "$job" ]; ((++listed < NUMBER)) || echo h9 20007 >rank0.0.0; }'
    first = steps(tmp_path, f"{shown.replace('NUMBER', '1')}; k=1; torchx_rank0; {SHOW}")
    assert (first.out, first.said, first.pauses) == (["0 h9 20007"], [], ["0.5"])
    (tmp_path / "rank0.0.0").unlink()
    (tmp_path / "jobs").write_text("DONE,h4\n")
    late = steps(tmp_path, f"{shown.replace('NUMBER', '41')}; k=1; torchx_rank0; {SHOW}")
    assert (late.out, late.err, late.pauses) == (["0 h9 20007"], "", ["0.5"] * 40)
    assert late.said == ["bjobs -a -noheader -o stat exec_host delimiter=',' -J a.0-r.0"]


@pytest.mark.parametrize(
    ("answer", "pauses", "shown"),
    [
        ("EXIT,h4", 80, "1 none none"),
        ("DONE,h4", 80, "1 none none"),
        ("", 40, "1 none none"),
        ("RUN,4*h4:h5", 240, "0 h4 none"),
        ("RUN,h4", 240, "0 h4 none"),
        ("EXIT,h3\nRUN,h4\nDONE,h5", 240, "0 h4 none"),
        ("EXIT,h3\nPEND,-", 400, "0 h9 20007"),
        ("PEND,-", 400, "0 h9 20007"),
        ("EXIT,h3\nDONE,h5", 80, "1 none none"),
    ],
)
def test_what_lsf_says_of_replica_0(answer: str, pauses: int, shown: str, tmp_path: Path) -> None:
    """After 20 s without its file: if it is over, this one fails; if it runs, its host counts after two minutes. LSF shows
    a requeued job as ended for some seconds: an end counts when it is seen again.

    With a policy LSF has several jobs of its name: the one that runs or waits counts. One that waits is waited for.
    """
    (tmp_path / "jobs").write_text(answer and f"{answer}\n")
    stubs = "ls() { :; }; paused() { ((++n < 400)) || echo h9 20007 >rank0.0.0; }"  # a process for each look is slow
    found = steps(tmp_path, f"{stubs}; k=1; torchx_rank0; {SHOW}")
    assert (found.out, len(found.pauses)) == ([shown], pauses)
    assert len(found.said) == pauses // 40
    over = "torchx: replica 0 is over\n"
    assert found.err == (over if shown.startswith("1") else "")


def test_who_is_killed_waits_no_more(tmp_path: Path) -> None:
    """For the file of replica 0."""
    found = steps(tmp_path, f"paused() {{ killed=1; }}; k=1; torchx_rank0; {SHOW}")
    assert (found.out, found.pauses) == (["1 none none"], ["0.5"])


# -- attempts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "chosen"), [("", "8 9"), ("-a", "8 9")])
def test_the_others_are_asked_for(policy: str, chosen: str, tmp_path: Path) -> None:
    """By the group of the job; those of other names, and this one, are left out."""
    (tmp_path / "jobs").write_text("7,a.0-r.0\n8,a.0-r.1\n9,a.1-s.0\n10,b.0-r.0\n")
    found = steps(tmp_path, f"torchx_others '{policy}' a.")
    assert " ".join(found.out) == chosen
    words = "-noheader -o jobid job_name delimiter=',' -g /torchx_a"
    assert found.said == [f"bjobs {policy} {words}" if policy else f"bjobs {words}"]


def test_who_goes_on_waits_for_the_next_attempt(tmp_path: Path) -> None:
    """Its number appears late, or never: after a minute it goes on anyway."""
    late = steps(tmp_path, "paused() { ((++n < 3)) || echo 1 >attempt; }; torchx_go_on; echo on")
    assert (late.code, late.out, late.pauses) == (0, ["on"], ["0.1"] * 3)
    assert (tmp_path / "again.0.7").is_dir()
    never = steps(tmp_path, "attempt=1; torchx_go_on; echo on")
    assert (never.out, len(never.pauses)) == (["on"], 600)


def test_who_is_being_requeued_waits_for_that(tmp_path: Path) -> None:
    """Another replica has claimed it: LSF kills it, or it asks for that itself with its exit code."""
    (tmp_path / "again.0.7").mkdir()
    trap = "trap 'killed=1' INT TERM"
    alone = steps(tmp_path, f"{trap}; torchx_go_on; echo on")
    assert (alone.code, alone.out, alone.pauses) == (99, [], ["60"])
    for signal, code in (("TERM", -15), ("INT", -2)):
        assert steps(tmp_path, f"{trap}; paused() {{ kill -{signal} $$; }}; torchx_go_on").code == code


@pytest.mark.parametrize(
    ("given", "good", "restarts"),
    [
        ("policy=REPLICA runs=1 retries=1", True, True),
        ("policy=REPLICA runs=2 retries=1", False, False),
        ("policy=REPLICA runs=2 retries=2", True, True),
        ("policy=REPLICA runs=1 retries=0", False, False),
        ("policy=APPLICATION attempt=0 retries=0", False, False),
        ("policy=APPLICATION attempt=0 retries=1", True, True),
        ("policy=APPLICATION attempt=1 retries=1", False, False),
        ("policy=ROLE attempt=1 retries=2", True, True),
    ],
)
def test_who_is_started_again(given: str, good: bool, restarts: bool, tmp_path: Path) -> None:
    """While there are retries left, and it is recorded who failed."""
    found = steps(tmp_path, f"{given} k=3; if torchx_retried; then echo again; fi")
    assert (found.out, found.err) == (["again"] if good else [], "")
    assert lines(tmp_path / "restarts") == (["0 3"] if restarts else [])
    assert (tmp_path / "attempt").exists() == (good and "REPLICA" not in given)


@pytest.mark.parametrize(
    ("policy", "claimed"), [("APPLICATION", ["8", "9", "11"]), ("ROLE", ["8"])], ids=["all", "those of the role"]
)
def test_the_others_are_put_back(policy: str, claimed: list[str], tmp_path: Path) -> None:
    """Those of this attempt that nobody has claimed; the attempt's number follows, and ends of before count no more."""
    (tmp_path / "jobs").write_text("7,a.0-r.0\n8,a.0-r.1\n9,a.1-s.0\n10,a.0-r.2\n11,a.1-s.1\n12,a.0-r.3\n")
    for job_id in (8, 9, 11, 12):
        (tmp_path / f"run.0.{job_id}").touch()
    (tmp_path / "again.0.12").mkdir()  # it goes on by itself
    (tmp_path / "over" / "0.1").mkdir(parents=True)
    found = steps(tmp_path, f"policy={policy} retries=1; torchx_retried; echo $?")
    assert found.out == ["0"]
    assert found.said[0].startswith("bjobs -a ")
    assert found.said[1:] == [f"brequeue -r -d -e {' '.join(claimed)}"]
    assert all((tmp_path / f"again.0.{job_id}").is_dir() for job_id in claimed)
    assert not (tmp_path / "again.0.10").exists()
    assert (tmp_path / "attempt").read_text() == "1\n"
    assert not (tmp_path / "over").exists()
    assert not (tmp_path / "attempt.new").exists()


def test_no_others_are_put_back(tmp_path: Path) -> None:
    """LSF is not told to requeue nothing."""
    found = steps(tmp_path, "retries=1; torchx_retried; echo $?")
    assert (found.out, [line.split()[0] for line in found.said]) == (["0"], ["bjobs"])


def test_two_fail_at_the_same_time(tmp_path: Path) -> None:
    """One of them starts the next attempt; the other goes on with it, and tells LSF nothing."""
    (tmp_path / "restart.0").mkdir()
    found = steps(tmp_path, "retries=1; torchx_go_on() { echo on; }; torchx_retried; echo $?")
    assert (found.out, found.said) == (["on", "0"], [])
    assert not (tmp_path / "restarts").exists()
    assert not (tmp_path / "attempt").exists()


# -- what a failure leads to -------------------------------------------------------------------------

FAILS = "torchx_go_on() { echo on; }; torchx_over() { echo over; }; torchx_judged() { echo judged; return $judged; }"
RETRIED = "torchx_retried() { echo retried; return $again; }; again=1 judged=1"


@pytest.mark.parametrize(
    ("given", "code", "out", "ends"),
    [
        ("code=3", 3, ["retried", "over"], True),
        ("code=3 again=0", 99, ["retried"], False),
        ("code=3 killed=1", 3, ["over"], True),
        ("code=3 killed=1 retries=1", 3, [], True),  # LSF may requeue it: the secrets are still needed
        ("code=3 killed=0 retries=1", 3, ["retried", "over"], True),
        ("code=99", 99, ["retried", "over"], True),
        ("code=99 retries=1", 1, ["retried", "over"], True),  # LSF would take it for a wish
        ("code=98 retries=1", 98, ["retried", "over"], True),
        ("code=3; echo 1 >attempt", 99, ["on"], False),
        ("code=3 again=0; echo 1 >attempt", 99, ["on"], False),
        ("code=3 again=0; echo cancel >silent", 3, ["over"], True),
        ("code=3 again=0; echo cancel >silent; echo 1 >attempt", 3, ["over"], True),
        ("code=3 again=0; echo retry >silent", 99, ["retried"], False),
        ("code=3 again=0 spare=1; echo retry >silent", 99, ["retried"], False),
        ("code=3 spare=1; echo retry >silent", 3, ["retried", "over"], True),
        ("code=3 spare=1", 3, ["retried", "over"], False),
        ("code=3 python=p", 3, ["judged", "over"], True),
        ("code=3 python=p judged=0", 3, ["judged"], False),
        ("code=3 python=p; echo cancel >silent", 3, ["over"], True),
        ("code=3 python=p; echo 1 >attempt", 3, ["judged", "over"], True),
    ],
)
def test_what_a_failure_leads_to(given: str, code: int, out: list[str], ends: bool, tmp_path: Path) -> None:
    """The next attempt, or the end of the job with its secrets, or, if it can spare the replica, nothing."""
    (tmp_path / "jobs").write_text("7,a.0-r.0\n8,a.0-r.1\n9,b.0-r.0\n")
    (tmp_path / "secrets.sh").touch()
    found = steps(tmp_path, f"{FAILS}; {RETRIED}; {given}; torchx_failed; echo on and on")
    assert (found.code, found.out, found.err) == (code, out, "")
    assert [line for line in found.said if line.startswith("bkill")] == (["bkill 8"] if ends else [])
    assert (tmp_path / "ended.0").is_dir() is ends
    assert (tmp_path / "secrets.sh").exists() is not ends
    assert (tmp_path / "lost.0.0" / "0").is_dir() is (out in ([], ["over"]) or out[1:] == ["over"])


def test_as_many_are_lost_as_can_be_spared(tmp_path: Path) -> None:
    """The next one ends the job; each counts once, whatever it did before."""
    for k, ends in ((0, False), (0, False), (1, False), (2, True)):
        found = steps(tmp_path, f"{FAILS}; {RETRIED}; code=3 spare=2 k={k} role=4; torchx_failed")
        assert (found.code, (tmp_path / "ended.0").exists()) == (3, ends)
    assert sorted(path.name for path in (tmp_path / "lost.4.0").iterdir()) == ["0", "1", "2"]


def test_the_job_is_ended_once(tmp_path: Path) -> None:
    """Whoever fails later kills nobody; where there are no others LSF is not told to kill nothing."""
    (tmp_path / "jobs").write_text("7,a.0-r.0\n")
    (tmp_path / "secrets.sh").touch()
    alone = steps(tmp_path, f"{FAILS}; {RETRIED}; code=3; torchx_failed")
    assert [line.split()[0] for line in alone.said] == ["bjobs"]
    assert not (tmp_path / "secrets.sh").exists()
    (tmp_path / "jobs").write_text("7,a.0-r.0\n8,a.0-r.1\n")
    assert steps(tmp_path, f"{FAILS}; {RETRIED}; code=3; torchx_failed").said == []


# -- secrets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "out"), [("A=b", 0, ["b"]), ("false", 78, []), (None, 78, [])], ids=["there", "broken", "removed"]
)
def test_secrets_are_read(text: str | None, code: int, out: list[str], tmp_path: Path) -> None:
    """Without them the replica does not start."""
    if text is not None:
        (tmp_path / "secrets.sh").write_text(f"{text}\n")
    found = steps(tmp_path, "torchx_secrets; echo $A")
    assert (found.code, found.out) == (code, out)
    assert found.err == (
        "torchx: the secrets of this job were removed when it ended; submit it again\n" if code else ""
    )


def test_the_last_replica_removes_the_secrets(tmp_path: Path) -> None:
    """Each that has ended counts once; a job without secrets has no such list."""
    assert steps(tmp_path, "torchx_over; echo $?").out == ["0"]
    assert not (tmp_path / "over").exists()
    (tmp_path / "secrets.sh").touch()
    for given, left in (("role=0 k=0", True), ("role=0 k=0", True), ("role=1 k=0", True), ("role=0 k=1", False)):
        assert steps(tmp_path, f"total=3 {given}; torchx_over").err == ""
        assert (tmp_path / "secrets.sh").exists() is left


# -- containers --------------------------------------------------------------------------------------

DOCKER = 'docker() { echo "docker $*" >>said; : >gone; }'
CLIENT = "echo $BASHPID >client; : >up; until [ -e gone ]; do sleep 0.01; done; exit 5"


@pytest.mark.parametrize(
    ("signals", "said"), [("TERM", ["docker kill c.1"]), ("INT", []), ("INT TERM", ["docker kill c.1"])]
)
def test_a_container_outlives_no_client(signals: str, said: list[str], tmp_path: Path) -> None:
    """SIGTERM reaches the container two seconds later; the code is its own, whichever signals came before."""
    sent = f"for s in {signals}; do kill -$s $me; sleep 0.02; done; sleep 0.05; [ '{signals}' != INT ] || : >gone"
    program = f"me=$BASHPID; (until [ -e up ]; do sleep 0.01; done; {sent}) & torchx_container c.1 bash -c '{CLIENT}'"
    found = steps(tmp_path, f"{DOCKER}; ({program}); echo $?")
    assert (found.out, found.said) == (["5"], said)
    assert found.pauses == (["2"] if said else [])


# -- the beginning -----------------------------------------------------------------------------------


def test_a_replica_joins_the_current_attempt(tmp_path: Path) -> None:
    """Its runs are counted; the others learn its attempt and host from a file with its id."""
    for runs in ("1", "2"):
        (tmp_path / "attempt").write_text("2\n")
        found = steps(tmp_path, "torchx_begin() { echo begin $1; }; torchx_take_part 5; echo $runs $attempt")
        assert (found.out, found.pauses) == ([f"{runs} 2"], [])
        assert (tmp_path / "r" / "0" / "runs").read_text() == f"{runs}\n"
        assert (tmp_path / "run.2.7").read_text() == "h1\n"
    found = steps(tmp_path, "python=p; torchx_begin() { echo begin $1; }; torchx_take_part 5")
    assert found.out == ["begin 5"]


def test_the_next_attempt_begins_meanwhile(tmp_path: Path) -> None:
    """It goes on with that one, and leaves word there too."""
    (tmp_path / "attempt").write_text("2\n")
    begins = "python=p; torchx_begin() { attempt=2; echo 3 >attempt; }; torchx_go_on() { echo on $attempt; }"
    found = steps(tmp_path, f"{begins}; torchx_take_part 2; echo $attempt")
    assert found.out == ["on 2", "3"]
    assert (tmp_path / "run.2.7").read_text() == (tmp_path / "run.3.7").read_text() == "h1\n"
