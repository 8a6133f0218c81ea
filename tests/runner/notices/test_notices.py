"""Notices: each is sent once, with the text of the status page, and a broken channel does no harm."""

from __future__ import annotations

import itertools
import json
import os
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.runner.memory_backend import Killed, MemoryScheduler, echo_app
from tests.runner.sinks import http_sink, smtp_sink
from torchx.errors import ConfigError, SpecError
from torchx.runner import Runner
from torchx.runner.notices import __main__ as sender
from torchx.runner.notices import plans
from torchx.runner.notices.channels import settings_of
from torchx.schedulers.kit import notices as ways
from torchx.schedulers.kit.notices import Notice, deliver
from torchx.specs import AppDef, AppState, AppStatus
from torchx.specs.wishes.notices import NOTIFY, NOTIFY_ON, hang_event

NOTICE = Notice("end", "x://s/a", "train", "FAILED", "state:    FAILED\ncause:    r/0: exit code 3\n")


@pytest.fixture
def mail():
    with smtp_sink() as sink:
        yield sink


@pytest.fixture
def hooks():
    with http_sink() as sink:
        yield sink


@pytest.fixture
def config(tmp_path, monkeypatch, hooks, mail):
    """A config file with all channels, and the addresses as secrets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_HOOK", f"http://127.0.0.1:{hooks.port}/services/T0/hunter2")
    text = f"slack = env:MY_HOOK\nwebhook = env:MY_HOOK\nmail = me@example.org\nsmtp = 127.0.0.1:{mail.port}\n"
    path = tmp_path / ".torchxconfig"
    path.write_text(f"[notify]\n{text}")
    return path


def submitted(runner, monkeypatch, via, on="end"):
    """A job of the in-memory cluster with notices; senders run in this process."""
    from torchx.runs import default_registry

    app = echo_app()
    app.metadata.update({NOTIFY: via, NOTIFY_ON: on})
    monkeypatch.setattr(plans, "start_sender", lambda handle: None)
    monkeypatch.setattr("torchx.runner.notices.__main__.get_runner", lambda: _Borrowed(runner))
    handle = runner.run(app, "memory")
    return handle, default_registry()


class _Borrowed:
    """The test's own Runner, which the test closes."""

    def __init__(self, runner):
        self.runner = runner

    def __enter__(self):
        return self.runner

    def __exit__(self, *_):
        pass


# -- what is sent, and when ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "ends", "events"),
    [
        ("end", "SUCCEEDED", ["end"]),
        ("end", "FAILED", ["end"]),
        ("fail", "SUCCEEDED", []),
        ("fail", "FAILED", ["end"]),
        ("fail", "CANCELLED", []),
        ("start,fail", "FAILED", ["start", "end"]),
        ("start", "SUCCEEDED", ["start"]),
        ("start,end,fail", "FAILED", ["start", "end"]),
    ],
)
def test_each_event_once(runner, jobs, hooks, config, monkeypatch, on, ends, events):
    """However often senders run, each requested event is sent once, and the plan is removed with the last notice."""
    handle, _ = submitted(runner, monkeypatch, "webhook", on)
    for _ in range(3):
        sender.send(handle)
    jobs["echo-1"].state = AppState[ends]
    for _ in range(3):
        sender.send(handle)
    assert [document["event"] for document in hooks.got] == events
    assert not os.path.exists(plans.plan_path(handle))
    assert os.listdir(os.path.dirname(plans.plan_path(handle))) == []


@pytest.mark.parametrize("seen", ["no output for 10 min: x", "idle for 10 min: at most 0.01 processors in use"])
def test_alarms_that_the_job_tells_itself(seen):
    """The job sends them while it runs; after its end, those that failed are due, for each channel separately."""
    plan = {"job": True, "on": ["hang"], "channels": {"slack": {}, "mail": {}}, "sent": {}}
    assert plans.due_events(plan, AppState.RUNNING, seen) == []
    sender._note(plan, {f"{hang_event(seen)}/slack": "", f"{hang_event(seen)}/mail": "no answer", "slack": ""})
    assert plan["sent"] == {hang_event(seen): ["slack"], "end": ["slack"]}
    assert plans.due_events(plan, AppState.FAILED, seen) == [hang_event(seen)]
    plan["sent"][hang_event(seen)].append("mail")
    assert plans.due_events(plan, AppState.FAILED, seen) == []


def test_what_an_alarm_is_called():
    """By what the job does not do; one that went on is none."""
    for seen, word in (("no output for 10 min: x", "SILENT"), ("idle for 10 min: y", "IDLE")):
        notice = Notice.of("hang", "x://s/a", "t", AppStatus(AppState.RUNNING, hang=seen))
        assert notice.title == f"{word}: t (x://s/a)"
        plan: dict[str, Any] = {"on": ["hang"], "channels": {"slack": {}}, "sent": {}}
        assert plans.due_events(plan, AppState.RUNNING, f"it went on; before that, {seen}") == []


@pytest.mark.parametrize("seen", ["no output for 10 min: x", "idle for 10 min: at most 0.01 processors in use"])
def test_alarms_in_the_same_words(monkeypatch, seen):
    """Each alarm is sent once; a sender that is started at the end does not repeat them."""
    plan: dict[str, Any] = {"on": ["hang"], "channels": {"slack": {}}, "sent": {}}
    for alarm, due in (("7", 1), ("7", 0), ("9", 1), ("", 0)):
        monkeypatch.setenv("TORCHX_ALARM", alarm)
        events = plans.due_events(plan, AppState.RUNNING, seen)
        assert len(events) == due, alarm
        for event in events:
            plan["sent"][event] = ["slack"]
    assert list(plan["sent"]) == [f"{hang_event(seen)}-7", f"{hang_event(seen)}-9"]
    plan["sent"] = {hang_event(seen): ["slack"]}  # by one that was at work already, and has seen it too
    monkeypatch.setenv("TORCHX_ALARM", "11")
    assert plans.due_events(plan, AppState.RUNNING, seen) == []


def test_many_senders_at_once(runner, jobs, hooks, mail, config, monkeypatch):
    """A lock lets only one of them send, once per channel; the text is that of the status page."""
    handle, _ = submitted(runner, monkeypatch, "slack,mail")
    jobs["echo-1"].state = AppState.FAILED
    jobs["echo-1"].msg = "echo/0: exit code 3"
    threads = [threading.Thread(target=sender.send, args=(handle,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    page = f"app:      {handle}\n{runner.status(handle).format()}\n"
    assert [document["text"] for document in hooks.got] == [f"FAILED: echo ({handle})\n```\n{page}```"]
    (message,) = mail.got
    assert "Subject: torchx: FAILED: echo" in message
    assert "cause:    echo/0: exit code 3" in message or "message:  echo/0: exit code 3" in message


def test_a_sender_that_died_is_followed_by_another(runner, jobs, hooks, mail, config, monkeypatch):
    """The second sender sends only what the first one has not sent."""
    handle, _ = submitted(runner, monkeypatch, "slack,mail")
    jobs["echo-1"].state = AppState.FAILED
    send = ways._SENDERS["mail"]

    def dies(settings, notice):
        raise KeyboardInterrupt

    monkeypatch.setitem(ways._SENDERS, "mail", dies)
    with pytest.raises(KeyboardInterrupt):
        sender.send(handle)
    assert (len(hooks.got), len(mail.got)) == (1, 0)
    monkeypatch.setitem(ways._SENDERS, "mail", send)
    sender.send(handle)
    assert (len(hooks.got), len(mail.got)) == (1, 1)


def test_a_sender_that_died_when_all_was_sent(runner, jobs, hooks, config, monkeypatch):
    """A poller starts another one, which sends nothing, and removes addresses and drafts."""
    handle, registry = submitted(runner, monkeypatch, "webhook")
    jobs["echo-1"].state = AppState.FAILED
    registry.saw(handle, AppState.FAILED)
    status, asked = runner.status, []

    def dies_later(of):
        asked.append(of)
        if len(asked) > 1:
            raise KeyboardInterrupt
        return status(of)

    monkeypatch.setattr(runner, "status", dies_later)
    with pytest.raises(KeyboardInterrupt):
        sender.send(handle)
    monkeypatch.setattr(runner, "status", status)
    path = Path(plans.plan_path(handle))
    path.with_name(f"{path.name}.4711").write_text("hunter2")
    started = []
    monkeypatch.setattr(plans, "start_sender", started.append)
    plans.send_due("memory", registry)
    assert started == [handle]
    sender.send(handle)
    assert len(hooks.got) == 1
    assert list(path.parent.iterdir()) == []


def test_a_job_that_is_lost(runner, jobs, hooks, config, monkeypatch):
    """Its end cannot be observed: the addresses are removed."""
    from torchx.runner.watching import listing
    from torchx.runs.records import RunQuery

    handle, registry = submitted(runner, monkeypatch, "webhook")
    jobs.clear()
    runs = registry.list(RunQuery(scheduler="memory"), unfinished=True)
    monkeypatch.setattr(listing, "_is_lost", lambda run, *, near: True)
    listing.refresh(registry, runs, runner._backends.get, 60.0)
    assert not os.path.exists(plans.plan_path(handle))


def test_whoever_polls_has_it_sent(runner, jobs, config, monkeypatch):
    """A poller starts a sender once the job has ended on record; not before, and not for other schedulers."""
    handle, registry = submitted(runner, monkeypatch, "webhook")
    started = []
    monkeypatch.setattr(plans, "start_sender", started.append)
    plans.send_due("memory", registry)
    assert started == []
    registry.saw(handle, AppState.FAILED)
    plans.send_due("mem", registry)
    assert started == []
    plans.send_due("memory", registry)
    assert started == [handle]


def test_a_refused_submission_has_no_plan(runner, jobs, config, monkeypatch):
    """A job that was deleted has none, either."""
    from tests.runner.memory_backend import backend
    from torchx.errors import BackendError

    handle, _ = submitted(runner, monkeypatch, "webhook")
    folder = os.path.dirname(plans.plan_path(handle))
    runner.delete(handle)
    assert os.listdir(folder) == []
    backend(runner).refuses = BackendError("no")
    with pytest.raises(BackendError):
        submitted(runner, monkeypatch, "webhook")
    assert os.listdir(folder) == []


@pytest.mark.parametrize("found", [None, "echo-1"], ids=["there is no job", "its handle was not known"])
def test_a_submitter_that_was_killed(runner, jobs, config, monkeypatch, found):
    """Once the outcome is known, a job that exists has its notices, and the plan of one that does not is removed."""
    from tests.runner.memory_backend import backend

    scheduler = backend(runner)
    if found:
        monkeypatch.setattr(scheduler, "expected_id", lambda info: "")
        monkeypatch.setattr(scheduler, "submission_token", lambda info: "token")
    scheduler.refuses = Killed()
    with pytest.raises(Killed):
        submitted(runner, monkeypatch, "webhook")
    folder = os.path.dirname(plans.plan_path("memory://test/echo-1"))
    monkeypatch.setattr("torchx.runs.submitter.may_be_alive", lambda submitter: False)
    monkeypatch.setattr(scheduler, "find_submission", lambda *_, **__: found or "")
    runner.runs()
    kept = [os.path.basename(plans.plan_path("memory://test/echo-1"))] if found else []
    assert (os.listdir(folder) if os.path.isdir(folder) else []) == kept


def test_a_submitter_that_was_killed_before_the_settings_changed(runner, jobs, config, monkeypatch, caplog):
    """The job is recorded; a warning reports that its notices cannot be sent."""
    from tests.runner.memory_backend import backend

    scheduler = backend(runner)
    monkeypatch.setattr(scheduler, "expected_id", lambda info: "")
    monkeypatch.setattr(scheduler, "submission_token", lambda info: "token")
    scheduler.refuses = Killed()
    with pytest.raises(Killed):
        submitted(runner, monkeypatch, "webhook")
    config.write_text("")
    monkeypatch.setattr("torchx.runs.submitter.may_be_alive", lambda submitter: False)
    monkeypatch.setattr(scheduler, "find_submission", lambda *_, **__: "echo-1")
    assert [run.handle for run in runner.runs(refresh=False)] == []
    runner.runs()
    assert "nobody will be notified of `memory://test/echo-1`: `[notify]` has no key `webhook`" in caplog.text


def test_the_sender_can_reach_the_servers(monkeypatch):
    """The process that sends, such as that of a supervisor, has the proxies and the trusted certificates of the user."""
    given = {"SSL_CERT_FILE": "/ca.pem", "https_proxy": "http://proxy:3128", "NO_PROXY": "example.org"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    env = plans.command("x://s/a")[1]
    assert {name: env.get(name) for name in given} == given


# -- what is wrong ---------------------------------------------------------------------------------


def test_a_broken_hook_is_said_once(runner, jobs, hooks, config, monkeypatch, tmp_path):
    """Other notices are sent; the status page reports the failure; there is no retry."""
    hook = tmp_path / "hook.sh"
    hook.write_text("#!/bin/sh\necho x >> runs\necho no such user >&2\nexit 4\n")
    hook.chmod(0o755)
    handle, registry = submitted(runner, monkeypatch, f"exec:{hook},webhook")
    jobs["echo-1"].state = AppState.SUCCEEDED
    registry.saw(handle, AppState.SUCCEEDED)
    sender.send(handle)
    sender.send(handle)
    assert len(hooks.got) == 1
    assert (tmp_path / "runs").read_text() == "x\n"
    assert plans.problems(handle) == ["exec was not sent: exit code 4: no such user"]
    started = []
    monkeypatch.setattr(plans, "start_sender", started.append)
    plans.send_due("memory", registry)
    assert started == []
    assert "http" not in Path(plans.plan_path(handle)).read_text()


def test_a_hook_has_the_python_path_of_its_user(monkeypatch, tmp_path):
    """A hook of another Python must not find the packages of torchx; the sender finds them without a variable."""
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert plans.command("x://s/a")[1]["PYTHONPATH"] == "/mine"
    monkeypatch.delenv("PYTHONPATH")
    argv, env = plans.command("x://s/a")
    assert "PYTHONPATH" not in env
    subprocess.run(argv, env=env, cwd=tmp_path, check=True)


@pytest.mark.parametrize(("code", "tries"), [(503, 3), (429, 3), (404, 1), (403, 1)])
def test_a_server_that_says_no(hooks, code, tries):
    """Transient failures are retried, permanent ones are not."""
    hooks.answers = [code] * 3
    url = {"url": f"http://127.0.0.1:{hooks.port}/secret"}
    said = deliver("webhook", url, NOTICE, pauses_s=(0, 0))
    assert f"the server answered {code}" in said
    assert "secret" not in said
    assert (len(hooks.answers), hooks.got) == (3 - tries, [])
    hooks.answers = [503]
    assert deliver("webhook", url, NOTICE, pauses_s=(0, 0)) == ""
    assert hooks.got == [{**NOTICE.__dict__, "title": NOTICE.title}]


@pytest.mark.parametrize(
    ("location", "to"),
    [
        ("http://me:hunter2@localhost:{port}/moved/hunter2?key=hunter2", ", to localhost"),
        ("/moved/hunter2", ", to 127.0.0.1"),
        ("http://[hunter2/", ", to another address"),
    ],
)
def test_a_server_that_sends_us_elsewhere(hooks, location, to):
    """It is not followed: the second request would have no body. Only the host is named, since a path may be a secret."""
    hooks.location = location.format(port=hooks.port)
    for code, channel in itertools.product((301, 302, 303, 307, 308), ("slack", "webhook")):
        hooks.answers = [code]
        said = deliver(channel, {"url": f"http://127.0.0.1:{hooks.port}/secret"}, NOTICE, pauses_s=(0, 0))
        assert said == f"the server answered {code}{to}: correct the address"
    assert hooks.got == []


def test_text_is_no_markup(hooks):
    """In Slack, the output of a job can notify nobody, link to nothing, and not end the block of code that it is in."""
    sly = Notice("end", "x://s/a", "t<!here>", "FAILED", "<!channel> <https://evil.example|log> R&D\n````\n*big*\n")
    assert deliver("slack", {"url": f"http://127.0.0.1:{hooks.port}/"}, sly) == ""
    (document,) = hooks.got
    title, _, text = document["text"].partition("\n")
    assert title == "FAILED: t&lt;!here&gt; (x://s/a)"
    assert text == "```\n&lt;!channel&gt; &lt;https://evil.example|log&gt; R&amp;D\n'''`\n*big*\n```"


@pytest.mark.parametrize(("codes", "sent"), [([451, 250], 1), ([451, 451, 451], 0), ([550, 250], 0)])
def test_mail_is_tried_again(mail, codes, sent):
    """A temporary failure of the server is retried, a permanent one is not."""
    mail.answers = list(codes)
    settings = {"to": "a@b.c", "from": "a@b.c", "server": f"127.0.0.1:{mail.port}", "user": "", "password": ""}
    said = deliver("mail", settings, NOTICE, pauses_s=(0, 0))
    assert (len(mail.got), said == "") == (sent, bool(sent))
    assert sent or "not now" in said


def test_a_login_goes_over_tls_to_whom_we_trust(mail, monkeypatch, tmp_path):
    """The password is not sent to a server with an untrusted certificate, or without TLS; there is no retry."""
    pair = [str(tmp_path / name) for name in ("key", "crt")]
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2", "-nodes")
    words = ("openssl", "req", "-x509", "-newkey", "rsa:2048", *subject, "-keyout", pair[0], "-out", pair[1])
    subprocess.run(words, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair[1], pair[0])
    with smtp_sink(tls=tls) as sink:
        settings = {"to": "a@b.c", "from": "a@b.c", "server": f"localhost:{sink.port}", "user": "me"}

        def said(password: str = "hunter2", **other: str) -> str:
            return deliver("mail", {**settings, "password": password, **other}, NOTICE, pauses_s=())

        assert said() == "the server's certificate is not trusted here: self-signed certificate"
        monkeypatch.setenv("SSL_CERT_FILE", pair[1])
        assert said("guess").startswith("the server answered 535")
        assert said(server=f"127.0.0.1:{sink.port}").startswith("the server's certificate is not trusted here: IP")
        assert said(server=f"127.0.0.1:{mail.port}").startswith("the server offers no login over TLS")
        assert sink.got == mail.got == []
        assert said() == ""
        assert NOTICE.title in sink.got[0]


def test_nobody_listens(hooks):
    """A server that is down is retried, and finally named."""
    settings = {"to": "a@b.c", "from": "a@b.c", "server": "127.0.0.1:1", "user": "", "password": ""}
    assert "cannot be reached" in deliver("mail", settings, NOTICE, pauses_s=(0,))
    assert "cannot be reached" in deliver("slack", {"url": "http://127.0.0.1:1/x"}, NOTICE, pauses_s=(0,))


def test_no_desktop(monkeypatch, tmp_path):
    """The failure is reported."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert deliver("desktop", {}, NOTICE) == "there is no `notify-send`"


def test_a_desktop(monkeypatch, tmp_path):
    """`notify-send` gets title and text, which desktops would read as markup; a failure is urgent."""
    program = tmp_path / "notify-send"
    program.write_text('#!/bin/sh\nfor word; do echo "$word"; done > words\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    text = f"{NOTICE.text}<img src='http://evil.example/'> & in <module>\n"
    assert deliver("desktop", {}, Notice("end", "x://s/a", "train", "FAILED", text)) == ""
    words = (tmp_path / "words").read_text()
    safe = f"{NOTICE.text}&lt;img src='http://evil.example/'&gt; &amp; in &lt;module&gt;\n"
    assert words == f"--app-name=torchx\n--urgency=critical\n--\n{NOTICE.title}\n{safe}\n"


# -- what is refused before the submission ---------------------------------------------------------


@pytest.mark.parametrize(
    ("via", "on", "error"),
    [
        ("pigeon", "end", SpecError),
        ("exec:", "end", SpecError),
        ("slack", "crash", SpecError),
        ("exec:./nothing.sh", "end", ConfigError),
        ("slack", "end", ConfigError),
        ("mail", "end", ConfigError),
    ],
)
def test_wrong_wishes(runner, tmp_path, monkeypatch, via, on, error):
    """There is no job and no plan."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        submitted(runner, monkeypatch, via, on)
    assert not runner.runs(refresh=False)


@pytest.mark.parametrize(
    "text", ["https://hooks.slack.com/services/hunter2", "HOOK", "k8s:a/b", "env:NOT_SET", "env:ODD"]
)
def test_addresses_are_references(tmp_path, monkeypatch, text):
    """A config file with a plain address is rejected, and the message does not contain the address."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ODD", "hunter2")
    (tmp_path / ".torchxconfig").write_text(f"[notify]\nslack = {text}\n")
    with pytest.raises(ConfigError) as caught:
        settings_of("slack")
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


def test_addresses_are_in_one_file(runner, jobs, config, monkeypatch, tmp_path):
    """Only its owner can read the plan, which exists until the last notice is sent; record and request have no addresses."""
    handle, registry = submitted(runner, monkeypatch, "slack")
    path = Path(plans.plan_path(handle))
    assert path.stat().st_mode & 0o777 == 0o600
    holds = [p for p in Path(os.environ["TORCHX_HOME"]).rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()]
    assert holds == [path]
    assert "hunter2" not in json.dumps(registry.get(handle).to_json(), default=str)


def test_a_job_without_wishes(runner):
    """No plan is written."""
    runner.run(AppDef("a", echo_app().roles), "memory")
    assert not os.path.exists(os.path.join(os.environ["TORCHX_HOME"], "notices"))


# -- jobs that send themselves ---------------------------------------------------------------------


class Sends(MemoryScheduler):
    """Its jobs send notices themselves, as configured here."""

    answers: ClassVar[list[dict[str, str] | None]] = []

    def take_notices(self, app_id):
        return self.answers.pop(0)


def test_what_a_job_has_sent_is_not_sent_again(jobs, hooks, mail, config, monkeypatch, tmp_path):
    """The sender waits for the job's own notices; those that failed, and the desktop's, are sent from here."""
    monkeypatch.setattr(sender, "_TAKE_S", 0.01)
    (tmp_path / "hook.sh").write_text(f"#!/bin/sh\ncat > {tmp_path}/hooked\n")
    (tmp_path / "hook.sh").chmod(0o755)
    with Runner("test", {"memory": lambda session_name, **params: Sends(session_name, jobs=jobs)}) as runner:
        monkeypatch.setattr("torchx.runner.notices.__main__.get_runner", lambda: _Borrowed(runner))
        given = []
        schedule = Sends.schedule
        monkeypatch.setattr(
            Sends, "schedule", lambda self, info: (given.append(info.submission.notices), schedule(self, info))[1]
        )
        app = echo_app()
        app.metadata.update({NOTIFY: f"slack,mail,exec:{tmp_path}/hook.sh", NOTIFY_ON: "end"})
        handle = runner.run(app, "memory")
        assert set(given[0]["channels"]) == {"slack", "mail", f"exec:{tmp_path}/hook.sh"}
        jobs["echo-1"].state = AppState.FAILED
        Sends.answers = [None, None, {"slack": "", "mail": "the server cannot be reached: x"}]
        sender.send(handle)
        sender.send(handle)
    assert Sends.answers == []
    assert (len(hooks.got), len(mail.got)) == (0, 1)
    assert "FAILED" in (tmp_path / "hooked").read_text()
    assert not os.path.exists(plans.plan_path(handle))


def test_what_was_not_sent_is_said(runner, jobs, mail, config, monkeypatch):
    """A mail server that is down is retried, then `status` reports it, as text and as JSON."""
    handle, _ = submitted(runner, monkeypatch, "mail")
    jobs["echo-1"].state = AppState.FAILED
    mail.answers = [421, 421]
    sender.send(handle, pauses_s=[0.01])
    assert mail.answers == []
    said = "mail was not sent: the server answered 421 not now"
    assert plans.problems(handle) == [said]
    from torchx.cli import cmd_status

    status = runner.status(handle)
    assert cmd_status.status_document(handle, status, None, None)["notices"] == [said]
    assert f"notices:  {said}" in cmd_status._page(runner, handle, status, None)[0]
