"""Base class for tests of components."""

from __future__ import annotations

import os
import shutil
import tempfile
import unittest
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchx.specs import AppDef, AppStatus
from torchx.util.reexports import reexports

reexports(__name__)


class ComponentTestCase(unittest.TestCase):
    """Validates and runs components in tests.

    ::

        from torchx.components.component_test_base import ComponentTestCase
        import my_components

        class MyComponentTest(ComponentTestCase):
            def test_valid(self) -> None:
                self.validate(my_components, "trainer")

            def test_runs(self) -> None:
                status = self.run_component(my_components.trainer, {"script": "train.py"}, timeout=60)
                self.assertEqual(status.state, AppState.SUCCEEDED)

    Each test has its own directory, ``self.test_dir``, which is removed afterwards.
    """

    def setUp(self) -> None:
        """Create ``self.test_dir``."""
        self.test_dir = tempfile.mkdtemp("torchx_component_test")
        self.addCleanup(shutil.rmtree, self.test_dir, ignore_errors=True)

    def validate(self, module: ModuleType, function_name: str) -> None:
        """Fail the test unless the function is a component that can be called from a command line."""
        from torchx.component_reader.linter import validate

        path = os.path.abspath(str(module.__file__))
        errors = [e.description for e in validate(path, function_name)]
        self.assertEqual([], errors, f"`{function_name}` is not a component:\n" + "\n".join(errors))

    def run_component(  # noqa: PLR0917  # the public signature
        self,
        component: Callable[..., AppDef],
        args: dict[str, Any] | None = None,
        scheduler_params: dict[str, Any] | None = None,
        scheduler: str = "local_cwd",
        interval: float = 0.1,
        timeout: float = 1,
    ) -> AppStatus | None:
        """Run the job of a component and wait for its end.

        Args:
            args: arguments of the component.
            scheduler_params: parameters of the scheduler factory.
            scheduler: name of the scheduler.
            interval: poll interval in seconds.
            timeout: seconds after which the job is cancelled.

        Returns:
            The final status.

        Raises:
            TimeoutError: the job did not end in time.
        """
        from torchx.runner import get_runner

        app = component(**(args or {}))
        with get_runner("component-test", **(scheduler_params or {})) as runner:
            handle = runner.run(app, scheduler)
            try:
                status: AppStatus | None = runner.wait(handle, wait_interval=interval, timeout=timeout)
                return status
            except BaseException:
                runner.cancel(handle)
                raise
