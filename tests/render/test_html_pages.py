"""HTML of a definition, a status and a list in a notebook, without an extension."""

from __future__ import annotations

from html.parser import HTMLParser

from torchx.runner import Runner
from torchx.specs import AppDef, AppState, AppStatus, Resource, Role
from torchx.specs.failures import Failure
from torchx.util.redaction import forget, learn

EVIL = "<img src=x onerror=alert(1)>"


class Texts(HTMLParser):
    """Collects the tags and the text of each cell."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_definition() -> None:
    """The table has a row for each role, escapes all values and masks secrets."""
    trainer = Role("trainer", EVIL, entrypoint="python", args=["--api-key=hunter2hunter2"], num_replicas=2)
    reader = Role("reader", "img", entrypoint="read", resource=Resource(cpu=2, gpu=1, memMB=512))
    page = Texts(AppDef("a", [trainer, reader])._repr_html_())
    assert page.tags.count("tr") == 3
    assert "img" not in page.tags
    assert EVIL in page.texts
    assert "2 cpu, 1 gpu, 512 MiB" in page.texts
    assert "hunter2" not in "".join(page.texts)


def test_a_status() -> None:
    """The status is a card with the state."""
    page = Texts(AppStatus(AppState.FAILED, msg=EVIL)._repr_html_())
    assert page.texts[:2] == ["FAILED", EVIL]
    assert "img" not in page.tags


def test_lists() -> None:
    """Recorded runs and jobs of a scheduler are lists, and tables in a notebook."""
    with Runner("html") as runner:
        handle = runner.run(AppDef("hello", [Role("echo", "", entrypoint="echo")]), "local_cwd")
        runner.wait(handle, wait_interval=0.1)
        for jobs in (runner.runs(), runner.runs(refresh=False), runner.list("local_cwd")):
            assert isinstance(jobs, list)
            page = Texts(jobs._repr_html_())  # type: ignore[union-attr]  # the annotation is that of a list
            assert {handle, "hello", "SUCCEEDED"} <= {*page.texts}


def test_known_secrets_are_masked() -> None:
    """A secret value that this process has looked up is masked, as in the text of a status."""
    learn("sesame-open-7")
    try:
        failure = Failure("ValueError: bad token sesame-open-7", traceback="login('sesame-open-7')")
        status = AppStatus(AppState.FAILED, structured_error_msg=failure.to_structured_msg())
        page = "".join(Texts(status._repr_html_()).texts)
    finally:
        forget()
    assert "bad token ********" in page
    assert "sesame" not in page
