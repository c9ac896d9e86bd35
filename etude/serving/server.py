"""The protocol of clients over HTTP: an event loop in a thread of its own, which checks what comes in and hands it on.

Every post of an episode has a number, from 1. A repeated one is answered as before and counts once, so that a client
may send again whatever it had no answer to. Numbers that are left out, and posts for episodes that there are not, are
refused, and change nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import queue
import re
import socket
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from etude.base import trees
from etude.base.errors import ConfigError, EtudeError, MissingExtra
from etude.base.spaces import ACTION_MASK, Dict, Space, Spaces, choices
from etude.base.trees import Tree
from etude.envs.actions import Actions
from etude.envs.observations import Mismatch, Observations
from etude.serving import bodies
from etude.serving.bodies import Refused
from etude.serving.clients import ClientLimits

PROTOCOL = 1
ENDED = 10_000  # how many ended episodes are remembered, whose last post may be repeated
EPISODE = re.compile(r"[A-Za-z0-9_-]{1,64}")
KINDS = ("act", "log_action", "reward", "end")  # of posts of an episode


@dataclass(slots=True)
class Post:
    """What a client tells of its episode, and how it is answered. kind: act, end, or gone where it has vanished.

    observation: [1, ...] as agents see it. reward: since the last action. action, log_prob: of the client's own choice.
    """

    kind: str
    episode: str
    observation: Tree = None
    reward: float = 0.0
    action: np.ndarray | None = None
    log_prob: float | None = None
    terminated: bool = False
    truncated: bool = False
    reply: Callable[[int, dict[str, Any]], None] = lambda status, body: None
    convert: Callable[[np.ndarray], Any] = lambda action: action

    def answer(self, body: dict[str, Any]) -> None:
        """Answer it, from any thread."""
        self.reply(200, body)

    def acted(self, action: np.ndarray) -> None:
        """Answer with an agent's action [1, ...], in the environment's own units."""
        self.answer({"action": self.convert(action)})

    def refuse(self, status: int, message: str) -> None:
        """Answer with an error."""
        self.reply(status, {"error": message})


@dataclass(slots=True)
class _Episode:
    """An open episode. answer: to its newest post."""

    number: int
    kind: str
    answer: asyncio.Future[tuple[int, dict[str, Any]]]
    seen: float
    reward: float = 0.0  # since the last action
    acts: bool = False  # whether an action was ever asked for


class Address(Protocol):
    """Where to listen, and for whom."""

    host: str
    port: int
    token: str | None
    limits: ClientLimits


class PolicyServer:
    """Takes posts of clients from the moment that it is made. Raises ConfigError where it cannot listen.

    env: one with the spaces that clients have. spaces: those of agents. samples: whether the log probabilities of their
    own actions are needed. task: what clients are told when they begin an
    episode; None: nothing.
    """

    def __init__(self, address: Address, env: Any, spaces: Spaces, samples: bool):
        self.limits, self.task = address.limits, None
        self._token = None if address.token is None else f"Bearer {address.token}".encode()
        self._samples = samples
        self._env_spaces: tuple[Space, Space] = env.observation_space, env.action_space
        masked = isinstance(spaces.observation, Dict) and ACTION_MASK in spaces.observation.spaces
        self._observations = Observations(env.observation_space, sum(choices(env.action_space)) if masked else 0)
        self._actions = Actions(env.action_space)
        self._open: dict[str, _Episode] = {}
        self._ended: OrderedDict[str, _Episode] = OrderedDict()
        self._inbox: queue.SimpleQueue[Post | None] = queue.SimpleQueue()
        self._started = threading.Event()
        try:
            import uvicorn

            app = _application(self)
        except ImportError as error:
            raise MissingExtra("A run on what clients play", "serve") from error
        self._socket = _listening(address.host, address.port)
        self._server = uvicorn.Server(uvicorn.Config(
            app, log_config=None, lifespan="off", access_log=False, ws="none", timeout_graceful_shutdown=1,
            server_header=False, date_header=False,
        ))  # fmt: skip
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="etude-serving", daemon=True)
        self._thread.start()
        self._started.wait()

    def posts(self) -> list[Post]:
        """All that have come in since the last call; waits for one."""
        found: list[Post | None] = [self._inbox.get()]
        while not self._inbox.empty():
            found.append(self._inbox.get())
        if None in found:
            raise EtudeError("The server of this run has ended: see above for the reason.")
        return found  # type: ignore[return-value]

    def close(self) -> None:
        """End it: whatever waits for an answer gets 503. May be called twice."""
        self._server.should_exit = True
        self._thread.join(10)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        watch = asyncio.create_task(self._watch())
        self._started.set()
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            watch.cancel()
            self._socket.close()
            self._inbox.put(None)

    async def _watch(self) -> None:
        """Notice clients that have vanished, and the end of the server."""
        while not self._server.should_exit:
            await asyncio.sleep(min(0.1, self.limits.silence / 4))
            limit = time.monotonic() - self.limits.silence
            for name in [name for name, own in self._open.items() if own.answer.done() and own.seen < limit]:
                own = self._open.pop(name)
                if own.acts:
                    self._inbox.put(Post("gone", name))
        for own in self._open.values():
            self._settle(own, 503, {"error": "The run has ended, or pauses."})

    def _settle(self, own: _Episode, status: int, body: dict[str, Any]) -> None:
        if not own.answer.done():
            own.seen = time.monotonic()
            own.answer.set_result((status, body))

    # -- what routes call ----------------------------------------------------------------------------------------------

    def authorise(self, headers: Any) -> None:
        """Refuse who does not know the token."""
        if self._token is not None:
            given = headers.get("authorization", "").encode("latin-1", "replace")
            if not hmac.compare_digest(given, self._token):
                raise Refused(401, "Send the token of this run: Authorization: Bearer TOKEN.")

    def description(self) -> dict[str, Any]:
        """What a client has to know."""
        observation, action = self._env_spaces
        return {
            "protocol": PROTOCOL,
            "observation_space": bodies.plain_space(observation),
            "action_space": bodies.plain_space(action),
            "action_masks": self._observations.reads_infos,
            "limits": {name: getattr(self.limits, name) for name in ("body", "episodes", "silence", "wait")},
        }

    def begin(self, body: dict[str, Any]) -> dict[str, Any]:
        """Begin an episode, under the name that the client gives it or one that is made up."""
        name = body.get("episode") or uuid.uuid4().hex
        if not isinstance(name, str) or not EPISODE.fullmatch(name):
            raise Refused(422, f"episode: expected 1 to 64 letters, digits, - and _; got {name!r:.80}.")
        if name in self._ended or name in self._open and self._open[name].number:
            raise Refused(409, f"Episode {name!r} has begun before. Take another name for each.")
        if name not in self._open:
            if len(self._open) >= self.limits.episodes:
                raise Refused(429, f"{len(self._open)} episodes are open, which is the limit. Try again later.")
            answer: asyncio.Future[tuple[int, dict[str, Any]]] = self._loop.create_future()
            answer.set_result((200, {}))
            self._open[name] = _Episode(0, "begin", answer, time.monotonic())
        return {"episode": name, "task": self.task}

    async def post(self, name: str, kind: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """One post of an episode, or a repeated one."""
        own = self._open.get(name) or self._ended.get(name)
        if own is None:
            raise Refused(410, f"There is no open episode {name!r:.80}: begin a new one.")
        number = body.get("number")
        if not isinstance(number, int) or isinstance(number, bool):
            raise Refused(422, f"number: expected that of this post in its episode, from 1; got {number!r:.80}.")
        if number != own.number or kind != own.kind:
            if name in self._ended or number != own.number + 1 or not own.answer.done():
                raise Refused(409, f"number: {number} ({kind}) does not follow {own.number} ({own.kind}).")
            self._begin_post(name, own, kind, body)
        if not own.answer.done():
            await asyncio.wait((own.answer,), timeout=self.limits.wait)
        if not own.answer.done():
            return 503, {"error": "The run is busy. Send the same post again."}
        return own.answer.result()

    def _begin_post(self, name: str, own: _Episode, kind: str, body: dict[str, Any]) -> None:
        reward = own.reward + bodies.number(body, "reward", 0.0)
        if abs(reward) > float(np.finfo(np.float32).max):
            raise Refused(422, f"reward: {reward} is beyond what float32 holds.")
        post = None if kind == "reward" else self._parsed(name, kind, body, reward)
        answer = self._loop.create_future()
        own.number, own.kind, own.answer, own.seen = own.number + 1, kind, answer, time.monotonic()
        if post is None or kind == "end" and not own.acts:
            own.reward = reward
            self._settle(own, 200, {})
        else:
            own.reward, own.acts = 0.0, True
            post.reply = lambda status, body: self._reply(own, answer, status, body)
            self._inbox.put(post)
        if kind == "end":
            self._ended[name] = self._open.pop(name)
            if len(self._ended) > ENDED:
                self._ended.popitem(last=False)

    def _reply(self, own: _Episode, answer: Any, status: int, body: dict[str, Any]) -> None:
        def settle() -> None:
            if own.answer is answer:
                self._settle(own, status, body)

        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(settle)

    def _parsed(self, name: str, kind: str, body: dict[str, Any], reward: float) -> Post:
        observation_space, action_space = self._env_spaces
        try:
            observation = bodies.value_of(observation_space, body.get("observation"), "observation")
            mask = body.get("action_mask")
            info = {} if mask is None else {ACTION_MASK: bodies.array(mask, "action_mask")}
            if kind == "end":
                last = self._observations.gather_final(observation, info)
                seen = trees.map(lambda leaf: leaf[None], last)
            else:
                seen = self._observations.gather([observation], [info])
        except Mismatch as problem:
            raise Refused(422, f"The observation {problem.key} {problem.message}".replace("  ", " ")) from None
        except (ValueError, TypeError) as problem:
            raise Refused(422, f"{problem}") from None
        post = Post("end" if kind == "end" else "act", name, seen, reward, convert=self._plain_action)
        if kind == "log_action":
            post.action = bodies.action_of(action_space, body.get("action"))
            post.log_prob = bodies.number(body, "log_prob", None)
            if self._samples and post.log_prob is None:
                raise Refused(422, "This algorithm learns from probabilities: give the action's log_prob, too.")
        elif kind == "end":
            post.terminated, post.truncated = (bodies.flag(body, which) for which in ("terminated", "truncated"))
            if not (post.terminated or post.truncated):
                raise Refused(422, "end: expected terminated (the world ended) or truncated (the clock did), as true.")
        return post

    def _plain_action(self, action: np.ndarray) -> Any:
        return bodies.plain(self._actions.each(action)[0])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # The protocol is named, or asyncio would not set TCP_NODELAY: each answer would wait 40 ms for an ACK.
        listening = socket.socket(family, kind, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(256)  # from now on, and not when the loop has started
    except OSError as error:
        raise ConfigError(f"Cannot listen on {host}:{port}: {error}. Give another address.") from error
    return listening


def _application(server: PolicyServer) -> Any:
    """The routes."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    def respond(status: int, body: dict[str, Any], kind: str = bodies.JSON) -> Response:
        headers = {"retry-after": "0"} if status == 503 else None
        return Response(bodies.packed(body, kind), status, headers, kind)

    async def described(request: Request) -> Response:
        try:
            server.authorise(request.headers)
        except Refused as problem:
            return respond(problem.status, {"error": str(problem)})
        return respond(200, server.description())

    async def body_of(request: Request, kind: str) -> dict[str, Any]:
        limit, data = server.limits.body, b""
        announced = request.headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced) > limit:
            raise Refused(413, f"The body is {announced:.20} bytes; at most {limit} are taken.")
        async for part in request.stream():
            data += part
            if len(data) > limit:
                raise Refused(413, f"At most {limit} bytes are taken.")
        return bodies.unpacked(data, kind)

    async def posted(request: Request) -> Response:
        kind = bodies.JSON
        try:
            server.authorise(request.headers)
            kind = bodies.kind_of_body(request.headers.get("content-type", ""))
            body = await body_of(request, kind)
            name = request.path_params.get("episode")
            if name is None:
                return respond(200, server.begin(body), kind)
            return respond(*await server.post(name, request.url.path.rpartition("/")[2], body), kind)
        except Refused as problem:
            return respond(problem.status, {"error": str(problem)}, kind)

    each = [Route("/v1/episodes/{episode}/" + kind, posted, methods=["POST"], name=kind) for kind in KINDS]
    return Starlette(routes=[
        Route("/v1/description", described), Route("/v1/episodes", posted, methods=["POST"]), *each,
    ])  # fmt: skip
