"""App handles: `{scheduler}://{session}/{app_id}`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.errors import HandleError
from torchx.specs import MalformedAppHandleException, ParsedAppHandle, make_app_handle, parse_app_handle

_printable = st.characters(blacklist_categories=("C", "Z"))
_word = st.text(_printable, min_size=1).filter(lambda s: "/" not in s and ":" not in s and s.isprintable())
_rest = st.text(_printable, min_size=1).filter(str.isprintable)


@given(_word, st.one_of(st.just(""), _word), _rest)
def test_parse_is_the_inverse_of_make(scheduler: str, session: str, app_id: str) -> None:
    """Any scheduler, session (also empty) and app id (also with slashes and colons) survive the round trip."""
    handle = make_app_handle(scheduler, session, app_id)
    parsed = parse_app_handle(handle)
    assert parsed == (scheduler, session, app_id)
    assert str(parsed) == handle


@given(st.text())
def test_any_text_is_a_handle_or_a_handle_error(text: str) -> None:
    """Garbage raises HandleError with a hint, never another exception."""
    try:
        assert str(parse_app_handle(text)) == text
    except MalformedAppHandleException as e:
        assert e.hint
        assert e.app_handle == text


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "abc",
        "abc/def",
        "k8s:/s/a",
        "://s/a",
        "k8s://",
        "k8s://s",
        "k8s://s/",
        "k8s:///",
        "a/b://s/x",
        "k8s://s/a b",
        "k8s://s/a\n",
    ],
)
def test_malformed(handle: str) -> None:
    """Each raises an error with the handle in backticks, a reason and a hint."""
    with pytest.raises(MalformedAppHandleException) as e:
        parse_app_handle(handle)
    assert isinstance(e.value, HandleError)
    assert f"`{handle}`" in str(e.value)
    assert "://" in e.value.hint


def test_a_job_as_its_own_system_calls_it() -> None:
    """`slurm://4711` is not a handle; the hint has the handle that all commands accept."""
    with pytest.raises(MalformedAppHandleException) as e:
        parse_app_handle("slurm://4711")
    assert "`slurm://foreign/4711`" in e.value.hint


def test_the_parts_have_names() -> None:
    """The parsed handle unpacks, and has attributes."""
    parsed = parse_app_handle("kubernetes://torchx/ns:my_job")
    assert parsed == ParsedAppHandle(scheduler_backend="kubernetes", session_name="torchx", app_id="ns:my_job")
    assert (parsed.scheduler_backend, parsed.session_name, parsed.app_id) == tuple(parsed)
