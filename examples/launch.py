"""Launch a job from Python, follow its log, and see how it ended: ``python examples/launch.py``."""

from __future__ import annotations

from torchx.runner import get_runner


def main() -> None:
    with get_runner() as runner:
        handle = runner.run_component(
            "examples/components/pipeline.py:pipeline",
            {"clients": 2, "greeting": "good morning"},
            scheduler="local_cwd",
        )
        print("launched", handle)
        for k in range(2):
            for line in runner.log_lines(handle, "client", k, should_tail=True):
                print(line, end="")
        status = runner.wait(handle, wait_interval=0.1)
        assert status is not None
        status.raise_for_status()
        print("ended as", status.state.name)


if __name__ == "__main__":
    main()
