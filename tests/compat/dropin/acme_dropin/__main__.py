"""``python -m acme_dropin PART [IMAGE]``: runs the checks of a part, and prints a JSON object of name to `ok` or what happened."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable


def outcome(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception:
        return traceback.format_exc()
    return "ok"


def main(part: str, *args: str) -> None:
    module = importlib.import_module(f"acme_dropin.{part}")
    checks = {name: check for name, check in vars(module).items() if name.startswith("check_")}
    if args:
        checks = {"run_a_job": lambda: module.run_a_job(*(a for a in args if a != "run"))}
    print(json.dumps({name: outcome(check) for name, check in checks.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
