"""The course of a Slurm job: the main part of ``job.sh`` and ``retries.sh``, with replicas that only report their ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.schedulers.slurm.steps import MAIN, Ended, lines, steps
from torchx.schedulers.batch.attempts import attempts_in
from torchx.schedulers.slurm.attempts import not_requeued
from torchx.specs.wishes.retries import Attempt, to_line

CONFIRMS = "cat >job.sh <<'X'\necho \"again ${TORCHX_TRY-none}\"; exit 9\nX"


def job(folder: Path, text: str = "", *, more: str = "", **env: str) -> Ended:
    """Runs a job of two replicas; the words change what differs between jobs, or stand in for a function."""
    return steps(folder, f"{CONFIRMS}\n{text}", env, more=more, main=True)


# -- the beginning -----------------------------------------------------------------------------------


def test_what_each_replica_is_given(tmp_path: Path) -> None:
    """Nodes by their group and place, the host of the first replica of a role, a port and a rendezvous."""
    shows = 'start() { echo "$1 ${host[$1]} ${rank0[${role_of[$1]}]} $TORCHX_RANK0_PORT $rdzv ${TORCHX_TRY-none}"; }'
    places = "paths=(w/0 w/1 v/0) role_of=(0 0 1) group_of=(0 0 1) node_of=(1 0 0) group_nodes=(2 1)"
    groups = {"SLURM_JOB_NODELIST_HET_GROUP_0": "a[1-2]", "SLURM_JOB_NODELIST_HET_GROUP_1": "b1"}
    found = job(tmp_path, f"{shows}; {places}", **groups, SLURM_JOB_ID="5000")
    assert found.out == [
        f"{i} {host} {first} 25000 5000 none"
        for i, (host, first) in enumerate([("a2", "a2"), ("a1", "a2"), ("b1", "b1")])
    ]
    assert found.events == ["start 0 5000", "end 0 over"]
    assert all(
        (tmp_path / path / name).exists() for path in ("w/0", "w/1", "v/0") for name in ("stdout.log", "stderr.log")
    )
    again = job(tmp_path, shows, SLURM_JOB_ID="5000", SLURM_RESTART_COUNT="3", TORCHX_TRY="2")
    assert again.out[0] == "0 n1 n1 25003 5000.3-2 none"
    assert again.events[0] == "start 3 5000"


def test_fewer_nodes_than_replicas(tmp_path: Path) -> None:
    """Those without a node are absent, and count as lost."""
    given = "paths=(w/0 w/1 w/2) role_of=(0 0 0) group_of=(0 0 0) node_of=(0 1 2) sizes=(3) codes=(0 3)"
    for least, code in ((1, 0), (2, 3)):
        found = job(tmp_path, f"{given} least=({least})", SLURM_JOB_NODELIST="n[1-2]")
        assert found.events[1] == "absent w/2"
        assert (found.code, found.out) == (code, ["start 0", "start 1"])


@pytest.mark.parametrize(
    ("given", "out"),
    [("", ["none", "none"]), ("watch=p", ["watch", "progress"]), ("python=p", ["attempt", "none"])],
)
def test_parts_that_are_wished_for(given: str, out: list[str], tmp_path: Path) -> None:
    """A watchdog sees replicas that have started; a policy begins before anything else."""
    stubs = "begin_attempt() { echo attempt; }; watch() { echo watch; }"
    shows = "start() { ((!$1)) || { [[ -z ${TORCHX_PROGRESS-} ]] && echo none || echo progress; }; }"
    found = job(tmp_path, f"{stubs}; {shows}\n{given}").out
    assert found == {"": ["none"], "watch=p": ["progress", "watch"], "python=p": ["attempt", "none"]}[given]


# -- what is heard and done in between ---------------------------------------------------------------


def test_what_replicas_report(tmp_path: Path) -> None:
    """Their processes and ends, and what the watchdog finds; anything else is ignored."""
    news = 'start() { alive=1; if (($1)); then printf "pid 1 55\\nnoise\\n\\nhang\\nhang retry\\ndown 1 5\\n" >&"$bus"; fi; }'
    calls = 'down() { echo "down $* ${pid[1]}"; alive=0; }; hang() { echo "hang $*"; }'
    assert job(tmp_path, f"{news}; {calls}").out == ["hang ", "hang retry", "down 1 5 55"]


def test_when_sizes_are_recorded(tmp_path: Path) -> None:
    """Each second at first, less often in a long job or in a large one."""
    ticks = 'start() { ((!$1)) || for i in {1..7}; do echo tick >&"$bus"; done; echo "down $1 0" >&"$bus"; alive=$((alive + 1)); }'
    clock = "clock() { now=$((now + 1)); }; stamp() { [[ -n ${1-} ]] || echo $((now - first)); }; down() { alive=$((alive - 1)); }"
    large = "for ((i = 2; i < 200; i++)); do paths[$i]=w/$i role_of[$i]=0 group_of[$i]=0 node_of[$i]=9; done"
    for given, seen in (
        ("first=0", "1 2 3 4 5 6 7 8 9"),
        ("first=7200 stamped=7200", "3 6 9"),
        (f"{large}; first=0", "3 6 9"),
        ("first=3599 stamped=3599", "2 4 6 8"),
    ):
        found = job(tmp_path, f"{ticks}; {clock}\n{given}; began=0 now=$first")
        assert " ".join(found.out) == seen, given


@pytest.mark.parametrize(
    ("given", "out"),
    [
        ("stopping=1 deadline=12", ["kill 12", "kill 13"]),
        ("again=([0]=1 [1]=0 [2]=1)", [*[f"kill {now} {role}" for now in range(11, 14) for role in (0, 2)]]),
        ("due=1 due_at=12", ["due 12 1"]),
        ("due=1 due_at=14", []),
        ("due=1 due_at=12 stopping=1 deadline=99", []),
        ("due=0 due_at=12", []),
        ("due=1 due_at=99; touch -d @100 checkpoint; touch -d @200 progress", ["due 11 1"]),
        ("due=1 due_at=99; touch -d @200 checkpoint; touch -d @100 progress", []),
        ("due=1 due_at=99; touch checkpoint", []),
    ],
)
def test_what_is_done_each_second(given: str, out: list[str], tmp_path: Path) -> None:
    """What is overdue is ended with force; roles that restart are told again; the time limit is heeded."""
    ticks = 'start() { ((!$1)) || echo tick >&"$bus"; echo "down $1 0" >&"$bus"; alive=$((alive + 1)); }'
    clock = "clock() { now=$((now + 1)); }; stamp() { :; }; down() { alive=$((alive - 1)); }; began=0 now=10"
    calls = 'kill_steps() { echo "kill $now${1:+ $1}"; }; stop() { echo "due $now $(grep -c due events)"; stopping=1 deadline=99; }'
    late = f"begin_attempt() {{ {given.replace('again=', 'again+=')}\n}}"  # after the script has set its variables
    found = job(tmp_path, f"{ticks}; {clock}; {calls}; {late}; decide() {{ :; }}; python=p")
    assert sorted(found.out) == out


def test_a_line_that_comes_in_two_pieces(tmp_path: Path) -> None:
    """It is one, although the script waited for its end."""
    slow = 'start() { alive=1; ((!$1)) || { printf "down 1 " >&"$bus"; (read -rt 1.2 _ <> <(:); echo 4 >&"$bus") & }; }'
    assert job(tmp_path, f'{slow}; down() {{ echo "down $*"; alive=0; }}').out == ["down 1 4"]


# -- the end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "code", "said", "out"),
    [
        ("", 0, [], []),
        ("codes=(0 3)", 3, ["decide failed"], []),
        ("codes=(0 3) says='again n1,n2 1500'", 3, ["decide failed"], ["again n1,n2 1500"]),
        ("codes=(0 3) says='end n1 1500'", 3, ["decide failed"], []),
        ("codes=(0 3); down() { terminated=1 alive=0 failed=1 code=3; }", 3, [], []),
        ("begin_attempt() { due=1 due_at=0; }; stop() { stopping=1 deadline=99999999; }", 1, ["decide timeout"], []),
        ("begin_attempt() { due=1 due_at=0; }; stop() { :; }", 0, [], []),
        ("stop() { stopping=1 deadline=99999999; }; stopping=1 deadline=99999999", 0, [], []),
        (
            "begin_attempt() { due=1 due_at=0; }; stop() { stopping=1 deadline=99999999 failed=1 code=7; }",
            7,
            ["decide failed"],
            [],
        ),
        ("codes=(0 3) hung=; begin_attempt() { hung=cancel; watcher=; }", 3, [], []),
        ("codes=(0 3) hung=; begin_attempt() { hung=retry; watcher=; }", 3, ["decide failed"], []),
    ],
)
def test_the_policy_decides(given: str, code: int, said: list[str], out: list[str], tmp_path: Path) -> None:
    """On failures, and on attempts that had to end for the time limit; not for what Slurm or the watchdog ends."""
    found = job(tmp_path, f"python=p; begin_attempt() {{ :; }}; again() {{ echo again $*; }}\n{given}")
    assert (found.code, found.said) == (code, [*said])
    assert [line for line in found.out if not line.startswith("start")] == out


RETRIES = "policy=(APPLICATION) retries=(2) codes=('0 0 0' '3 3 3')"


@pytest.mark.parametrize(
    ("given", "before", "code", "out", "said"),
    [
        ("", "", 9, ["again 1"], ["scontrol requeue 7"]),
        ("", "1", 9, ["again 2"], ["scontrol requeue 7"]),
        ("", "2", 3, [], []),
        ("policy=(ROLE) retries=(0)", "", 3, [], []),
        ("codes=(0 0)", "", 0, [], []),
        ("guilty=1 policy=(ROLE APPLICATION) retries=(0 2)", "", 3, [], []),
    ],
)
def test_the_whole_job_starts_again(
    given: str, before: str, code: int, out: list[str], said: list[str], tmp_path: Path
) -> None:
    """In place, where Slurm cannot requeue it; as often as is wished."""
    if before:
        (tmp_path / "retried").write_text(f"{before}\n")
    found = job(tmp_path, f"{RETRIES}\n{given}")
    assert (found.code, [line for line in found.out if line.startswith("again")], found.said) == (code, out, said)
    assert "".join(lines(tmp_path / "retried")) == (str(int(before or 0) + 1) if out else before)
    assert [event for event in found.events if event.startswith("retry")] == [f"retry {line[6:]}" for line in out]
    assert found.events[-1] == (found.events[-1] if out else f"end {code} over")


def test_slurm_requeues_it(tmp_path: Path) -> None:
    """The script waits for a minute to be killed, and then goes on in place; or for as long as it takes."""
    (tmp_path / "accepts").touch()
    found = job(tmp_path, RETRIES)
    assert (found.code, len(found.sleeps), found.out[-1]) == (9, 60 + 1, "again 1")
    (tmp_path / "retried").unlink()
    ended = job(tmp_path, f"{RETRIES}; slept() {{ ((++n != 5)) || kill $$; ((n < 200)) || kill -9 $$; }}")
    assert (ended.code, len(ended.sleeps)) == (-9, 200)


ENDING = "printf '#!/bin/sh\\n[ $1 = show ] || kill $PPID $$; exit 1\\n' >bin/scontrol"
"""Slurm ends the job while it is asked to requeue it."""


def test_slurm_ends_it_while_it_is_asked(tmp_path: Path) -> None:
    """It is no rejection: the job does not go on in place."""
    ends = job(tmp_path, f"{RETRIES}; {ENDING}")
    assert (ends.code, [line for line in ends.out if "again" in line]) == (3, [])


@pytest.mark.parametrize(("hung", "ends"), [("", "killed"), ("cancel", "done")])
def test_the_end_of_the_watchdog(hung: str, ends: str, tmp_path: Path) -> None:
    """It is ended with the job, but may first send its notices if it has ended the job."""
    going = "(trap 'echo killed >ends; exit' TERM; : >going; for i in {1..50}; do read -rt 0.01 _ <> <(:); done; echo done >ends) &"
    starts = (
        f"begin_attempt() {{ hung={hung}; {going} watcher=$!; until [ -e going ]; do read -rt 0.01 _ <> <(:); done; }}"
    )
    found = job(tmp_path, f"python=p; {starts}")
    assert found.code == 0
    job(tmp_path, "until [ -e ends ]; do read -rt 0.01 _ <> <(:); done")
    assert (tmp_path / "ends").read_text() == f"{ends}\n"


OVER = "JobId=7 EndTime=2026-11-23T00:43:41 PreemptTime=None"
UNKNOWN = "JobId=7 EndTime=Unknown PreemptTime=None"
PREEMPTED = "JobId=7 EndTime=2026-11-23T00:43:41 PreemptTime=2026-11-23T00:42:41"


@pytest.mark.parametrize(
    ("given", "shown", "asked", "removed", "told"),
    [
        ("secrets=1", None, False, True, False),
        ("secrets=1 notify=p", None, False, True, True),
        ("notify=p", None, False, False, True),
        ("", None, False, False, False),
        ("secrets=1 ends=1", OVER, True, True, False),
        ("secrets=1 ends=1", UNKNOWN, True, False, False),
        ("secrets=1 ends=1", PREEMPTED, True, False, False),
        ("secrets=1 ends=1", "", True, False, False),
        ("notify=p ends=1", OVER, True, False, True),
        ("notify=p ends=1", UNKNOWN, True, False, False),
        ("ends=1", UNKNOWN, False, False, False),
        ("notify=p; rm notices.json", None, False, False, False),
    ],
)
def test_the_last_attempt(
    given: str, shown: str | None, asked: bool, removed: bool, told: bool, tmp_path: Path
) -> None:
    """It removes the secrets and sends the notices; a job that Slurm may start again does neither."""
    for name in ("secrets.sh", "notices.json"):
        (tmp_path / name).touch()
    (tmp_path / "shown").write_text(shown or "")
    (tmp_path / "python").write_text("#!/bin/sh\necho told $(grep -c end events)\n")
    (tmp_path / "python").chmod(0o755)
    ends = "begin_attempt() { :; }; down() { alive=$((alive - 1)); ((!${ends-0})) || terminated=1; }"
    found = job(tmp_path, f"{ends}; python_of() {{ echo $PWD/python; }}\n{given}")
    assert found.said == ["scontrol show job --oneliner 7"] * asked
    assert (tmp_path / "secrets.sh").exists() is not removed
    assert [line for line in found.out if "told" in line] == ["told 1"] * told
    assert found.events[-1] == ("end 0" if "ends=1" in given else "end 0 over")


def test_notices_are_sent_by_a_program(tmp_path: Path) -> None:
    """Also while Slurm ends the job; without Python nobody sends them."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH $*"; kill -TERM $$; echo on; echo late >&2\n')
    python.chmod(0o755)
    given = "code=3 terminated=1 notify=$PWD/python; python_of() { [ ! -x $1 ] || echo $1; }"
    functions = MAIN[MAIN.index("for_good() {") : MAIN.index("\nlast=1")]
    found = steps(tmp_path, f"{functions}\n{given}; send_notices; notify=/nowhere; send_notices; echo $?")
    assert found.out == [f" {tmp_path}/retry.pyz notices 3 1", "on", "1"]
    assert lines(tmp_path / "notices.log") == ["late"]


# -- retries by cause --------------------------------------------------------------------------------


def retried(folder: Path, text: str, **env: str) -> Ended:
    """Runs these words after the functions of both parts were defined."""
    stubs = 'decide() { echo "decide $*" >>said; echo "${says-end}"; }; python=p'
    return steps(folder, f"{CONFIRMS}\n{stubs}\n{text}", env, more="retries.sh")


@pytest.mark.parametrize(
    ("asked", "env", "changes"),
    [
        ("- 1000", {}, ""),
        ("n1,n2 1000", {}, "ExcNodeList=n1,n2"),
        ("- 1500", {"SLURM_MEM_PER_NODE": "100"}, "MinMemoryNode=150"),
        ("- 1500", {}, ""),
        ("- 1500", {"SLURM_MEM_PER_NODE": "0"}, ""),
        ("- 1001", {"SLURM_MEM_PER_NODE": "1000"}, "MinMemoryNode=1001"),
        ("- 1000", {"SLURM_MEM_PER_NODE": "100"}, ""),
        ("n1 2000", {"SLURM_MEM_PER_NODE": "100"}, "ExcNodeList=n1 MinMemoryNode=200"),
    ],
)
def test_what_is_changed_for_the_next_attempt(asked: str, env: dict[str, str], changes: str, tmp_path: Path) -> None:
    """Hosts to avoid, and memory if the job has asked for some."""
    (tmp_path / "accepts").touch()
    found = retried(tmp_path, f"memory=1000; change {asked}; echo $?", **env)
    assert found.said == ([f"scontrol update JobId=7 {changes}"] if changes else [])
    assert (found.out, found.sleeps) == (["0"], [])


def test_memory_grows_from_what_it_was(tmp_path: Path) -> None:
    """Slurm reports what the attempt had; each component of a heterogeneous job is changed, until Slurm accepts it."""
    env = {"SLURM_MEM_PER_NODE": "150", "SLURM_JOB_ID_HET_GROUP_0": "7", "SLURM_JOB_ID_HET_GROUP_1": "8"}
    found = retried(tmp_path, "exclude=n9 memory=1500; slept() { ((++n % 3)) || : >accepts; }; change n1 2000", **env)
    update = "ExcNodeList=n9,n1 MinMemoryNode=200"
    assert found.said == [f"scontrol update JobId={number} {update}" for number in (7, 7, 7, 7, 7, 8)]
    (tmp_path / "accepts").unlink()
    never = retried(tmp_path, "memory=1000; change n1 1000; echo on")
    assert (len(never.said), len(never.sleeps), never.out) == (20, 20, ["on"])


def test_an_attempt_is_put_back(tmp_path: Path) -> None:
    """Requeued by Slurm and changed, or started again in place; with its number, and the memory of the next one."""
    (tmp_path / "attempts.jsonl").write_text("{}\n{}\n")
    place = retried(tmp_path, "memory=1000; again n1 1500")
    assert (place.code, place.out, place.said) == (9, ["again 1"], ["scontrol requeue 7"])
    assert place.events == ["retry 2"]
    assert (tmp_path / "memory").read_text() == "1500\n"
    assert retried(tmp_path, "memory=1000; again n1 1500", TORCHX_TRY="2").out == ["again 3"]
    (tmp_path / "accepts").touch()
    queued = retried(tmp_path, "memory=1000; again n1 1500")
    assert (queued.out, queued.said) == (["again 1"], ["scontrol requeue 7", "scontrol update JobId=7 ExcNodeList=n1"])
    assert len(queued.sleeps) == 60
    ended = retried(
        tmp_path, "memory=1000; slept() { ((++n != 5)) || kill $$; ((n < 200)) || kill -9 $$; }; again - 1000"
    )
    assert (ended.code, len(ended.sleeps)) == (-9, 200)


def test_after_a_time_limit_nothing_starts_in_place(tmp_path: Path) -> None:
    """Its nodes are about to be taken away: without a requeue the job ends, and its record says why."""
    decide = 'how=timeout; decide() { echo "decide $1" >&2; }'
    found = retried(tmp_path, f"memory=1000; {decide}; again - 1000; echo ends")
    assert (found.code, found.out) == (0, ["ends"]), found
    line = to_line(Attempt(kind="timeout", again=True, why="timeout: retried"))
    (tmp_path / "attempts.jsonl").write_text(line * 2)
    not_requeued(str(tmp_path))
    first, last = attempts_in(str(tmp_path))
    assert (first.again, last.again, last.why) == (True, False, "timeout: Slurm refuses to requeue the job")


def test_slurm_ends_an_attempt_while_it_is_asked(tmp_path: Path) -> None:
    """It is no rejection."""
    found = retried(tmp_path, f"{ENDING}; again - 1000; echo $terminated")
    assert found.out == ["1"]


@pytest.mark.parametrize(
    ("avoided", "found"),
    [("n1", True), ("n9,n2", True), ("n1,n9", True), ("n", False), ("n11,n22", False), ("b1", True)],
)
def test_is_it_on_a_host_to_avoid(avoided: str, found: bool, tmp_path: Path) -> None:
    """In any of its groups, by whole names."""
    groups = {"SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-2]", "SLURM_JOB_NODELIST_HET_GROUP_1": "b1"}
    assert retried(tmp_path, f"group_nodes=(2 1); on_avoided {avoided} && echo yes", **groups).out == ["yes"] * found


BEGINS = "again() { echo again $*; }; begin_attempt; echo on $memory"


@pytest.mark.parametrize(
    ("given", "env", "out", "said"),
    [
        ("", {}, ["on 1000"], []),
        ("echo 1500 >memory", {}, ["on 1500"], []),
        ("says='end'", {"SLURM_RESTART_COUNT": "1"}, [], ["decide requeued"]),
        ("says='again - 1000'", {"SLURM_RESTART_COUNT": "1"}, ["on 1000"], ["decide requeued"]),
        ("says='again n1,n9 1500'", {"SLURM_RESTART_COUNT": "2"}, ["again n1,n9 1500", "on 1000"], ["decide requeued"]),
        ("says='again n9 1500'", {"SLURM_RESTART_COUNT": "1"}, ["on 1000"], ["decide requeued"]),
        ("says='end'", {"SLURM_RESTART_COUNT": "1", "TORCHX_TRY": "1"}, ["on 1000"], []),
        ("says='end'", {"SLURM_RESTART_COUNT": "0"}, ["on 1000"], []),
    ],
)
def test_how_an_attempt_begins(
    given: str, env: dict[str, str], out: list[str], said: list[str], tmp_path: Path
) -> None:
    """One that was requeued asks the policy; on a host to avoid it goes back; one that restarts in place does neither."""
    (tmp_path / "checkpoint").touch()
    found = retried(tmp_path, f"{given}\n{BEGINS}", **env)
    assert (found.out, found.said) == (out, said)
    assert found.code == (1 if not out else 0)
    assert found.events == ([] if out else ["end 1"])
    assert (tmp_path / "checkpoint").exists() is not bool(out)
    log = "\n".join(lines(tmp_path / "retry.log"))
    assert log == (f"torchx: started on a node that it is to avoid: {out[0].split()[1]}" if len(out) > 1 else "")


def test_three_times_back_is_enough(tmp_path: Path) -> None:
    """Then the nodes are accepted."""
    for n in range(5):
        found = retried(tmp_path, f"says='again n1 1500'\n{BEGINS}", SLURM_RESTART_COUNT="1")
        assert found.out == [*["again n1 1500"] * (n < 3), "on 1000"]


def test_signals_of_an_attempt(tmp_path: Path) -> None:
    """SIGTERM asks for a checkpoint and is the end; USR1 comes before the time limit, and wakes the script."""
    shows = 'echo "$terminated $due $((due_at - now)) $([ -e checkpoint ] && echo asked)"; rm -f checkpoint'
    begins = "terminated=0 due=0 due_at=0; clock() { now=100; }; begin_attempt; now=0"
    paths = 'echo "$TORCHX_CHECKPOINT_NOW $TORCHX_PROGRESS"; env | grep -c "^TORCHX_[CP]"'
    assert retried(tmp_path, f"{begins}; {paths}").out == [f"{tmp_path}/checkpoint {tmp_path}/progress", "2"]
    assert retried(tmp_path, f"{begins}; kill -TERM $$; {shows}").out == ["1 0 0 asked"]
    for early, left in (("60", 20), ("61", 21), ("100", 60), ("30", 10)):
        found = retried(
            tmp_path, f"early={early}; {begins}; kill -USR1 $$; {shows}; read -rt 5 -u $bus line; echo $line"
        )
        assert found.out == [f"0 1 {left} asked", "due"]
