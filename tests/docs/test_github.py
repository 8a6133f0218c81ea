"""What GitHub reads of this repository: the workflow, the forms for issues, Dependabot, and pre-commit's hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backends import parts
from torchx.schedulers import get_scheduler_factories

ROOT = Path(__file__).resolve().parents[2]
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_each_folder_of_real_parts_is_a_job() -> None:
    """The matrix has each folder of tests/backends that `make check-real` knows, in its order."""
    jobs = read(ROOT / ".github/workflows/ci.yml")["jobs"]
    assert jobs["real"]["strategy"]["matrix"]["part"] == list(parts.FOLDERS)
    assert "bash .ci/run < /dev/null" in [step.get("run") for step in jobs["gate"]["steps"]]


def test_each_python_that_is_promised_is_tried() -> None:
    """Those of the classifiers, and the newest."""
    pythons = read(ROOT / ".github/workflows/ci.yml")["jobs"]["unit"]["strategy"]["matrix"]["python"]
    declared = [
        line.rpartition(":: ")[2][:-2] for line in (ROOT / "pyproject.toml").read_text().splitlines() if ":: 3." in line
    ]
    assert declared
    assert set(declared) <= set(pythons)


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_forms_are_forms(form: Path) -> None:
    """Each has what GitHub demands: a name, a description, and fields with a label and an id of their own."""
    content = read(form)
    assert content["name"]
    assert content["description"]
    fields = content["body"]
    assert all(field["type"] in ("textarea", "input", "dropdown") and field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)


def test_each_scheduler_can_be_chosen() -> None:
    """Who reports a bug finds the scheduler in the list."""
    fields = {field["id"]: field for field in read(ROOT / ".github/ISSUE_TEMPLATE/bug.yml")["body"]}
    assert set(get_scheduler_factories()) <= set(fields["scheduler"]["attributes"]["options"])


def test_hooks_use_the_tools_of_the_checkout() -> None:
    """pre-commit and `make lint` cannot disagree."""
    hooks = [hook for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert all(hook["entry"].startswith(".venv/bin/") for hook in hooks)
    assert {package["package-ecosystem"] for package in read(ROOT / ".github/dependabot.yml")["updates"]} == {
        "pip",
        "github-actions",
    }
