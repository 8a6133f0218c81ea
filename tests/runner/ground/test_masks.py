"""Values that are masked on record: where those of a rerun come from, and what is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchx.config.files import load_files
from torchx.errors import ConfigError
from torchx.runner.ground.masks import fill, fill_options, without_values
from torchx.specs import AppDef, Role, Secret
from torchx.util.redaction import MASK


def app(*args: str, env: dict[str, str] | None = None, metadata: dict[str, str] | None = None) -> AppDef:
    """A recorded job of one role."""
    return AppDef("a", [Role("r", "", entrypoint="sh", args=[*args], env=env or {}, metadata=metadata or {})])


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The config file, which is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path / ".torchxconfig"


@pytest.mark.parametrize(
    ("args", "asked", "filled"),
    [
        (("--token", MASK), "`--token`", ("--token", "v")),
        ((MASK,), "`argument 0`", ("v",)),
        (("x", f"--token={MASK}"), "`--token`", ("x", "--token=v")),
        ((f"--url=https://me:{MASK}@hub",), "`--url`", ("--url=https://me:v@hub",)),
        (("-c", f"train --hf-token {MASK} x"), "`train --hf-token`", ("-c", "train --hf-token v x")),
        (("-c", f"cd /a/long/folder && python train.py --hf-token {MASK}"), "`train.py --hf-token`", None),
        (("n" * 40 + f"={MASK}",), f"`{'n' * 40}`", None),
        (("n" * 41 + f"={MASK}",), f"`{'n' * 41}=`", None),
    ],
)
def test_what_is_asked_for(files: Path, args: tuple[str, ...], asked: str, filled: tuple[str, ...] | None) -> None:
    """A masked argument is named by its option, or by the last words before it in a shell command."""
    questions: list[str] = []

    def ask(what: str) -> str:
        questions.append(what)
        return "v"

    job = app(*args)
    assert fill(job, load_files(), ask) == []
    assert questions == [asked]
    assert tuple(job.roles[0].args) == (filled or tuple(arg.replace(MASK, "v") for arg in args))
    with pytest.raises(ConfigError, match="is masked there") as e:
        fill(app(*args), load_files(), None)
    assert f"roles.r.args.{len(args) - 1}=VALUE" in e.value.hint


def test_one_answer_for_all_roles(files: Path) -> None:
    """The same variable is asked for once; values that are not masked stay as they are."""
    roles = [Role(name, "", entrypoint="sh", env={"HF_TOKEN": MASK, "LR": "1"}) for name in "ab"]
    job, questions = AppDef("a", roles), iter(["v"])
    assert fill(job, load_files(), lambda _: next(questions)) == []
    assert [role.env for role in job.roles] == [{"HF_TOKEN": "v", "LR": "1"}] * 2


@pytest.mark.parametrize(
    ("name", "recorded", "here", "found"),
    [
        ("HF_TOKEN", MASK, "t0p-s3cret", "t0p-s3cret"),
        ("HUB", f"https://me:{MASK}@hub", "https://me:hunter2@hub", "https://me:hunter2@hub"),
        ("HUB", f"https://me:{MASK}@hub", "https://you:hunter2@hub", "https://me:asked@hub"),
        ("HF_TOKEN", MASK, "", "asked"),
    ],
)
def test_a_variable_of_this_environment(
    files: Path, monkeypatch: pytest.MonkeyPatch, name: str, recorded: str, here: str, found: str
) -> None:
    """It is taken if it may be the one of the run, apart from what is masked; and the user is told."""
    monkeypatch.setenv(name, here)
    job = app(env={name: recorded})
    notes = fill(job, load_files(), lambda _: "asked")
    assert job.roles[0].env[name] == found
    assert notes == ([f"`{name}` from this environment"] if found == here else [])


def test_a_reference_of_the_config_goes_first(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`[secrets]` says where the value is, whatever the environment has."""
    monkeypatch.setenv("HF_TOKEN", "other")
    files.write_text("[secrets]\nHF_TOKEN = cmd:pass show hf\n")
    job = app(env={"HF_TOKEN": MASK})
    assert fill(job, load_files(), None) == ["`HF_TOKEN` by `cmd:pass show hf`, as [secrets] says"]
    assert job.roles[0].env["HF_TOKEN"] == Secret("cmd:pass show hf")


@pytest.mark.parametrize("of_role", [True, False])
def test_metadata_cannot_be_restored(files: Path, of_role: bool) -> None:
    """The error says whose they are: nothing names a value in them that the user could give."""
    metadata = {"team": f"a {MASK}"}
    job = app(metadata=metadata) if of_role else AppDef("a", [Role("r", "")], metadata=metadata)
    with pytest.raises(ConfigError, match="the metadata of role `r` hold" if of_role else "the metadata of the app"):
        fill(job, load_files(), lambda _: "v")


def test_an_export_has_references() -> None:
    """Masked variables become references, so that whoever runs the export has to provide them; others stay."""
    job = app(env={"HF_TOKEN": MASK, "URL": f"https://me:{MASK}@hub", "LR": "1"})
    without_values(job)
    assert job.roles[0].env == {"HF_TOKEN": "env:HF_TOKEN", "URL": "env:URL", "LR": "1"}
    assert [type(value) for value in job.roles[0].env.values()] == [Secret, Secret, str]


def test_run_options(files: Path) -> None:
    """One that is masked must be given again; the hint says how."""
    fill_options({"queue": "q", "api_key": MASK}, {"api_key"})
    with pytest.raises(ConfigError, match="the option `api_key` is not on record") as e:
        fill_options({"queue": "q", "api_key": MASK}, set())
    assert e.value.hint == "add `-cfg api_key=VALUE`"
