"""For tests of components: is the function one, and does the job that it describes run?"""

from __future__ import annotations

import os
import shutil
import tempfile
import unittest
from typing import TYPE_CHECKING, Any

from torchx.util.reexports import reexports

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from torchx.specs import AppDef, AppStatus

reexports(__name__)


class ComponentTestCase(unittest.TestCase):
    """Base class of tests of components.

    ::

        from torchx.components.component_test_base import ComponentTestCase
        import my_components

        class MyComponentTest(ComponentTestCase):
            def test_valid(self) -> None:
                self.validate(my_components, "trainer")

            def test_runs(self) -> None:
                status = self.run_component(my_components.trainer, {"script": "train.py"}, timeout=60)
                self.assertEqual(status.state, AppState.SUCCEEDED)

    Each test has a directory of its own, ``self.test_dir``, which is removed at its end.
    """

    def setUp(self) -> None:
        """Makes ``self.test_dir``."""
        self.test_dir = tempfile.mkdtemp("torchx_component_test")
        self.addCleanup(shutil.rmtree, self.test_dir, ignore_errors=True)

    def tearDown(self) -> None:
        """Removes ``self.test_dir``."""
        shutil.rmtree(self.test_dir, ignore_errors=True)

    def validate(self, module: ModuleType, function_name: str) -> None:
        """Fails the test unless the function of the module is a component that a command line can call."""
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
        """Runs the job that the component describes, and waits for its end.

        Args:
            args: of the component.
            scheduler_params: of the scheduler's factory.
            scheduler: where to run it.
            interval: seconds between two looks at it.
            timeout: seconds after which it is cancelled.

        Returns:
            its last status.

        Raises:
            TimeoutError: it did not end in time.
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
