"""The web app: its pages, their JSON, two streams of events, and two requests that write.

A request names its group in the query, because a group id may contain any character.
"""

from __future__ import annotations

import http.client
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from muster.assignor.registry import names as assignor_names
from muster.console import event_streams, health
from muster.console.drains_and_settings import Writes
from muster.console.event_streams import FleetStream, GroupStream, Hub, SharedViews
from muster.console.explanations import Explainer, generation_with_moves, task_json
from muster.console.frames import Json, text
from muster.console.history import History, Moment
from muster.console.plans import plan_json, question
from muster.console.report import STATIC, TEMPLATES
from muster.console.request_guard import USER, Access, Guard
from muster.console.store import GroupKey, Store
from muster.doctor.all_checks import all_findings
from muster.doctor.finding import Finding
from muster.errors import BadInput, NotFound
from muster.kafka.client_settings import DEFAULT_BOOTSTRAP, ClientSettings
from muster.kafka.command_options import connection_options
from muster.output import wall_ms
from muster.protocol.errors import ConfigError, MusterError

BODY_BYTES_MAX = 64 * 1024
DOCTOR_STUCK_MS = 300_000


@dataclass(frozen=True, slots=True)
class Options:
    """How the console was started; `metrics` is the URL of the job's metrics port, empty = none."""

    clients: ClientSettings
    metrics: str = ""
    version: str = ""
    writes: Writes = field(default_factory=Writes)


def build(store: Store, options: Options, access: Access) -> Starlette:
    """The app; its reader is started by the caller. `app.state.hub` ends the pages' streams."""
    hub = Hub(store)
    pages = _Pages(store, options, access, hub)
    routes = [
        Route("/", pages.fleet),
        Route("/group", pages.group),
        Route("/health", pages.health),
        Route("/livez", pages.livez),
        Route("/events/fleet", pages.fleet_events),
        Route("/events/group", pages.group_events),
        Route("/api/frame", pages.frame),
        Route("/api/why", pages.why),
        Route("/api/generation", pages.generation),
        Route("/api/plan", pages.plan),
        Route("/api/health", pages.health_json),
        Route("/api/doctor", pages.doctor_json),
        Route("/api/drain", pages.drain, methods=["POST"]),
        Route("/api/config", pages.config, methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    middleware = [Middleware(Guard, access=access), Middleware(GZipMiddleware, minimum_size=2_000)]
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=_HANDLERS)
    app.state.hub = hub
    return app


def _answering(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": text(str(error), 1_000)}, status)

    return answer


_HANDLERS: dict[Any, Any] = {
    BadInput: _answering(400),
    ConfigError: _answering(400),
    NotFound: _answering(404),
    MusterError: _answering(502),
}


class _Pages:
    """The routes. Starlette runs those that are not `async` in a thread."""

    def __init__(self, store: Store, options: Options, access: Access, hub: Hub) -> None:
        self._store = store
        self._options = options
        self._access = access
        self._views = SharedViews(store)
        self._hub = hub
        self._one_plan = anyio.Semaphore(1)
        self._one_doctor = anyio.Semaphore(1)

    # ------------------------------------------------------------------------------ pages

    def _page(self, request: Request, template: str, **values: Any) -> HTMLResponse:  # noqa: ANN401
        user = request.scope[USER]
        shared = {
            "user": text(user),
            "token": self._access.token(user),
            "version": self._options.version,
            "prefixes": self._store.prefixes,
            "several": len(self._store.prefixes) > 1,
            "allow": sorted(self._options.writes.allow),
            "bootstrap": self._options.clients.bootstrap,
        }
        return HTMLResponse(TEMPLATES.get_template(template).render(**shared, **values))

    async def fleet(self, request: Request) -> Response:
        """The list of groups."""
        return self._page(request, "fleet.html", here="fleet")

    async def group(self, request: Request) -> Response:
        """One group."""
        key = self._key(request)
        page = self._page(
            request,
            "group.html",
            here="group",
            group=key.group,
            prefix=key.prefix,
            title=text(key.group),
            assignors=assignor_names(),
        )
        page.status_code = 200 if self._store.history(key) or not self._store.caught_up else 404
        return page

    async def health(self, request: Request) -> Response:
        """The health page."""
        return self._page(request, "health.html", here="health")

    async def livez(self, _: Request) -> Response:
        """Whether the process answers."""
        return PlainTextResponse("ok\n")

    # ------------------------------------------------------------------------------ streams

    async def fleet_events(self, _: Request) -> Response:
        """The stream of changes of all groups."""
        stream = FleetStream(self._views)
        return self._stream(
            event_streams.events(self._hub, None, stream.message, event_streams.FLEET_PAUSE_S)
        )

    async def group_events(self, request: Request) -> Response:
        """The stream of changes of one group."""
        key = self._key(request)
        stream = GroupStream(self._views, key)
        return self._stream(
            event_streams.events(
                self._hub, key, stream.message, event_streams.PAUSE_S, lambda: stream.counts
            )
        )

    def _stream(self, body: AsyncIterator[str]) -> Response:
        if self._hub.streams >= event_streams.STREAMS_MAX:
            return PlainTextResponse("too many pages are open", 503)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(body, media_type="text/event-stream", headers=headers)

    # ------------------------------------------------------------------------------ answers

    def frame(self, request: Request) -> Response:
        """The group at a moment (``number``), or at a time (``at``, epoch ms), with its notes."""
        key, history, moment = self._moment(request)
        made = self._views.frame(key, moment)
        snapshot, now_ms = history.snapshot(moment), _told_ms(history, moment)
        notes = Explainer(snapshot, moment.pending, now_ms).notes()
        return JSONResponse({} if made is None else {**made.whole, "notes": notes})

    def why(self, request: Request) -> Response:
        """The facts about a task."""
        _, history, moment = self._moment(request)
        task = request.query_params.get("task", "")
        shown = task_json(history, moment, task, _told_ms(history, moment))
        if shown is None:
            raise NotFound(f"no task {text(task)!r} in this group")
        return JSONResponse(shown)

    def generation(self, request: Request) -> Response:
        """A generation with its moves."""
        _, history, _ = self._moment(request)
        number = _whole(request.query_params.get("generation"), "generation")
        shown = generation_with_moves(history, number, wall_ms())
        if shown is None:
            raise NotFound(f"the console no longer keeps generation {number}")
        return JSONResponse(shown)

    async def plan(self, request: Request) -> Response:
        """A what-if: the answer of `muster plan`, drawn on the map."""
        asked = question(request.query_params.multi_items())

        def answer() -> Json:
            key, history, moment = self._moment(request)
            prefix = None if history.is_shadowed else key.prefix
            bootstrap = self._options.clients.bootstrap
            kafka = None if bootstrap == DEFAULT_BOOTSTRAP else bootstrap
            return plan_json(
                history.snapshot(moment),
                asked,
                moment.at_ms,
                where=connection_options(kafka, None, prefix),
                is_shadowed=history.is_shadowed,
            )

        async with self._one_plan:  # a large group's plan takes a core
            return JSONResponse(await run_in_threadpool(answer))

    def health_json(self, _: Request) -> Response:
        """Findings, figures of the job, and dead letters, from what the console has read."""
        findings = self._views.findings()
        shown = {
            "findings": {prefix: _as_json(all_) for prefix, all_ in findings.items()},
            "letters": {
                prefix: health.letters_json(self._store.letters(prefix), prefix)
                for prefix in self._store.prefixes
            },
            "job": self._job(),
            "held_bytes": self._store.held_bytes,
            **self._views.status(),
        }
        return JSONResponse(shown)

    def _job(self) -> Json:
        if not self._options.metrics:
            return {}
        try:
            return health.figures(health.fetch(self._options.metrics))
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = text(str(getattr(error, "reason", error)), 300)
            return {"fault": f"the job's metrics port does not answer: {reason}"}

    async def doctor_json(self, _: Request) -> Response:
        """`muster doctor`, which reads more topics than the console does."""

        def answer() -> Json:
            return {
                prefix: _as_json([*all_findings(self._options.clients, prefix, DOCTOR_STUCK_MS)])
                for prefix in self._store.prefixes
            }

        async with self._one_doctor:
            return JSONResponse(await run_in_threadpool(answer))

    # ------------------------------------------------------------------------------ writes

    async def drain(self, request: Request) -> Response:
        """Drain a member, or undo that."""
        return await self._write(request, self._options.writes.drain)

    async def config(self, request: Request) -> Response:
        """Change settings of a group."""
        return await self._write(request, self._options.writes.config)

    async def _write(self, request: Request, write: Callable[..., str]) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                raise BadInput(f"the request is longer than {BODY_BYTES_MAX} bytes")
        key = self._key(request)
        history = self._store.history(key)
        if history is None or history.newest is None:
            raise NotFound(f"no group {text(key.group)!r}")
        message = await run_in_threadpool(
            write, self._options.clients, key, history.newest, bytes(body), request.scope[USER]
        )
        return JSONResponse({"said": text(message, 1_000)})

    # ------------------------------------------------------------------------------ requests

    def _key(self, request: Request) -> GroupKey:
        prefix = request.query_params.get("p") or self._store.prefixes[0]
        return GroupKey(prefix, request.query_params.get("g", ""))

    def _moment(self, request: Request) -> tuple[GroupKey, History, Moment]:
        """The moment that a request names by ``number`` or ``at``; the newest if by neither."""
        key = self._key(request)
        history = self._store.history(key)
        if history is None or not history.moments:
            raise NotFound(f"no group {text(key.group)!r} under the prefix {text(key.prefix)!r}")
        number, at_ms = (request.query_params.get(name) for name in ("number", "at"))
        if number:
            moment = history.moment(_whole(number, "number"))
        elif at_ms:
            moment = history.moment_at(_whole(at_ms, "at"))
        else:
            moment = history.moments[-1]
        if moment is None:
            raise NotFound("the console no longer keeps that record")
        return key, history, moment


def _told_ms(history: History, moment: Moment) -> int:
    """The time up to which ages count: now for the newest moment, else the moment's own."""
    return wall_ms() if history.moment(moment.number + 1) is None else moment.at_ms


def _as_json(findings: list[Finding]) -> list[Json]:
    return [
        {key: text(str(value or ""), 1_000) for key, value in each.as_json().items()}
        for each in findings
    ]


def _whole(value: str | None, name: str) -> int:
    if value is None or not value.isascii() or not value.isdigit() or len(value) > 15:
        raise BadInput(f"{name}: expected a whole number")
    return int(value)
