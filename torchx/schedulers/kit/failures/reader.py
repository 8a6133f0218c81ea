"""Finds out why a replica failed, from torchelastic's error file, its output, and torchrun's report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from signal import Signals, strsignal

from torchx.schedulers.kit.failures import SHELL, Evidence, signal_name
from torchx.schedulers.kit.failures.classes import classify, is_aftermath, is_vague, is_wrapper
from torchx.schedulers.kit.failures.lines import clean, without_warned_lines
from torchx.schedulers.kit.failures.row import LAUNCHER, LINE
from torchx.schedulers.kit.failures.rows import shapes
from torchx.schedulers.kit.failures.signatures import first, in_lines, note_all
from torchx.schedulers.kit.failures.torchrun import Report, Worker, read_report, streams
from torchx.schedulers.kit.failures.tracebacks import HEADER, Trace, bounded, find_traces
from torchx.specs.failures import Failure, parse_failure
from torchx.util.records import replace

__all__ = ["Evidence", "is_aftermath", "read_failure", "signal_name"]

_CONTEXT_LINES = 40
_FATAL_WITHIN = 200  # lines, since crash reports are long
_LINE_CHARS = 500
_MESSAGE_CHARS = 2000
_BYTE, _WRAPPED, _LAST_WRAPPED = 256, 240, 252  # a launcher that exits with `-n`, signal n, ends with 256-n
_ADVICE_LINES = 6
_LAST_LINES = 12  # of a program without exception: a signature above them was not its end
# Lines of kit/setup.sh and kit/check_node.py, after which the program was not started.
SETUP_FAILED = "torchx: set-up failed: "
NODE_FAILED = "torchx: node check failed: "


def read_failure(evidence: Evidence, *, exit_code: int | None, signal: str = "", ended: float = 0) -> Failure:
    """Why a replica failed, with the class of the cause.

    An ``exit_code`` that is negative or above 128 may stand for a signal. ``ended`` is the Unix time of its end.

    >>> read_failure(Evidence(stderr="loading\\nno data in /data\\n"), exit_code=1).summary()
    'exit code 1: no data in /data'
    >>> read_failure(Evidence(), exit_code=137).summary()
    'killed by SIGKILL (often: out of memory)'
    """
    if not signal and exit_code is not None and (exit_code > SHELL or exit_code < 0):
        signal = signal_name(exit_code)
    end = Failure("", None if signal else exit_code, signal, timestamp=ended)
    lines, stdout = clean(evidence.stderr), clean(evidence.stdout)
    report = read_report(lines)
    found = _of_workers(lines, report, stdout, end) if report is not None else _of_program(lines, stdout, end)
    found = _with_error_file(parse_failure(evidence.error_file), found)
    system = [line for line in lines if re.match(shapes.SYSTEM, line) and not re.match(shapes.STEP_NEWS, line)]
    for where in (LINE, LAUNCHER):
        note_all(where, [*lines, *stdout])
    kind, line = classify(found, "\n".join([evidence.said, *system]))
    message = re.sub(rf"\n(?:{shapes.ADVICE}).*", "", found.message)
    asserted = next(filter(None, (re.match(shapes.ASSERTION, line) for line in lines)), None)
    if asserted and "device-side assert" in message:  # the exception does not say which one failed
        message = f"{asserted[1]}\n-> {message}"
    message = message or (system[0].partition(": ")[2].removeprefix("error: ") if system else "")
    return replace(found, message=message, kind=kind, evidence=bounded(line, _LINE_CHARS))


# -- one program ---------------------------------------------------------------------------------------


def _of_program(lines: Sequence[str], stdout: Sequence[str], end: Failure) -> Failure:
    """Return the failure of a replica that has no report of torchrun."""
    if (found := _before_program(lines, end)) is not None:
        return found
    by_writer = streams(lines, None)
    if len(by_writer) > 1 or None not in by_writer:
        told = []
        for writer, own in by_writer.items():
            trace = _last_trace(find_traces(own), own, end)
            if trace is not None and not (_is_wrapper(trace) and writer is None):
                rank = writer if isinstance(writer, int) else None
                told.append((writer, replace(_of_trace(trace, own, end), rank=rank)))
        # the main program's exception counts unless it only reports the others' failures; no rank goes before another
        told.sort(key=lambda one: (is_aftermath(one[1]), isinstance(one[0], str), one[0] is None))
        if told and (told[0][0] is not None or len(told) > 1 or isinstance(told[-1][0], str)):
            return told[0][1]
    lines = _without_snakemake([line for own in by_writer.values() for line in own])
    trace = _last_trace(find_traces(lines), lines, end)
    return _of_trace(trace, lines, end) if trace is not None else _of_words(lines, stdout, _reported(lines, end))


def _before_program(lines: Sequence[str], end: Failure) -> Failure | None:
    """Return the failure of the set-up or of a check of the node, whatever else it wrote; None if it passed."""
    if not any(line.startswith(SETUP_FAILED) for line in lines[-_LAST_LINES:]):
        return None
    said = [line for line in lines if _says(line)]
    if not said[-1].startswith(SETUP_FAILED):
        return None
    unfit = len(said) > 1 and said[-2].startswith(NODE_FAILED)
    message, context = said[-1 - unfit].removeprefix("torchx: "), "\n".join(said[-_CONTEXT_LINES : -1 - unfit])
    kind = "node" if unfit else "error"
    return replace(end, message=bounded(message, _MESSAGE_CHARS), traceback=context, kind=kind)


def _reported(lines: Sequence[str], end: Failure) -> Failure:
    """Return the end of a program that a launcher or a shell started,
    by its report at the end or by its own exit code.
    """
    code = end.exit_code
    last: list[str] = []
    for line in reversed(lines):
        if first(LAUNCHER, line):
            last.insert(0, line)
        elif _says(line):
            break
    for row, at in in_lines(LAUNCHER, last) if code is not None else ():
        found = row.search(last[at])
        groups = found.groupdict() if found else {}
        if groups.get("signal"):
            return _ended(end, groups["signal"])
        if groups.get("code"):
            code = int(groups["code"])
            break
    if code is None or 0 <= code <= SHELL or (code == end.exit_code and any(map(_says, lines))):
        return end
    if code > _LAST_WRAPPED:
        return end
    return _ended(end, str(code if code <= _WRAPPED else _BYTE - code))


def _ended(end: Failure, signal: str) -> Failure:
    """Return the end by a signal, given by its name, its number, or the word that shells print."""
    if not signal.startswith("SIG"):
        words = {strsignal(number): number for number in Signals}
        signal = signal_name(int(words.get(signal, 0) if signal.isalpha() or " " in signal else signal))
    return replace(end, signal=signal, exit_code=None) if signal else end


def _without_snakemake(lines: list[str]) -> list[str]:
    """Return the output of a Snakemake rule; its failure report is reduced to the message of an exception."""
    at = next((i for i, line in enumerate(lines) if re.match(shapes.SNAKEMAKE, line)), None)
    if at is None:
        return lines
    raised = re.match(r"(\w+) in file \".*\", line \d+:$", lines[at + 1]) if at + 2 < len(lines) else None
    if raised is None or raised[1] == "CalledProcessError":
        return lines[:at] or lines
    return [*lines[:at], f"{raised[1]}: {lines[at + 2]}"]


def _last_trace(traces: Sequence[Trace], lines: Sequence[str], end: Failure) -> Trace | None:
    """Return the traceback that ended the program: the last one,
    unless it only reports the failure of a child process.
    """
    ending = [trace for trace in traces if not trace.ignored]
    while len(ending) > 1 and _is_wrapper(ending[-1]):
        ending.pop()
    if not ending:
        return None
    after = [line for line in lines[ending[-1].end :] if _says(line)]
    after = [line for line in after if not line.startswith(shapes.ABORTED_AT_EXIT)]
    if end.signal and (len(after) > _CONTEXT_LINES or any(re.match(shapes.FATAL, line) for line in after)):
        return None  # a signal ended it, long after that exception was handled
    return ending[-1]


def _of_trace(trace: Trace, lines: Sequence[str], end: Failure) -> Failure:
    text = "\n".join(bounded(line, _LINE_CHARS) for line in lines[trace.start : trace.end]).rstrip()
    message = trace.message
    if is_vague(trace.links):  # what was printed above says more
        end = _reported([trace.message], end)
        above = [line for line in lines[: trace.start] if _says(line)]
        signed = _signed(above, replace(end, signal="SIGABRT")) or (
            above[-1].strip() if _is_wrapper(trace) and above else "",
        )
        message = f"{signed[0]}\n-> {message}" if signed[0] else message
    return replace(end, message=message, traceback=text)


def _is_wrapper(trace: Trace) -> bool:
    return all(map(is_wrapper, trace.links))


def _of_words(lines: Sequence[str], stdout: Sequence[str], end: Failure) -> Failure:
    """Return the failure of a program without traceback, by its last output."""
    for stream in (lines, stdout):
        said = [line for line in without_warned_lines(stream) if _says(line)]
        if not said:
            continue
        message, rest = _signed(said, end) or _fatal(said) or _last_word(said, end)
        context = rest[-_CONTEXT_LINES:]
        return replace(
            end,
            message=bounded(message, _MESSAGE_CHARS),
            traceback="\n".join(bounded(line, _LINE_CHARS) for line in context),
        )
    return end


def _signed(said: Sequence[str], end: Failure) -> tuple[str, Sequence[str]] | None:
    """Return the line of a known signature among the last lines: the first of a cause,
    else the first of an aftermath.
    """
    last = said[-(_FATAL_WITHIN if end.signal == "SIGABRT" else _LAST_LINES) :]
    found = sorted((row.aftermath, at, row.more) for row, at in in_lines(LINE, last))
    if not found:
        return None
    _, at, more = found[0]
    message = [_plain(line) for line in last[at : at + 1 + more]]
    return " ".join(line.strip() for line in message), said


def _plain(line: str) -> str:
    """Without the time and place of a fatal line of glog."""
    return re.sub(r"^\[?[EF]\d{3,4} [\d:.]+ .*?\] ?", "", line)


def _fatal(said: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """Return the message of a program that crashed without a Python exception, and the lines around it."""
    said = said[-_FATAL_WITHIN:]
    at = next((i for i, line in enumerate(said) if re.match(shapes.FATAL, line)), None)
    if at is None:
        return None
    line = said[at]
    thrown = re.match(r"terminate called after throwing an instance of '(.*)'", line)
    if thrown:
        what = next((w[1] for text in said[at + 1 : at + 4] if (w := re.match(r"\s*what\(\): *(.*)", text))), "")
        return f"{thrown[1]}: {what}" if what else line, said
    if line.startswith("thread '") and at + 1 < len(said):
        return f"{line} {said[at + 1]}", said
    return _plain(line), said


def _last_word(said: Sequence[str], end: Failure) -> tuple[str, Sequence[str]]:
    """Return the last line, unless it is of progress; if a signal ended the program, only if it mentions an error."""
    if end.exit_code is None and not re.match(shapes.ERROR_WORDS, said[-1]):
        return "", said
    at = len(said) - 1
    if not re.match(shapes.ERROR_WORDS, said[at]):  # advice may stand below the error
        at = next((i for i in range(at, max(at - _ADVICE_LINES, -1), -1) if re.match(shapes.ERROR_HEAD, said[i])), at)
    return ("" if re.fullmatch(shapes.PROGRESS, said[at]) else said[at].strip()), said[:at]


def _says(line: str) -> bool:
    return bool(line.strip()) and re.match(shapes.NOISE, line) is None and first(LAUNCHER, line) is None


# -- torchrun ------------------------------------------------------------------------------------------


def _of_workers(lines: Sequence[str], report: Report, stdout: Sequence[str], end: Failure) -> Failure:
    """Return the failure of the guilty worker of torchrun."""
    own_trace = next((i for i in range(report.start, -1, -1) if HEADER in lines[i]), report.start)
    before = lines[:own_trace]
    err, out = streams(before, report), streams(stdout, report)
    told = [_of_worker(w, err.get(w.rank, ()), out.get(w.rank, ()), end) for w in report.workers]
    if not told[0].message and not told[0].traceback:
        told[0] = _of_anybody(err.get(None, ()), out.get(None, ()), told)
    return next((failure for failure in told if not is_aftermath(failure)), told[0])


def _of_worker(worker: Worker, stderr: Sequence[str], stdout: Sequence[str], end: Failure) -> Failure:
    signal = signal_name(worker.code) if worker.code < 0 else ""
    host = "" if worker.host.startswith("localhost") else worker.host
    mine = Failure("", None if signal else worker.code, signal, timestamp=end.timestamp, rank=worker.rank, host=host)
    recorded = worker.error.splitlines()
    traces = find_traces(recorded)
    if traces:
        return _of_trace(traces[-1], recorded, mine)
    trace = _last_trace(find_traces(stderr), stderr, mine)
    if trace is not None:
        told = _of_trace(trace, stderr, mine)
        alone = replace(told, signal="") if signal == "SIGTERM" else told  # SIGTERM came after it had failed
        return told if is_aftermath(alone) else alone
    return replace(mine, message=worker.error) if worker.error else _of_words(stderr, stdout, mine)


def _of_anybody(stderr: Sequence[str], stdout: Sequence[str], told: Sequence[Failure]) -> Failure:
    """Return the likely failure of torchrun's root cause, if the lines do not show which worker wrote them."""
    root = told[0]
    traces = [trace for trace in find_traces(stderr) if not trace.ignored]
    if root.signal or not traces:
        return _of_words(stderr, stdout, root)
    failures = [_of_trace(trace, stderr, root) for trace in traces]
    guilty = next((failure for failure in failures if not is_aftermath(failure)), failures[0])
    suspects = [failure for failure in told if failure.exit_code is not None and not failure.message]
    certain = len(suspects) == 1 or len({failure.message for failure in failures}) == 1
    return guilty if certain else replace(guilty, rank=None)


# -- texts ---------------------------------------------------------------------------------------------


def _with_error_file(reported: Failure | None, found: Failure) -> Failure:
    """Return the failure in the error file, unless stderr has more details or shows that another one is the cause."""
    if reported is None or not (reported.traceback or HEADER not in found.traceback):
        return found
    traces = find_traces(reported.traceback.splitlines())
    whole = traces[-1].message if traces and len(traces[-1].links) > 1 else reported.message
    filed = replace(
        found,
        message=bounded(whole, _MESSAGE_CHARS),
        traceback=reported.traceback or found.traceback,
        timestamp=reported.timestamp or found.timestamp,
    )
    return found if is_aftermath(filed) and not is_aftermath(found) and found.message else filed
