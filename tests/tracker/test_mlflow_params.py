"""Parameters of MLflow, which cannot change: the first value stays, and the other parameters are written."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from torchx.tracker.mlflow_runs import Runs


class MlflowError(Exception):
    """MLflow's exception, as far as it is used."""

    def __init__(self, error_code: str) -> None:
        super().__init__(error_code)
        self.error_code = error_code


class Store:
    """MLflow's client, with the parameters of one run."""

    def __init__(self, params: dict[str, str], *, wraps: bool) -> None:
        self.params = params
        self.wraps = wraps

    def log_batch(self, run: str, params: list[Any]) -> None:
        try:
            for param in params:
                if self.params.setdefault(param.key, param.value) != param.value:
                    raise MlflowError("INVALID_PARAMETER_VALUE")
        except MlflowError as e:
            if self.wraps:
                raise MlflowError("INTERNAL_ERROR")  # noqa: B904  # as MLflow's file store does it
            raise e


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow itself is not installed where these tests run."""
    entities, exceptions = ModuleType("mlflow.entities"), ModuleType("mlflow.exceptions")
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)  # type: ignore[attr-defined]  # a stand-in
    exceptions.MlflowException = MlflowError  # type: ignore[attr-defined]  # a stand-in
    for module in (ModuleType("mlflow"), entities, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def runs_in(store: Store) -> Runs:
    runs = Runs.__new__(Runs)
    runs.client, runs._params = store, set()
    return runs


@pytest.mark.usefixtures("mlflow")
@pytest.mark.parametrize("wraps", [False, True], ids=["server", "file store"])
def test_a_parameter_with_another_value_does_not_stop_the_others(wraps: bool) -> None:
    """The first value stays, and the parameters after it are written, on a server and in MLflow's files."""
    store = Store({"lr": "0.1"}, wraps=wraps)
    runs_in(store).log_new_params("run", {"lr": "0.2", "epochs": "3", "seed": "7"})
    assert store.params == {"lr": "0.1", "epochs": "3", "seed": "7"}


@pytest.mark.usefixtures("mlflow")
def test_any_other_error_is_raised() -> None:
    """An error that is not about a changed parameter is not taken for one."""
    store = Store({}, wraps=False)
    store.log_batch = lambda run, params: (_ for _ in ()).throw(MlflowError("INTERNAL_ERROR"))  # type: ignore[method-assign]  # a stand-in
    with pytest.raises(MlflowError, match="INTERNAL_ERROR"):
        runs_in(store).log_new_params("run", {"lr": "0.2"})


@pytest.mark.usefixtures("mlflow")
def test_an_error_on_a_new_run_is_not_taken_for_that_on_the_deleted_one() -> None:
    """The run was deleted, and the parameters of its replacement cannot be written: they must not be lost silently."""

    class Denies(Store):
        def log_batch(self, run: str, params: list[Any]) -> None:
            raise MlflowError("PERMISSION_DENIED")

    runs, ids = runs_in(Denies({}, wraps=False)), iter(["deleted", "new"])
    runs._reach = lambda: None  # type: ignore[method-assign]  # there is no server
    runs._is_writable = lambda run: False  # type: ignore[method-assign]
    runs._ids = {}
    runs.made = lambda name: runs._ids.setdefault(name, next(ids))  # type: ignore[method-assign]

    def write(run: str) -> None:
        if run == "deleted":
            raise MlflowError("INVALID_PARAMETER_VALUE")
        runs.log_new_params(run, {"lr": "0.2"})

    with pytest.raises(MlflowError, match="PERMISSION_DENIED"):
        runs.write("job", write)
