"""HTTP routes of the page: its files, the runs, a run, metrics, logs, and actions."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from torchx.cli.log_targets import parse_target
from torchx.cli.render import strict_json
from torchx.errors import NotFoundError, NotSupportedError, TorchXError
from torchx.render.status_page import total_used
from torchx.runner import Runner
from torchx.runner.ground.masks import for_display
from torchx.runner.ground.trackers import choose_tracker, get_configured_trackers
from torchx.runner.show.json_output import (
    failures_fields,
    handle_fields,
    metrics_fields,
    results_fields,
    run_fields,
    status_fields,
)
from torchx.runner.show.tables import run_row, timeline
from torchx.runner.show.usage import bill, usage_fields
from torchx.runner.sweeps.sweeps import read_results
from torchx.runs.usage import GROUPS
from torchx.specs.tasks import TaskTable
from torchx.ui.follow import log_lines
from torchx.ui.guard import API, Guard
from torchx.ui.live import Live
from torchx.util.redaction import redact
from torchx.util.term import iso
from torchx.version import __version__

_STATIC = os.path.join(os.path.dirname(__file__), "static")
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FIRST_LINES = 20_000
_ALIVE_S = 15.0  # interval of empty lines, by which a closed connection is noticed


def application(runner: Runner, token: str, code: str, allowed: tuple[str, ...] = ()) -> Guard:
    """Return the ASGI application of a :class:`Guard`; ``allowed`` are some of :data:`torchx.ui.ACTIONS`."""
    live = Live(lambda: [run_row(run) for run in runner.runs(refresh=False)], runner.watch)

    async def events(_: Request) -> Response:
        return _stream(live.news())

    async def one_run(request: Request) -> Response:
        return _json(await asyncio.to_thread(_run_document, runner, request.query_params["handle"]))

    async def metrics(request: Request) -> Response:
        handle = runner.resolve(request.query_params["handle"])
        try:
            found = await asyncio.to_thread(runner.metrics, handle)
        except NotSupportedError:  # for example, of a sweep
            found = []
        return _json({**handle_fields(handle), "replicas": metrics_fields(found)})

    async def usage(request: Request) -> Response:
        by, days = request.query_params["by"], request.query_params["days"]
        return _json(await asyncio.to_thread(_usage, runner, by, days))

    async def results(request: Request) -> Response:
        handle = runner.resolve(request.query_params["handle"])
        return _json({**handle_fields(handle), **await asyncio.to_thread(_results, handle)})

    async def log(request: Request) -> Response:
        asked = request.query_params
        target = asked["handle"] + (f"/{asked['part']}" if asked.get("part") else "")
        parse_target(target)
        lines = log_lines(target, last=_FIRST_LINES, stream=asked.get("stream") or None)
        return _stream({"lines": batch} async for batch in lines)

    async def settings(_: Request) -> Response:
        return _json({"allowed": list(allowed), "version": __version__})

    async def act(request: Request) -> Response:
        action = request.path_params["action"]
        if action not in allowed:
            raise HTTPException(403, f"this page may not {action}: `torchx ui --allow {action}` permits it")
        do: dict[str, Callable[[str], Any]] = {"cancel": runner.cancel, "rerun": runner.rerun}
        return _json({"handle": await asyncio.to_thread(do[action], request.query_params["handle"])})

    routes = [
        Route("/", _file("index.html")),
        *(Route(path, _file("index.html")) for path in ("/run", "/usage")),
        *(Route(f"/{name}", _file(name)) for name in sorted(os.listdir(_STATIC)) if name != "index.html"),
        Route(f"{API}settings", settings),
        Route(f"{API}events", events),
        Route(f"{API}run", one_run),
        Route(f"{API}metrics", metrics),
        Route(f"{API}results", results),
        Route(f"{API}usage", usage),
        Route(f"{API}log", log),
        Route(f"{API}do/{{action}}", act, methods=["POST"]),
    ]
    errors: dict[Any, Any] = {TorchXError: _failed, KeyError: _incomplete, HTTPException: _refused}
    return Guard(Starlette(routes=routes, exception_handlers=errors), token, code)


def _run_document(runner: Runner, handle: str) -> dict[str, Any]:
    """Return status and definition of a run, as ``torchx status --json`` and ``torchx describe --json`` do."""
    handle = runner.resolve(handle)
    run = runner.recorded(handle)
    run = for_display(run) if run is not None else None
    error = None
    try:
        status = runner.status(handle)
        if status is not None:
            runner.fill_pace(handle, status)
    except TorchXError as e:
        status, error = None, str(e)
    if run is None and status is None:
        raise NotFoundError(f"`{handle}` is not known: {error or 'its scheduler has no such job'}")
    return {
        **handle_fields(handle),
        "error": error,
        "run": run_fields(run) if run else None,
        "status": status_fields(status) if status else None,
        "timeline": timeline(status, run.created_at if run else None) if status else None,
        "total": total_used(status) if status else "",
        "pace": status.pace.lines() if status and status.pace else [],
        "as_of": iso(status.as_of) if status else None,
        "tasks": _tasks(runner, handle, status.tasks) if status and status.tasks is not None else None,
        "app": (run.app or None) if run else None,
        "cfg": run.cfg if run else {},
        "argv": run.argv if run else [],
        "image_digests": run.image_digests if run else {},
        "workspace_hashes": run.workspace_hashes if run else {},
    }


def _usage(runner: Runner, by: str, days: str) -> dict[str, Any]:
    if by not in GROUPS or not (days.isascii() and days.isdecimal() and len(days) < 6):
        raise HTTPException(400, f"`by` is one of {', '.join(GROUPS)}, and `days` a number")
    since = time.time() - int(days) * 86400
    return usage_fields(bill(runner.usage(by, since, refresh=False), by), by, since)


def _tasks(runner: Runner, handle: str, table: TaskTable) -> dict[str, Any]:
    """Return the tasks of a sweep: the first letters of their states, and the causes of failures."""
    failures = failures_fields(runner.sweep_failures(handle, table))
    return {"states": "".join(state.name[0] for state in table.states), "failures": failures}


def _results(handle: str) -> dict[str, Any]:
    """Return the ``tasks`` of a sweep (no other job has any) with their values and what they wrote to the first
    tracker, and the ``error`` if it cannot be read."""
    error = None
    try:
        tracker = choose_tracker()[1] if get_configured_trackers() else None
        found = read_results(handle, tracker)
    except Exception as e:  # whatever a tracker's client raises
        found, error = read_results(handle, None), f"the tracker cannot be read: {e}"
    return {"tasks": results_fields(found) if found is not None else [], "error": error}


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def send(_: Request) -> Response:
        return FileResponse(os.path.join(_STATIC, name), media_type=_TYPES[os.path.splitext(name)[1]])

    return send


def _json(data: Any, status: int = 200) -> Response:
    return Response(redact(strict_json(data)), status, media_type="application/json")


def _stream(documents: AsyncIterator[dict[str, Any]]) -> Response:
    """Streams documents as JSON lines."""

    async def lines() -> AsyncIterator[bytes]:
        waiting = asyncio.ensure_future(anext(documents))
        try:
            while True:
                done, _ = await asyncio.wait([waiting], timeout=_ALIVE_S)
                if not done:
                    yield b"\n"
                    continue
                try:
                    document = waiting.result()
                except StopAsyncIteration:
                    return
                yield redact(strict_json(document)).encode() + b"\n"
                waiting = asyncio.ensure_future(anext(documents))
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])
            await documents.aclose()  # type: ignore[attr-defined]  # all of ours are generators

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def _failed(_: Request, error: TorchXError) -> Response:
    return _json({"error": str(error), "hint": error.hint}, 404 if isinstance(error, NotFoundError) else 502)


def _incomplete(_: Request, error: KeyError) -> Response:
    return _json({"error": f"the address lacks `{error.args[0]}`"}, 400)


def _refused(_: Request, error: HTTPException) -> Response:
    return _json({"error": error.detail}, error.status_code)
