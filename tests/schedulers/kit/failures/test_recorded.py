"""Real outputs of programs that failed: what is said of each, and how often the class is right.

``tests/recorded/failures/README.md`` says how they were made. Every fifth record, by a hash of its id, is held out: nobody
looks at those while the tables are written, so that their figure says what strangers may expect. ``pytest -s`` shows both.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.tables import rows
from torchx.schedulers.batch.folders import TAIL_BYTES, JobFolder
from torchx.schedulers.kit.failures.classes import CLASSES, is_aftermath
from torchx.schedulers.kit.failures.reader import Evidence, read_failure
from torchx.schedulers.kit.failures.tracebacks import HEADER
from torchx.schedulers.kit.files import LocalFiles
from torchx.specs.failures import Failure, parse_failure

FOLDER = os.path.join(os.path.dirname(__file__), "../../../recorded/failures")
TRANSIENT = {"preempted", "node", "timeout", "network"}
LEAST_F1 = 0.97


def _records() -> list[dict[str, Any]]:
    found = []
    for path in sorted(glob.glob(f"{FOLDER}/*.jsonl")):
        with open(path, encoding="utf-8") as f:
            found += [json.loads(line) for line in f]
    return found


def _read(record: dict[str, Any]) -> Failure:
    evidence = Evidence(**{key: record[key] for key in ("error_file", "stderr", "stdout", "said")})
    return read_failure(evidence, exit_code=record["exit_code"], signal=record["signal"], ended=7.0)


def _held_out(record: dict[str, Any]) -> bool:
    return int(hashlib.sha256(record["id"].encode()).hexdigest(), 16) % 5 == 0


RECORDS = _records()


@rows("record", RECORDS, ids=lambda record: record["id"])
def test_what_is_said_of_it(record: dict[str, Any]) -> None:
    """The message has the words of the program that failed, of the right rank; no frame, no box, no neighbour's."""
    failure, label = _read(record), record["label"]
    told = f"{failure.message} {failure.summary()}"
    assert [words for words in label["message"] if words not in told] == []
    assert [words for words in label.get("not", ()) if words in told] == []
    assert label["rank"] in (None, failure.rank)
    assert label.get("signal", failure.signal) == failure.signal
    if label.get("aftermath") or label["class"] not in {*TRANSIENT, "cancelled"}:
        assert is_aftermath(failure) == label.get("aftermath", False)
    assert len(failure.message) < 5000
    assert "\x1b" not in failure.summary()
    assert not failure.evidence or failure.evidence.split(" ...")[0] in f"{record['stderr']}{record['said']}{failure}"
    assert parse_failure(failure.to_structured_msg()) == failure


@pytest.mark.parametrize("family", sorted({record["id"].partition("/")[0] for record in RECORDS}))
def test_what_is_left_of_a_cut_stream(family: str) -> None:
    """Only the end of a long stream is read: wherever it is cut, something is said, and no bug of a user is transient."""
    for record in (record for record in RECORDS if record["id"].startswith(f"{family}/")):
        lines = record["stderr"].splitlines(keepends=True)
        cuts = ["".join(lines[len(lines) * share // 8 :]) for share in range(1, 8)]
        for cut in {*cuts, *(cut[len(cut) // 9 :] for cut in cuts)}:  # of a short one, many are the same
            left = {**record, "stderr": cut, "error_file": None}
            failure = _read(left)
            assert failure.kind in CLASSES
            assert failure.summary() or record["said"] or failure.kind == "lost", left
            # Of a collective, the victims alone may be left; without frames, nobody knows who raised what.
            whole = HEADER in left["stderr"] and "torchrun" not in record["how"]
            known = family not in ("collectives", "others") and (family != "adversarial" or whole)
            if record["label"]["class"] == "error" and known:
                assert failure.kind not in TRANSIENT, left


def test_the_corpus() -> None:
    """It is large enough, small enough, and has every class; no record is there twice."""
    ids = [record["id"] for record in RECORDS]
    assert len(ids) == len(set(ids)) >= 200
    assert {record["label"]["class"] for record in RECORDS} == set(CLASSES)
    assert sum(record["source"] == "made" for record in RECORDS) >= 200
    assert sum(os.path.getsize(path) for path in glob.glob(f"{FOLDER}/*.jsonl")) < 1_500_000


def test_the_class_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    """Macro-F1 of all records, and of those held out; no bug of a user is taken for something that a retry would mend."""
    told = [(record, _read(record).kind) for record in RECORDS]
    with capsys.disabled():
        print()
        seen = _figures([pair for pair in told if not _held_out(pair[0])], "seen")
        held = _figures([pair for pair in told if _held_out(pair[0])], "held out")
        everything = _figures(told, "all")
    taken = [(r["id"], kind) for r, kind in told if r["label"]["class"] == "error" and kind in TRANSIENT]
    assert taken == []
    assert min(seen, held, everything) >= LEAST_F1


def _figures(pairs: Sequence[tuple[dict[str, Any], str]], title: str) -> float:
    """Prints precision and recall of each class; returns the macro-F1."""
    truth = Counter(record["label"]["class"] for record, _ in pairs)
    said = Counter(kind for _, kind in pairs)
    right = Counter(kind for record, kind in pairs if kind == record["label"]["class"])
    scores = []
    print(f"{title}: {len(pairs)} records")
    for kind in (kind for kind in CLASSES if truth[kind] or said[kind]):
        precision, recall = _ratio(right[kind], said[kind]), _ratio(right[kind], truth[kind])
        scores.append(_ratio(2 * precision * recall, precision + recall))
        print(f"  {kind:<10} {truth[kind]:>4}  precision {precision:.3f}  recall {recall:.3f}  F1 {scores[-1]:.3f}")
    print(f"  macro-F1 {_mean(scores):.3f}")
    return _mean(scores)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def test_stdout_of_workers_is_read_though_torchrun_writes_to_stderr(tmp_path: Path) -> None:
    """Job folders of a batch backend: torchrun's own lines on stderr are no words of the program."""
    record = next(r for r in RECORDS if r["id"] == "torchrun/stdout-words-tee2")
    folder = JobFolder(LocalFiles(), str(tmp_path))
    place = Path(folder.replica("w", 0))
    place.mkdir(parents=True)
    (place / "stderr.log").write_text(record["stderr"])
    (place / "stdout.log").write_text(record["stdout"])
    (left,) = folder.evidence([("w", 0)])
    assert read_failure(left, exit_code=1).summary() == "exit code 3: fatal: the tokenizer has no vocabulary"


def test_a_log_of_200_mb_costs_what_its_tail_costs(tmp_path: Path) -> None:
    """Only the tail is read; a log line costs a few calls, whatever the number of signatures."""
    folder = JobFolder(LocalFiles(), str(tmp_path))
    place = Path(folder.replica("w", 0))
    place.mkdir(parents=True)
    line = "step 3 loss 0.1 CUDA memory of rank 3, NCCL connection: error rate 0.2, no warning\n"
    with open(place / "stderr.log", "w") as f:
        f.truncate(200 << 20)
        f.seek(0, os.SEEK_END)
        f.write("\n" + line * 1000 + "no data in /data\n")
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    read_failure(Evidence(stderr=line), exit_code=1)  # compile what is needed
    (left,) = folder.evidence([("w", 0)])
    assert len(left.stderr) <= TAIL_BYTES
    sys.setprofile(count)
    try:
        failure = read_failure(left, exit_code=1)
    finally:
        sys.setprofile(None)
    assert failure.summary() == "exit code 1: no data in /data"
    assert calls < 100 * left.stderr.count("\n")
