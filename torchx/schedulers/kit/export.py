"""The files of a job exported to run without torchx, see :class:`torchx.schedulers.kit.abilities.Exports`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchx.errors import NotSupportedError
from torchx.schedulers.kit.shell import quote
from torchx.specs.api import AppDryRunInfo
from torchx.util.records import dataclass, field

CODE = "code"
"""Folder of the export that contains the job's code."""
MACHINERY = "machinery.sh"
"""File with the part of the script that is the same for every job."""
_DOCKERFILE = f"ARG IMAGE\nFROM $IMAGE\nCOPY {CODE}/ .\n"
_SECTION = "\n# -- "  # starts a section in the scripts of backends; all before the first one is about this job


@dataclass(kw_only=True)
class Export:
    """One exported job.

    Attributes:
        files: path relative to the export folder -> content, the most important file first.
        about: path -> one line that describes the file.
        run: lines of bash that start the job; ``$here`` is the export folder.
        needs: programs and services that these lines need, in words.
        secrets: names of variables whose values are not in the files; ``run`` reads them from its environment.
        logs: where the output goes, in words.
        where: a command or path for the output, as text in double quotes of bash; empty if ``run`` prints it.
        notes: differences from a job that torchx launches, one sentence each.
    """

    files: dict[str, str]
    about: dict[str, str]
    run: str
    needs: str
    logs: str
    secrets: list[str] = field(default_factory=list)
    where: str = ""
    notes: list[str] = field(default_factory=list)


def refuse_order(order: object, what: str) -> None:
    """Raise NotSupportedError if roles wait for others, which needs a process of torchx: ``what`` has none."""
    if order:
        raise NotSupportedError(
            f"roles of the job wait for each other, and {what} starts all at once", hint="launch it with torchx"
        )


def split_script(script: str) -> tuple[str, str]:
    """Split a script into the part about its job and the part that is the same for every job."""
    head, mark, rest = script.partition(_SECTION)
    return head + "\n", (mark + rest).lstrip("\n")


def folder_of_a_run(files: Iterable[str], *, secrets_file: str, secrets: Iterable[str]) -> list[str]:
    """Lines of bash that create ``$job``, a folder for one run of an exported job, with copies of these files.

    They write the variables ``secrets`` to ``secrets_file`` in that folder, from which the job reads them.
    """
    names = " ".join(secrets)
    lines = [
        "job=$here/runs/$(date +%Y%m%d-%H%M%S)-$$",
        'mkdir -p -- "$job"',
        *(f'cp -- "$here/{name}" "$job/{name}"' for name in files),
        f'ln -s -- "$here/{CODE}" "$job/{CODE}"',
    ]
    if names:
        lines += [
            f'(umask 077 && : >"$job/{secrets_file}")',
            """q="'" r="'\\\\''\"""",
            f"for name in {names}; do",
            "  value=${!name}",
            f"""  printf "export %s='%s'\\n" "$name" "${{value//$q/"$r"}}" >>"$job/{secrets_file}\"""",
            "done",
        ]
    return lines


def bases_of(info: AppDryRunInfo[Any]) -> dict[str, str]:
    """Map each image that contains the code of a role to its base image."""
    roles = info._app.roles if info._app is not None else []
    found = {role.image: info.submission.tags.get(f"image.{role.name}", "") for role in roles}
    return {image: base for image, base in found.items() if base and base != image}


def build_lines(images: Mapping[str, str], *, push: bool) -> tuple[list[str], dict[str, str]]:
    """Lines of bash that build images (name -> base image) with the code, and the files that these lines need."""
    if not images:
        return [], {}

    lines = [
        "build() {  # image, image below the code",
        "  local file=$here/Dockerfile context=$here",
        f"  local own=$here/{CODE}/Dockerfile.torchx",
        f"  if [[ -e $own ]]; then file=$own context=$here/{CODE}; fi",
        '  docker build --build-arg IMAGE="$2" --build-arg WORKSPACE=. --tag "$1" --file "$file" "$context" >&2',
        *(['  docker push "$1" >&2'] if push else []),
        "}",
        *(f"build {quote(name)} {quote(base)}" for name, base in images.items()),
    ]
    return lines, {"Dockerfile": _DOCKERFILE, ".dockerignore": "runs\nlogs\n"}
