"""The protocol of clients: what their requests mean, which are checked here and handed on.

Every post of an episode has a number, from 1. A repeated one is answered as before and counts once, so that a client
may send again whatever it had no answer to. Numbers that are left out, and posts for episodes that there are not, are
refused, and change nothing.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.errors import ConfigError, EtudeError
from etude.base.spaces import ACTION_MASK, Dict, Space, Spaces, choices
from etude.base.trees import Tree
from etude.envs.adapter import SpaceConversion
from etude.envs.multi_agent import AgentsStep, MultiAgentEnvironment
from etude.envs.observations import Mismatch
from etude.multi_agent import joint
from etude.rollout.fragments import NobodyPlays
from etude.serving import http
from etude.serving.clients import Listening
from etude.serving.http import NAME, Answer, Content, HttpServer, Refused, Route

PROTOCOL = 1
ENDS = "The server of this run has ended: see above for the reason."
BUSY: Answer = (503, {"error": "The run is busy, or ends. Send the same post again."})
ENDED = 10_000  # how many ended episodes are remembered, whose last post may be repeated
KINDS = {
    "act": "Ask for the action of an observation.",
    "log_action": "Report an action of the client's own.",
    "reward": "Report a reward, apart from the next action.",
    "end": "End an episode.",
}  # of posts of an episode


@dataclass(slots=True)
class Post:
    """What a client tells of its episode, and how it is answered. kind: act, end, steps, or gone where it has vanished;
    or weights, which it asks for, newer than `after`.

    observation: [1, ...] as agents see it. reward: since the last action. action, log_prob: of the client's own choice.
    Of n steps at once, each has an axis of them, and observations are n + 1; extras: [n, ...], what else is known of
    actions.
    """

    kind: str
    episode: str
    observation: Tree = None
    reward: Any = 0.0
    action: np.ndarray | None = None
    log_prob: float | None = None
    terminated: bool = False
    truncated: bool = False
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    after: int = -1
    reply: Callable[[int, dict[str, Any] | Content], None] = lambda status, body: None
    convert: Callable[[np.ndarray], Any] = lambda action: action

    def answer(self, body: dict[str, Any]) -> None:
        """Answer it."""
        self.reply(200, body)

    def acted(self, action: np.ndarray) -> None:
        """Answer with an agent's action [1, ...], in the environment's own units."""
        self.answer({"action": self.convert(action)})

    def refuse(self, status: int, message: str) -> None:
        """Answer with an error."""
        self.reply(status, {"error": message})


@dataclass(slots=True)
class _Episode:
    """An open episode. answer: to its newest post; None: not there yet. waiting: who waits for it, since when."""

    number: int
    kind: str
    answer: Answer | None
    seen: float
    waiting: list[tuple[float, asyncio.Future[Answer]]] = field(default_factory=list)
    reward: Any = 0.0  # since the last action
    acts: bool = False  # whether an action was ever asked for
    world: Any = None  # where its agents are, of several


@contextmanager
def _refusing() -> Iterator[None]:
    """What observations cannot be is refused."""
    try:
        yield
    except Mismatch as problem:
        raise Refused(422, f"The observation {problem.key} {problem.message}".replace("  ", " ")) from None
    except (ValueError, TypeError) as problem:
        raise Refused(422, f"{problem}") from None


def _ending(body: dict[str, Any]) -> tuple[bool, bool]:
    """Whether an episode was terminated, and truncated."""
    terminated, truncated = http.flag(body, "terminated"), http.flag(body, "truncated")
    if not (terminated or truncated):
        raise Refused(422, "end: expected terminated (the world ended) or truncated (the clock did), as true.")
    return terminated, truncated


def conversion_of(observation: Space, action: Space, spaces: Spaces) -> SpaceConversion:
    """From the spaces that clients have to `spaces`, those of agents."""
    masked = isinstance(spaces.observation, Dict) and ACTION_MASK in spaces.observation.spaces
    return SpaceConversion.of(observation, action, sum(choices(action)) if masked else 0)


class PolicyServer:
    """Takes posts of clients, from `listen` on. Raises ConfigError where it cannot listen.

    conversion: from the spaces that clients have to those of agents. samples: whether log probabilities of their own
    actions are needed. local: the program with which clients act for themselves (`Post`s of the kinds steps and weights
    come then), or, as `refused`, why they cannot. extras: the shapes of what it knows of each action.
    agents: the names of several; rewards are [n, agents] then, see `AgentsServer`.
    task: what clients are told when they begin an episode; None: nothing. oldest: the first version of weights that
    was given out here.
    """

    def __init__(
        self,
        address: Listening,
        conversion: SpaceConversion,
        samples: bool = False,
        local: dict[str, Any] | None = None,
        extras: dict[str, tuple[int, ...]] | None = None,
        agents: tuple[str, ...] = (),
    ):
        self.limits, self.task, self.oldest = address.limits, None, 0
        self._samples, self._extras, self.agents = samples, extras or {}, agents
        self._local = local
        self._observations, self._actions = conversion.observations, conversion.actions
        self._env_spaces: tuple[Space, Space] = self._observations.source, self._actions.source
        self._open: dict[str, _Episode] = {}
        self._ended: OrderedDict[str, _Episode] = OrderedDict()
        self._inbox: list[Post] = []
        self._take: Callable[[list[Post]], bool] | None = None
        self._stopping: Callable[[], bool] = lambda: False
        self._due = False  # whether the inbox will be emptied in this turn of the loop
        self._taking, self._enough = threading.Lock(), threading.Event()
        self._problem: BaseException | None = None
        self._http = self._listen(address)

    def _listen(self, address: Listening) -> HttpServer:
        return HttpServer(address, self._routes(), "etude: training on what clients play", self.sweep)

    def listen(self) -> None:
        """Answer from now on."""
        self._http.start()

    def serve(self, take: Callable[[list[Post]], bool], stopping: Callable[[], bool] = lambda: False) -> None:
        """Give posts to `take`, in the thread of the server, until it returns True: first all that have come in since
        the last time, then whatever comes in together. Raises what it raises, EtudeError where the server ends, and
        NobodyPlays where `stopping` is true and no episode is open.

        A post is answered in the thread that has read it: to wake another one, and to be woken by it, takes as long as
        the rest of an answer.
        """
        self._enough.clear()
        self._take, self._stopping = take, stopping
        try:
            self._http.loop.call_soon_threadsafe(self._hand_on)
            self._enough.wait()
        except RuntimeError:  # the loop has ended
            self._problem = None
            raise EtudeError(ENDS) from None
        finally:
            with self._taking:
                self._take = None
        if (problem := self._problem) is not None:
            self._problem = None
            raise problem

    def _hand_on(self) -> None:
        """Give what has come in to whoever takes it."""
        self._due = False
        with self._taking:
            if self._take is None:
                return
            posts, self._inbox = self._inbox, []
            try:
                enough = self._take(posts)
            except BaseException as problem:
                self._problem, enough = problem, True
            if enough:
                self._take = None
                self._enough.set()

    def _put(self, post: Post) -> None:
        self._inbox.append(post)
        if len(self._open) < 2:
            self._hand_on()
        elif not self._due:  # those of other clients may have come in, too: they are one forward pass
            self._due = True
            self._http.loop.call_soon(self._hand_on)

    def close(self) -> None:
        """End it: whatever waits for an answer gets 503. May be called twice."""
        self._http.close()

    def _routes(self) -> list[Route]:
        async def described(query: dict[str, Any]) -> Answer:
            return 200, self.description()

        async def begin(body: dict[str, Any]) -> Answer:
            return 200, self.begin(body)

        each = self._schemas()
        name = {"type": "string", "pattern": f"^{NAME}$"}
        others = {409: "the number does not follow, or the episode has begun before", 410: "there is no such episode"}
        found = [
            Route("POST", f"/v1/episodes/{{episode}}/{kind}", does, functools.partial(self.post, kind), each[kind],
                  others=others) for kind, does in KINDS.items()
        ]  # fmt: skip
        found += [
            Route("POST", "/v1/episodes", "Begin an episode.", begin, http.an_object("", episode=name), others=others),
            Route("GET", "/v1/description", "What a client has to know: protocol, spaces, limits.", described),
        ]
        if self._local is None:
            return found
        after = http.an_object("", after={"type": "integer"})
        return [
            *found,
            Route("POST", "/v1/steps", "Report steps of a client.", self._steps, each["steps"], others=others),
            Route("GET", "/v1/weights", "The weights that a client acts with, as safetensors, where they are newer.",
                  self._weights, after, "application/octet-stream", {304: "there are no newer ones"}),
        ]  # fmt: skip

    def _schemas(self) -> dict[str, dict[str, Any]]:
        return http.schemas_of(*self._env_spaces)

    def sweep(self) -> None:
        """Notice clients that have vanished, whoever waits for too long, and the end of the server."""
        now, ends = time.monotonic(), self._http.ends
        for name in [name for name, own in self._open.items() if own.answer and now - own.seen > self.limits.silence]:
            if self._open.pop(name).acts:
                self._put(Post("gone", name))
        for own in (*self._open.values(), *self._ended.values()):
            late = [one for one in own.waiting if ends or now - one[0] > self.limits.wait]
            for one in late:
                own.waiting.remove(one)
                if not one[1].done():
                    one[1].set_result(BUSY)
        idle = self._take is not None and not self._open and self._stopping()
        if (ends or idle) and not self._enough.is_set():
            self._problem = EtudeError(ENDS) if ends else NobodyPlays()
            self._enough.set()

    # -- what routes call ----------------------------------------------------------------------------------------------

    def description(self) -> dict[str, Any]:
        """What a client has to know."""
        observation, action = self._env_spaces
        return {
            "protocol": PROTOCOL,
            "observation_space": http.plain_space(observation),
            "action_space": http.plain_space(action),
            "action_masks": self._observations.reads_infos,
            "local": self._local or {"refused": "this server computes actions alone."},
            "limits": {name: getattr(self.limits, name) for name in ("body", "episodes", "silence", "wait")},
        }

    def begin(self, body: dict[str, Any]) -> dict[str, Any]:
        """Begin an episode, under the name that the client gives it or one that is made up."""
        name = body.get("episode") or uuid.uuid4().hex
        if not isinstance(name, str) or not re.fullmatch(NAME, name):
            raise Refused(422, f"episode: expected 1 to 64 letters, digits, - and _; got {name!r:.80}.")
        if name in self._ended or name in self._open and self._open[name].number:
            raise Refused(409, f"Episode {name!r} has begun before. Take another name for each.")
        if name not in self._open:
            if len(self._open) >= self.limits.episodes:
                raise Refused(429, f"{len(self._open)} episodes are open, which is the limit. Try again later.")
            self._open[name] = _Episode(0, "begin", (200, {}), time.monotonic())
        return {"episode": name, "task": self.task}

    async def post(self, kind: str, body: dict[str, Any], name: str) -> Answer:
        """One post of an episode, or a repeated one."""
        own = self._open.get(name) or self._ended.get(name)
        if own is None:
            raise Refused(410, f"There is no open episode {name!r:.80}: begin a new one.")
        number = body.get("number")
        if not isinstance(number, int) or isinstance(number, bool):
            raise Refused(422, f"number: expected that of this post in its episode, from 1; got {number!r:.80}.")
        if number != own.number or kind != own.kind:
            if own.number and (own.kind == "steps") != (kind == "steps"):
                raise Refused(409, "In an episode either the run acts, or the client does, by posts of steps.")
            if name in self._ended or number != own.number + 1 or own.answer is None:
                raise Refused(409, f"number: {number} ({kind}) does not follow {own.number} ({own.kind}).")
            self._begin_post(name, own, kind, body)
        if own.answer is not None:
            return own.answer
        if self._http.ends:
            return BUSY
        waits: asyncio.Future[Answer] = self._http.loop.create_future()
        own.waiting.append((time.monotonic(), waits))
        return await waits

    def _check_local(self) -> None:
        """Refuse what only clients ask that act for themselves, where none can."""
        if self._local is not None and "refused" in self._local:
            raise Refused(422, f"Clients do not act for themselves here: {self._local['refused']}")

    async def _steps(self, body: dict[str, Any]) -> Answer:
        self._check_local()
        name = body.get("episode")
        if not isinstance(name, str):
            raise Refused(422, f"episode: expected a name; got {name!r:.80}.")
        if isinstance(version := body.get("version"), int) and version < self.oldest:
            raise Refused(410, "These steps were for the server before this one, which may have counted them.")
        if body.get("number") == 1 and name not in self._open and name not in self._ended:
            self.begin(body)
        return await self.post("steps", body, name)

    async def _weights(self, query: dict[str, Any]) -> Answer:
        self._check_local()
        try:
            post = Post("weights", "", after=int(query.get("after", -1)))
        except ValueError:
            raise Refused(422, f"after: expected a version; got {query['after']!r:.80}.") from None
        waits: asyncio.Future[Answer] = self._http.loop.create_future()
        post.reply = lambda *answer: None if waits.done() else waits.set_result(answer)
        self._put(post)
        try:
            return await asyncio.wait_for(waits, self.limits.wait)
        except TimeoutError:
            return BUSY

    def _begin_post(self, name: str, own: _Episode, kind: str, body: dict[str, Any]) -> None:
        reward = own.reward if kind == "steps" else self._rewards(body, own.reward)
        for each in reward.values() if isinstance(reward, dict) else [reward]:
            if abs(each) > float(np.finfo(np.float32).max):
                raise Refused(422, f"reward: {each} is beyond what float32 holds.")
        post = None
        if kind != "reward":
            post = self._chunk(name, body) if kind == "steps" else self._parsed(name, kind, body, reward)
        own.number, own.kind, own.answer, own.seen = own.number + 1, kind, None, time.monotonic()
        if kind == "end" or post is not None and (post.terminated or post.truncated):
            self._ended[name] = self._open.pop(name)
            if len(self._ended) > ENDED:
                self._ended.popitem(last=False)
        if post is None or kind == "end" and not own.acts:
            own.reward, own.answer = reward, (200, {})
        else:
            own.reward, own.acts = 0.0, True
            number = own.number
            post.reply = lambda *answer: self._settle(own, number, answer)
            self._put(post)

    def _rewards(self, body: dict[str, Any], before: Any) -> Any:
        """With those of a post."""
        return before + http.number(body, "reward", 0.0)

    def _settle(self, own: _Episode, number: int, answer: Answer) -> None:
        if own.number == number and own.answer is None:
            own.answer, own.seen = answer, time.monotonic()
            for _, waits in own.waiting:
                if not waits.done():
                    waits.set_result(answer)
            own.waiting.clear()

    def _parsed(self, name: str, kind: str, body: dict[str, Any], reward: float) -> Post:
        observation_space, action_space = self._env_spaces
        with _refusing():
            observation = http.value_of(observation_space, body.get("observation"), "observation")
            mask = body.get("action_mask")
            info = {} if mask is None else {ACTION_MASK: http.array(mask, "action_mask")}
            if kind == "end":
                last = self._observations.gather_final(observation, info)
                seen = trees.map(lambda leaf: leaf[None], last)
            else:
                seen = self._observations.gather([observation], [info])
        post = Post("end" if kind == "end" else "act", name, seen, reward)
        post.convert = lambda action: http.plain(self._actions.each(action)[0])
        if kind == "log_action":
            post.action = http.action_of(action_space, body.get("action"))
            post.log_prob = http.number(body, "log_prob", None)
            if self._samples and post.log_prob is None:
                raise Refused(422, "This algorithm learns from probabilities: give the action's log_prob, too.")
        elif kind == "end":
            post.terminated, post.truncated = _ending(body)
        return post

    def _chunk(self, name: str, body: dict[str, Any]) -> Post:
        observation_space, action_space = self._env_spaces
        reward = http.array(body.get("reward"), "reward")
        if reward.ndim != 1 or not 1 <= len(reward) <= self.limits.body:
            raise Refused(422, f"reward: expected the rewards of one step or more, in a list; got {reward!r:.80}.")
        n = len(reward)
        if not isinstance(body.get("version"), int):
            raise Refused(422, f"version: expected that of the weights acted with; got {body.get('version')!r:.80}.")
        with _refusing():
            given = http.value_of(observation_space, body.get("observation"), "observation")
            lengths = {len(leaf) if leaf.ndim else 0 for leaf in http.leaves_of(observation_space, given)}
            if lengths != {n + 1}:
                raise Refused(422, f"observation: expected {n + 1}, one more than rewards; got {sorted(lengths)}.")
            infos = {}
            if self._observations.reads_infos:
                flags = http.numbers(body.get("action_mask"), "action_mask", (n + 1, sum(choices(action_space))))
                infos = {ACTION_MASK: flags != 0}
            seen = self._observations.batch(given, infos)
        extras = body.get("extras", {})
        if not isinstance(extras, dict) or set(extras) != set(self._extras):
            raise Refused(422, f"extras: expected an object with {sorted(self._extras)}; got {extras!r:.80}.")
        return Post(
            "steps", name, seen, http.numbers(reward, "reward", (n,)),
            http.action_of(action_space, body.get("action"), n), None,
            http.flag(body, "terminated"), http.flag(body, "truncated"),
            {key: http.numbers(extras[key], f"extras.{key}", (n, *shape)) for key, shape in self._extras.items()},
        )  # fmt: skip


_HOW = {"terminated": joint.TERMINATED, "truncated": joint.TRUNCATED}


class AgentsServer(PolicyServer):
    """The posts of clients of which each plays all agents of an environment. Agents that an observation is told of act,
    but for those in `ended`; the others wait, or have ended before.

    made: an environment with the agents; nothing of it is stepped.
    """

    def __init__(self, address: Listening, made: Any, spaces: Spaces, local: dict[str, Any]):
        assert spaces.agents is not None
        world = MultiAgentEnvironment(made)
        if world.spaces.agents != spaces.agents:
            world = MultiAgentEnvironment(made, masks=True)
        if world.spaces.agents != spaces.agents:
            raise ConfigError("The environment that Clients name has other agents, or other spaces of them, by now.")
        self._world = world
        self._raw = world.raw
        super().__init__(
            address, SpaceConversion.of(world.observation_space, world.action_space), local=local, agents=world.names
        )

    def _schemas(self) -> dict[str, dict[str, Any]]:
        each = {name: http.schemas_of(*own) for name, own in self._raw.items()}
        found = copy.deepcopy(next(iter(each.values())))
        for kind in found.values():
            for key in {"observation", "action", "reward", "action_mask"} & set(kind["properties"]):
                of = {name: own["act"]["properties"].get(key, own["log_action"]["properties"][key])
                      for name, own in each.items()}  # fmt: skip
                kind["properties"][key] = http.an_object("", **of)
            kind["properties"]["ended"] = http.an_object("", **dict.fromkeys(self._raw, {"enum": list(_HOW)}))
        return found

    def description(self) -> dict[str, Any]:
        """What a client has to know."""
        told = {name: [http.plain_space(space) for space in own] for name, own in self._raw.items()}
        agents = {name: {"observation_space": seen, "action_space": action} for name, (seen, action) in told.items()}
        every = super().description()
        return {key: every[key] for key in ("protocol", "local", "limits")} | {"agents": agents}

    def _rewards(self, body: dict[str, Any], before: Any) -> Any:
        given, found = self._by_agent(body, "reward"), dict(before or {})
        for name in given:
            found[name] = found.get(name, 0.0) + http.number(given, name, 0.0)
        return found

    def _parsed(self, name: str, kind: str, body: dict[str, Any], reward: Any) -> Post:
        if kind == "log_action":
            raise Refused(422, "Actions of the client's own are for environments of one agent.")
        own, ends = self._open[name], kind == "end"
        world = own.world or self._world
        over = world.over
        observations = {
            agent: http.value_of(self._raw[agent][0], given, f"observation.{agent}")
            for agent, given in self._by_agent(body, "observation").items()
        }
        masks = self._by_agent(body, ACTION_MASK)
        infos = {agent: {ACTION_MASK: self._mask(agent, mask)} for agent, mask in masks.items()}
        ended = self._ended_now(body, ends, over)
        acting = tuple(agent for agent in observations if agent not in ended)
        if again := sorted(over & {*observations, *ended}):
            raise Refused(422, f"{again[0]} has ended before; an agent that ended takes no part in the rest.")
        if not (acting or ends):
            raise Refused(422, "observation: expected that of an agent at least that acts now; else end the episode.")
        world = world.before(AgentsStep(acting, observations, infos, reward, ended))
        with _refusing():
            if own.world is None:
                joined, each, terminated = world.reset()[0], np.zeros(len(world.names)), False
            else:
                joined, earned, terminated, *_ = world.step(np.zeros(world.action_space.shape or ()))
                each = earned.each
            seen = self._observations.gather([joined], [{}])
        own.world = world

        def plain(action: np.ndarray) -> Any:
            return {agent: http.plain(value) for agent, value in world.split(action[0], acting).items()}

        return Post("end" if ends else "act", name, seen, each[None], convert=plain, terminated=ends and terminated,
                    truncated=ends and not terminated)  # fmt: skip

    def _ended_now(self, body: dict[str, Any], ends: bool, over: set[str]) -> dict[str, int]:
        """Who ended with this post, and how: where the episode ends, everyone."""
        told = self._by_agent(body, "ended")
        for agent, how in told.items():
            if how not in _HOW:
                raise Refused(422, f"ended.{agent}: expected terminated or truncated; got {how!r:.80}.")
        found = {agent: _HOW[how] for agent, how in told.items()}
        if not ends:
            return found
        rest = joint.TERMINATED if _ending(body)[0] else joint.TRUNCATED
        return {agent: found.get(agent, rest) for agent in self._raw if agent not in over}

    def _by_agent(self, body: dict[str, Any], what: str) -> dict[str, Any]:
        """An object by agent of a body; {} where there is none."""
        given = body.get(what) or {}
        if not isinstance(given, dict) or not given.keys() <= self._raw.keys():
            raise Refused(422, f"{what}: expected an object by agent, of {', '.join(self._raw)}; got {given!r:.80}.")
        return given

    def _mask(self, agent: str, mask: Any) -> np.ndarray:
        return http.numbers(mask, f"action_mask.{agent}", (sum(choices(self._raw[agent][1])),)) != 0
