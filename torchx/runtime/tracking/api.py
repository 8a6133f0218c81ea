"""Stores the results of a trial under a key."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

from torchx.errors import MissingDependencyError, ParseError
from torchx.util.foreign import loads

KeyType = int | str
"""Number or name of a trial."""

ResultType = int | float | str
"""One result."""


class ResultTracker(ABC):
    """A store where a job puts results, and the program that started it gets them."""

    @abstractmethod
    def put(self, key: KeyType, **results: ResultType) -> None:
        """Store the results of a trial; replaces earlier ones."""

    @abstractmethod
    def get(self, key: KeyType) -> dict[str, ResultType]:
        """Return the results of a trial; empty if there are none."""

    def __getitem__(self, key: KeyType) -> dict[str, ResultType]:
        return self.get(key)

    def __setitem__(self, key: KeyType, results: dict[str, ResultType]) -> None:
        self.put(key, **results)


class FsspecResultTracker(ResultTracker):
    """Stores one JSON file per trial below a directory of any file system that fsspec supports.

    Args:
        tracker_base: the directory: a path, ``s3://...``, ``gs://...``, ...
    """

    def __init__(self, tracker_base: str) -> None:
        self._base = tracker_base.rstrip("/") or "/"

    def put(self, key: KeyType, **results: ResultType) -> None:
        """Store the results; create missing directories.

        Raises:
            ValueError: the key is not a valid relative path.
            OSError: the file cannot be written.
        """
        import json

        fs, path = self._file(key)
        text = json.dumps(results, sort_keys=True)
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        if "file" not in fs.protocol:
            fs.pipe_file(path, text.encode())
            return
        # Under another name first, so that readers never see an incomplete file.
        unfinished = f"{path}.{os.getpid()}"
        fs.pipe_file(unfinished, text.encode())
        os.replace(unfinished, path)

    def get(self, key: KeyType) -> dict[str, ResultType]:
        """Return the results; empty if there are none.

        Raises:
            ParseError: the file was not written by :meth:`put`.
        """
        fs, path = self._file(key)
        try:
            text = fs.cat_file(path).decode()
        except FileNotFoundError:
            return {}
        try:
            found = loads(text)
        except ValueError as e:
            raise ParseError(f"results of `{key}` in `{path}` cannot be read: {e}", text=text) from e
        if not isinstance(found, dict):
            raise ParseError(f"results of `{key}` in `{path}` are not a JSON object", text=text)
        return found

    def _file(self, key: KeyType) -> tuple[Any, str]:
        name = str(key)
        if not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise ValueError(f"`{key}` is not a key: it must be a number or a name, such as `a` or `a/b`")
        try:
            from fsspec.core import url_to_fs
        except ImportError as e:
            raise MissingDependencyError("tracking needs the package `fsspec`", hint="pip install fsspec") from e
        fs, base = url_to_fs(self._base)
        return fs, f"{str(base).rstrip('/')}/{name}"
