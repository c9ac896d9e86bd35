"""The routes of the board, and what it starts in processes of their own: a film of a run, and its policy for
observations. Browsers name runs as the board has listed them, never files."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from etude.base.errors import EtudeError
from etude.board.curves import KNOWN, Wanted, curves, drawn, shown
from etude.board.runs import BoardFolder, BoardRun, RunBoard, differing
from etude.report.filming import can_write_mp4
from etude.serving import http
from etude.serving.http import Refused

STATIC = Path(__file__).with_name("static")
FILES = {"board.js": "text/javascript", "board.css": "text/css", "uPlot.min.js": "text/javascript",
         "uPlot.min.css": "text/css"}  # fmt: skip
COOKIE = "etude_board"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src "
    "'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
MOST_METRICS = 500  # names that are offered
IDLE = 1.0  # seconds after which listeners are sent something


@dataclass(frozen=True)
class BoardLimits:
    """What browsers may ask for. body: bytes of a post. posts: in ten seconds. listeners: pages that are open.

    patience: seconds that a body may take. every: seconds between two looks at the runs, at least.
    """

    body: int = 2**20
    posts: int = 200
    listeners: int = 16
    patience: float = 10.0
    every: float = 1.0


class _BoardServer:
    """Answers browsers. board: what they see. ending: whether pages are to be let go."""

    def __init__(self, board: RunBoard, limits: BoardLimits):
        self.board, self.limits = board, limits
        self.ending: Callable[[], bool] = lambda: False
        board.poll()
        self._reader = ThreadPoolExecutor(1, "etude-board")  # all reading of runs, so that none needs locks
        self._drawer = ThreadPoolExecutor(1, "etude-board-pictures")
        self._processes = _Processes()
        self._drawn: dict[str, tuple[float, dict[str, Any], dict[str, Any]]] = {}  # by folder: (stamp, text, pictures)
        self._folders: list[dict[str, Any]] = []  # as they were sent
        self._listeners: set[asyncio.Queue[dict[str, Any]]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._posts: deque[float] = deque(maxlen=limits.posts)

    def close(self) -> None:
        """End what it has started."""
        self._processes.close()
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._drawer.shutdown(wait=False, cancel_futures=True)

    async def reading(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function where runs are read."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, function, *arguments)

    # -- the table -----------------------------------------------------------------------------------------------------

    async def events(self, _: Request) -> Response:
        """Server-sent events: all rows, and from then on those that change."""
        if len(self._listeners) >= self.limits.listeners:
            raise Refused(429, f"{self.limits.listeners} pages are open, which is the limit. Close one.")
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(100)
        self._listeners.add(queue)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watching())
        return StreamingResponse(self._told(queue), media_type="text/event-stream")

    async def _told(self, queue: asyncio.Queue[dict[str, Any]]) -> AsyncIterator[str]:
        try:
            yield _event(
                await self.reading(lambda: self._news_of(list(self.board.runs.values()), []) | {"whole": True})
            )
            while not self.ending():
                try:
                    yield _event(await asyncio.wait_for(queue.get(), IDLE))
                except TimeoutError:
                    yield ":\n\n"  # so that one that is gone is noticed
        finally:
            self._listeners.discard(queue)

    async def _watching(self) -> None:
        """Look at the runs while a page is open."""
        while self._listeners:
            began = time.monotonic()
            news = await self.reading(self._news)
            if news is not None:
                for queue in list(self._listeners):
                    with suppress(asyncio.QueueFull):  # nobody reads: its connection is about to be closed
                        queue.put_nowait(news)
            await asyncio.sleep(max(self.limits.every, 20 * (time.monotonic() - began)))

    def _news(self) -> dict[str, Any] | None:
        changed, gone = self.board.poll()
        before, self._folders = self._folders, self._described_folders()
        return self._news_of(changed, gone) if changed or gone or before != self._folders else None

    def _news_of(self, changed: list[BoardRun], gone: list[str]) -> dict[str, Any]:
        return {
            "now": time.time(),
            "rows": [run.row() for run in changed],
            "gone": gone,
            "more": self.board.more,
            "metrics": sorted({name for run in changed for name in run.metrics.latest})[:MOST_METRICS],
            "folders": self._described_folders(),
        }

    def _described_folders(self) -> list[dict[str, Any]]:
        return [
            {"id": each.name, "name": each.shown, "kind": each.kind, "changed": self._changed_at(each)}
            for each in self.board.folders.values()
        ]

    def _changed_at(self, folder: BoardFolder) -> float:
        return folder.changed_at(self.board.runs_in(folder))

    # -- runs ----------------------------------------------------------------------------------------------------------

    async def curves(self, request: Request) -> Response:
        """Curves of the runs that are named, or of all."""
        body = await self._body(request)
        # How curves are to be drawn
        for name, known in KNOWN.items():
            if body.get(name, known[0]) not in known:
                raise Refused(422, f"{name}: expected {', '.join(map(str, known))}.")
        metric = body.get("metric")
        if metric is not None and not (isinstance(metric, str) and len(metric) < 200):
            raise Refused(422, "metric: expected a name, or null for the return.")
        most = {"smoothing": 1.0, "seconds": 2.0}
        numbers: dict[str, Any] = {name: http.number(body, name, Wanted._field_defaults[name]) for name in most}
        for name, value in numbers.items():
            if not 0 <= value <= most[name]:
                raise Refused(422, f"{name}: expected a number from 0 to {most[name]:g}.")
        wanted = Wanted(metric, **numbers, **{name: body.get(name, known[0]) for name, known in KNOWN.items()})
        return _json(await self.reading(lambda: curves(self._runs(body), wanted)))

    async def compared(self, request: Request) -> Response:
        """What the runs that are named differ in."""
        body = await self._body(request)
        return _json(await self.reading(lambda: {"differing": differing(self._runs(body))}))

    async def run(self, request: Request) -> Response:
        """One run: its configuration, its warnings, its metrics."""
        run = self._run(request.query_params.get("id"))
        return _json(await self.reading(run.details))

    async def film(self, request: Request) -> Response:
        """Record a video of a run; answered when it is there."""
        body = await self._body(request)
        return _json(await self._processes.film(self._run(body.get("id"))))

    async def act(self, request: Request) -> Response:
        """What the policy of a run does for an observation."""
        body = await self._body(request)
        asked: dict[str, Any] = {name: body[name] for name in ("observation", "seed") if name in body}
        return _json(await self._processes.act(self._run(body.get("id")), asked))

    async def video(self, request: Request) -> Response:
        """The newest video of a run."""
        found = await self.reading(self._run(request.query_params.get("id")).videos)
        if not found:
            raise Refused(404, "This run has no video.")
        return FileResponse(found[-1], media_type="image/gif" if found[-1].suffix.lower() == ".gif" else "video/mp4")

    # -- studies, populations and sweeps -------------------------------------------------------------------------------

    async def folder(self, request: Request) -> Response:
        """What is written of a study, and the titles of its pictures."""
        stamp, told, pictures = await self._shown(request)
        return _json(told | {"pictures": list(pictures), "changed": stamp})

    async def picture(self, request: Request) -> Response:
        """One of its pictures."""
        _, _, pictures = await self._shown(request)
        title = request.query_params.get("title", "")
        if title not in pictures:
            raise Refused(404, "There is no such picture.")
        if not isinstance(pictures[title], bytes):
            loop = asyncio.get_running_loop()
            try:
                pictures[title] = await loop.run_in_executor(self._drawer, drawn, pictures[title])
            except EtudeError as error:
                raise Refused(422, str(error)) from None
        return Response(pictures[title], media_type="image/png")

    async def _shown(self, request: Request) -> tuple[float, dict[str, Any], dict[str, Any]]:
        name = request.query_params.get("id", "")
        if name not in self.board.folders:
            raise Refused(404, "There is no such study on the board.")
        return await self.reading(self._read_folder, self.board.folders[name])

    def _read_folder(self, folder: BoardFolder) -> tuple[float, dict[str, Any], dict[str, Any]]:
        stamp = self._changed_at(folder)
        if folder.name not in self._drawn or self._drawn[folder.name][0] != stamp:
            told, pictures = shown(folder, self.board.runs_in(folder))
            self._drawn[folder.name] = stamp, told, dict(pictures)
        return self._drawn[folder.name]

    # -- requests ------------------------------------------------------------------------------------------------------

    def _runs(self, body: dict[str, Any]) -> list[BoardRun]:
        names = body.get("runs")
        if names is None:
            return list(self.board.runs.values())
        if not isinstance(names, list):
            raise Refused(422, "runs: expected a list of their names, or null for all.")
        return [self.board.runs[name] for name in names if isinstance(name, str) and name in self.board.runs]

    def _run(self, name: Any) -> BoardRun:
        if not isinstance(name, str) or name not in self.board.runs:
            raise Refused(404, "There is no such run on the board.")
        return self.board.runs[name]

    async def _body(self, request: Request) -> dict[str, Any]:
        """The object in a post."""
        now = time.monotonic()
        if len(self._posts) == self.limits.posts and now - self._posts[0] < 10:
            raise Refused(429, "Too many requests. Try again later.")
        self._posts.append(now)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Refused(415, "Content-Type: expected application/json.")
        data, limit = bytearray(), self.limits.body
        try:
            async with asyncio.timeout(self.limits.patience):
                async for part in request.stream():
                    data += part
                    if len(data) > limit:
                        raise Refused(413, f"At most {limit:,} bytes are taken.")
            found = json.loads(data)
        except TimeoutError:
            raise Refused(408, "The body took too long.") from None
        except (ValueError, RecursionError):
            raise Refused(400, "The body is no JSON.") from None
        if not isinstance(found, dict):
            raise Refused(422, "The body is no object.")
        return found


def _event(news: dict[str, Any]) -> str:
    return f"data: {json.dumps(news, allow_nan=False)}\n\n"


def _json(found: Any) -> Response:
    return Response(json.dumps(found, allow_nan=False), media_type="application/json")


class _Guard:
    """Lets in who may come: of this page's own origin, to a host of this board, with its token where it has one.

    hosts: names under which it may be asked for; empty: any, as others have no token.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str | None):
        self._app, self._hosts = app, hosts
        self._token = None if token is None else _digest(token)  # which a cookie can hold, whatever the token is

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request, answer = Request(scope), None
        try:
            answer = self._checked(request)
        except Refused as problem:
            answer = _refusal(problem)

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(each for each in more if each[0] not in given)]
            await send(message)

        await (answer or self._app)(scope, receive, with_headers)

    def _checked(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if self._hosts and host.rpartition(":")[0].strip("[]").lower() not in self._hosts:
            raise Refused(421, "This board is not asked for under this name.")  # a page that has rebound its own name
        if origin is not None and origin.partition("://")[2] != host:
            raise Refused(403, "This board answers its own page alone.")
        if self._token is None:
            return None
        secret, given = self._token, request.query_params.get("token")
        if request.url.path == "/" and given is not None and hmac.compare_digest(_digest(given), secret):
            entered, secure = RedirectResponse("/", 303), request.url.scheme == "https"
            entered.set_cookie(COOKIE, secret, httponly=True, samesite="strict", secure=secure)
            return entered
        bearer = _digest(request.headers.get("authorization", "").removeprefix("Bearer "))
        found = (bearer, request.cookies.get(COOKIE, ""))
        if not any(hmac.compare_digest(each.encode(), secret.encode()) for each in found):
            raise Refused(401, "Open the address of this board with its token: /?token=TOKEN.")
        return None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _refusal(problem: Refused) -> Response:
    return JSONResponse({"error": str(problem)}, problem.status)


def application(
    board: RunBoard, hosts: frozenset[str], token: str | None = None, limits: BoardLimits = BoardLimits()
) -> Starlette:
    """The board as an ASGI application, whose `state.board` is a `_BoardServer`. hosts, token: see `_Guard`."""
    server = _BoardServer(board, limits)

    def route(path: str, function: Callable[[Request], Awaitable[Response]], *methods: str) -> Route:
        async def answered(request: Request) -> Response:
            try:
                return await function(request)
            except Refused as problem:
                return _refusal(problem)

        return Route(path, answered, methods=list(methods or ("GET",)), name=path)

    async def static(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name != "index.html" and name not in FILES:
            raise Refused(404, "There is no such file.")
        return FileResponse(STATIC / name, media_type=FILES.get(name, "text/html"))

    async def nothing(_: Request) -> Response:
        return Response(status_code=204)

    app = Starlette(
        routes=[
            route("/", static),
            route("/static/{name}", static),
            route("/favicon.ico", nothing),
            route("/events", server.events),
            route("/run", server.run),
            route("/video", server.video),
            route("/folder", server.folder),
            route("/picture", server.picture),
            route("/curves", server.curves, "POST"),
            route("/compared", server.compared, "POST"),
            route("/film", server.film, "POST"),
            route("/act", server.act, "POST"),
        ],
        middleware=[Middleware(_Guard, hosts=hosts, token=token)],
    )
    app.state.board = server
    return app


FILMING = 600.0  # seconds that a film may take
ANSWERING = 60.0  # seconds that a policy may take to load and to answer
AT_A_TIME = 2  # films, and policies
LINE = 2**24  # bytes of an answer


class _Processes:
    """Those that were started for browsers. Policies end with the board, as their standard input does."""

    def __init__(self) -> None:
        self._filming: set[str] = set()
        self._policies: dict[str, tuple[str, asyncio.subprocess.Process, asyncio.Lock]] = {}

    async def film(self, run: BoardRun) -> dict[str, Any]:
        """Record an episode of the newest checkpoint, as `etude watch RUN --video`; what that printed."""
        if run.name in self._filming or len(self._filming) >= AT_A_TIME:
            raise Refused(409, "A video is being recorded. Wait until it is there.")
        folder = run.folder / "video"
        if folder.is_symlink():
            raise Refused(403, "The folder for videos of this run is a link, which the board does not write through.")
        path = folder / f"board-{run.metrics.step}.{'mp4' if can_write_mp4() else 'gif'}"
        self._filming.add(run.name)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "etude", "watch", str(run.folder), "--video", str(path),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            try:
                output, _ = await asyncio.wait_for(process.communicate(), FILMING)
            finally:
                _end(process)
        except TimeoutError:
            raise Refused(504, f"The video took more than {FILMING:.0f} s, and was given up.") from None
        finally:
            self._filming.discard(run.name)
        text = output.decode(errors="replace").strip()[-2_000:]
        if process.returncode:
            raise Refused(422, text or f"etude watch ended with {process.returncode}.")
        return {"output": text}

    async def act(self, run: BoardRun, asked: dict[str, Any]) -> dict[str, Any]:
        """What the policy of a run does for an observation; see `policy.ShownPolicy.answer`."""
        process, lock = await self._policy(run)
        assert process.stdin is not None and process.stdout is not None
        async with lock:
            try:
                process.stdin.write(json.dumps(asked).encode() + b"\n")
                line = await asyncio.wait_for(process.stdout.readline(), ANSWERING)
            except (TimeoutError, ValueError, OSError):
                line = b""
            if not line.endswith(b"\n"):
                self._forget(run.name)
                raise Refused(504, "The policy did not answer. Ask again: it is loaded anew.")
        found = json.loads(line)
        if "error" in found:
            raise Refused(422, found["error"])
        return found

    async def _policy(self, run: BoardRun) -> tuple[asyncio.subprocess.Process, asyncio.Lock]:
        """The process of the newest checkpoint of a run."""
        newest = run.newest_checkpoint()
        if newest is None:
            raise Refused(404, "This run has no checkpoint yet.")
        held = self._policies.get(run.name)
        if held is not None and held[0] == newest and held[1].returncode is None:
            return held[1:]
        self._forget(run.name)
        while len(self._policies) >= AT_A_TIME:
            self._forget(next(iter(self._policies)))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "etude.board.policy", str(run.folder), limit=LINE,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self._policies[run.name] = newest, process, asyncio.Lock()
        return process, self._policies[run.name][2]

    def close(self) -> None:
        """End all policies."""
        for name in list(self._policies):
            self._forget(name)

    def _forget(self, name: str) -> None:
        if (held := self._policies.pop(name, None)) is not None:
            _end(held[1])


def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
