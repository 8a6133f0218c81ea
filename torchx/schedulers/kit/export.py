"""A job written down so that it can be run without torchx: what a backend says of it, see ``abilities.Exports``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchx.schedulers.kit.shell import quote
from torchx.specs.api import AppDryRunInfo
from torchx.util.records import dataclass, field

__all__ = [
    "CODE",
    "DOCKERFILE",
    "MACHINERY",
    "Export",
    "bases_of",
    "build_lines",
    "folder_of_a_run",
    "split_script",
]

CODE = "code"
"""Folder of the export with the code of the job."""
MACHINERY = "machinery.sh"
"""File with what is the same for each job."""
DOCKERFILE = "Dockerfile"
_DOCKERFILE_TEXT = f"ARG IMAGE\nFROM $IMAGE\nCOPY {CODE}/ .\n"
_SECTION = "\n# -- "  # by which the scripts of backends begin a section; the first ends what is about one job


@dataclass(kw_only=True)
class Export:
    """One job, written down.

    Attributes:
        files: path within the folder to content, the most important first.
        about: path to a line that says what the file is.
        run: lines of bash that start the job; ``$here`` is the folder.
        needs: programs and services that these lines need, in words.
        secrets: names of variables whose values are nowhere in the files; ``run`` finds them in its environment.
        logs: where the output goes, in words.
        notes: what is different from a job that torchx launches, a sentence each.
    """

    files: dict[str, str]
    about: dict[str, str]
    run: str
    needs: str
    logs: str
    secrets: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def split_script(script: str) -> tuple[str, str]:
    """What a script says of its job, and what is the same for each."""
    head, mark, rest = script.partition(_SECTION)
    return head + "\n", (mark + rest).lstrip("\n")


def folder_of_a_run(files: Iterable[str], *, secrets_file: str, secrets: Iterable[str]) -> list[str]:
    """Lines of bash that make ``$job``, a folder of its own for one run of an exported job, with copies of these files.

    Args:
        secrets_file: file in it that the job reads its secrets from, in the language of ``sh``.
        secrets: variables to put there.
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
    """Image of a role to that below its code, for roles whose code is built into an image."""
    roles = info._app.roles if info._app is not None else []
    found = {role.image: info._tags.get(f"image.{role.name}", "") for role in roles}
    return {image: base for image, base in found.items() if base and base != image}


def build_lines(images: Mapping[str, str], *, push: bool) -> tuple[list[str], dict[str, str]]:
    """Lines of bash that build images with the code, and the files that these need.

    Args:
        images: name of the image to that of the image below the code.
        push: to a registry, too.
    """
    if not images:
        return [], {}

    lines = [
        "build() {  # image, image below the code",
        f"  local file=$here/{DOCKERFILE} context=$here",
        f"  local own=$here/{CODE}/Dockerfile.torchx",
        f"  if [[ -e $own ]]; then file=$own context=$here/{CODE}; fi",
        '  docker build --build-arg IMAGE="$2" --build-arg WORKSPACE=. --tag "$1" --file "$file" "$context" >&2',
        *(['  docker push "$1" >&2'] if push else []),
        "}",
        *(f"build {quote(name)} {quote(base)}" for name, base in images.items()),
    ]
    return lines, {DOCKERFILE: _DOCKERFILE_TEXT, ".dockerignore": "runs\nlogs\n"}
