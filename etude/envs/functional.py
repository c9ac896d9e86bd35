"""Environments as pure functions of their state, written over `etude.ops`: of NumPy's numbers they are environments of
Gymnasium, and within a compiled rollout on JAX all are stepped in one program."""

from __future__ import annotations

import copyreg
import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np

from etude import ops
from etude.base import trees
from etude.base.errors import ConfigError, EnvironmentFault
from etude.base.spaces import Box, Discrete, MultiDiscrete, Space, zeros
from etude.base.trees import Tree
from etude.envs.faults import RAISED, cause_of, explain_error

Outcome = tuple[Tree, Any, Any, Any, Any, dict[str, Any]]  # what `step` returns


class FunctionalEnvironment:
    """The base of environments that are pure functions. Nothing resets itself: whoever steps does, and sees the last
    observation of each episode.

    params: what `reset` and `step` take as parameters: `Parameters`, a named tuple of numbers, changed by keywords.
    gymnasium_id: the environment of Gymnasium that draws the first part of its states; None: nothing does.
    """

    observation_space: Space
    action_space: Space
    Parameters: ClassVar[Any] = tuple
    gymnasium_id: ClassVar[str | None] = None

    def __init__(self, **changed: Any):
        self.params: Any = self.Parameters(**changed)

    def __reduce__(self) -> Any:
        """By class and attributes. Pure functions are not changed by what they did: equal ones share programs."""
        return copyreg.__newobj__, (type(self),), vars(self)  # type: ignore[attr-defined]

    def reset(self, key: Any, params: Any) -> tuple[Tree, Any]:
        """The observation and the state, a tree of arrays, that an episode begins with. key: what random numbers are
        drawn from, see `ops.uniform`."""
        raise NotImplementedError

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Outcome:
        """(observation, state, reward, terminated, truncated, info) after an action of `action_space`."""
        raise NotImplementedError


class AsGymnasium(gym.Env[Any, Any]):
    """A functional environment as one of Gymnasium's. Keys are NumPy's generator, so that a seed gives the first states
    that Gymnasium's own environment has."""

    def __init__(self, functional: FunctionalEnvironment, render_mode: str | None = None):
        self.functional: FunctionalEnvironment = functional
        self.observation_space, self.action_space = functional.observation_space, functional.action_space
        self.render_mode: str | None = render_mode
        self.metadata = {"render_modes": ["rgb_array", "human"] if functional.gymnasium_id else [], "render_fps": 30}
        self._drawn: Any = None  # Gymnasium's environment

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """See `gymnasium.Env`."""
        super().reset(seed=seed)
        observation, self._state = self.functional.reset(self.np_random, self.functional.params)
        return trees.map(np.asarray, observation), {}

    def step(self, action: Any) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env`."""
        action = trees.map(np.asarray, action)
        found = self.functional.step(self.np_random, self._state, action, self.functional.params)
        observation, self._state, reward, terminated, truncated, info = found
        return trees.map(np.asarray, observation), float(reward), bool(terminated), bool(truncated), info

    def render(self) -> Any:
        """What Gymnasium draws of this state."""
        if self.functional.gymnasium_id is None:
            raise ConfigError(f"{type(self.functional).__name__} does not render. Leave render_mode out.")
        if self._drawn is None:
            self._drawn = gym.make(self.functional.gymnasium_id, render_mode=self.render_mode).unwrapped
            self._drawn.reset()
        self._drawn.state = np.asarray(self._state[0])
        return self._drawn.render()

    def close(self) -> None:
        """See `gymnasium.Env`."""
        if self._drawn is not None:
            self._drawn.close()


def as_gymnasium(make: Callable[..., Any], render_mode: str | None = None, **parameters: Any) -> AsGymnasium:
    """The functional environment that `make` makes with these parameters, as one of Gymnasium's."""
    return AsGymnasium(make(**parameters), render_mode)


def _written_at(own: FunctionalEnvironment, name: str) -> str:
    """Where a method of a functional environment is written."""
    code = getattr(type(own), name).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def check_functional(own: FunctionalEnvironment) -> None:
    """Trace `reset` and `step` as a compiled rollout does. EnvironmentFault where they cannot be, or where their arrays
    do not fit each other or the space."""
    name, jax_ops = type(own).__name__, importlib.import_module("etude.ops.jax_ops")
    found: dict[str, Any] = {}
    for method, count in (("reset", 2), ("step", 6)):
        state = () if method == "reset" else (found["reset"][1], zeros(own.action_space))
        try:
            found[method] = jax_ops.traced(getattr(own, method), *state, own.params)
        except RAISED as problem:
            raise EnvironmentFault(
                f"{name}: {method} cannot be compiled: it raised {explain_error(problem)}. JAX sees no values: "
                "decide with ops.where in the place of `if`, and return arrays and numbers."
            ) from cause_of(problem)
        if len(found[method]) != count:
            expected = (
                "(observation, state)" if count == 2 else "(observation, state, reward, terminated, truncated, info)"
            )
            where = _written_at(own, method)
            raise EnvironmentFault(f"{name} ({where}): {method} returned {len(found[method])}; expected {expected}.")
    reset, step, space = found["reset"], found["step"], zeros(own.observation_space)
    shapes = [{leaf: shape for leaf, (shape, _) in jax_ops.leaves(tree).items()} for tree in (reset[0], space)]
    compared: Any = (
        ("the observation", *shapes, "reset", "observation_space"),
        ("the observation", jax_ops.leaves(reset[0]), jax_ops.leaves(step[0]), "reset", "step"),
        ("the state", jax_ops.leaves(reset[1]), jax_ops.leaves(step[1]), "reset", "step"),
    )
    for what, one, other, first, then in compared:
        for leaf in {**one, **other}:
            got = [each.get(leaf, "absent") for each in (one, other)]
            if got[0] != got[1]:
                where = _written_at(own, "reset" if then == "observation_space" else "step")
                raise EnvironmentFault(
                    f"{name} ({where}): {what}{leaf} is {got[0]} in {first} and {got[1]} in {then}. Make them agree."
                )


def check_finite_rows(own: FunctionalEnvironment, rows: dict[str, Any]) -> None:
    """EnvironmentFault where rewards or observations [T, N, ...] are not finite."""
    for what in ("observation", "last", "reward"):
        for path, leaf in trees.items(rows[what]):
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                t, n = np.argwhere(~np.isfinite(leaf))[0][:2]
                raise EnvironmentFault(
                    f"{type(own).__name__} ({_written_at(own, 'step')}): the {what}{path} of environment {n} is not "
                    f"finite at time step {t} of this rollout. Guard what can divide by zero or overflow."
                )


class Timed(FunctionalEnvironment):
    """A task in three functions of its state, with a time limit: `max_steps` of its parameters, `math.inf` for none."""

    def begin(self, key: Any, params: Any) -> Any:
        """The state that an episode begins with."""
        raise NotImplementedError

    def move(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Any, Any]:
        """(state, reward, terminated) after an action."""
        raise NotImplementedError

    def observe(self, state: Any) -> Any:
        """What agents see of a state."""
        return ops.cast(state, "float32")

    def reset(self, key: Any, params: Any) -> tuple[Any, Any]:
        state = self.begin(key, params)
        return self.observe(state), (state, 0)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Outcome:
        (before, time) = state[0], state[1] + 1
        after, reward, terminated = self.move(key, before, action, params)
        return self.observe(after), (after, time), reward, terminated, time >= params.max_steps, {}


class CartPoleParameters(NamedTuple):
    gravity: float = 9.8
    cart_mass: float = 1.0
    pole_mass: float = 0.1
    length: float = 0.5  # half of the pole's
    force: float = 10.0
    seconds: float = 0.02  # between two steps
    max_steps: float = 500


class CartPole(Timed):
    """Gymnasium's CartPole-v1: its equations, numbers and first states. Barto, Sutton & Anderson 1983,
    doi:10.1109/TSMC.1983.6313077."""

    Parameters = CartPoleParameters
    gymnasium_id = "CartPole-v1"
    _HIGH = np.array([4.8, np.inf, 24 * math.pi / 180, np.inf], np.float32)
    observation_space = Box(-_HIGH, _HIGH)
    action_space = Discrete(2)

    def begin(self, key: Any, params: Any) -> Any:
        return ops.uniform(key, -0.05, 0.05, (4,))

    def move(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Any, Any]:
        x, velocity, angle, turning = state
        force = ops.where(action == 1, params.force, -params.force)
        cos, sin = ops.cos(angle), ops.sin(angle)
        mass, moment = params.pole_mass + params.cart_mass, params.pole_mass * params.length
        pushed = (force + moment * ops.square(turning) * sin) / mass
        leaning = (params.gravity * sin - cos * pushed) / (
            params.length * (4.0 / 3.0 - params.pole_mass * ops.square(cos) / mass)
        )
        moving = pushed - moment * leaning * cos / mass
        dt = params.seconds
        x, angle = x + dt * velocity, angle + dt * turning
        terminated = (ops.abs(x) > 2.4) | (ops.abs(angle) > 12 * 2 * math.pi / 360)
        return ops.stack([x, velocity + dt * moving, angle, turning + dt * leaning]), 1.0, terminated


def _wrapped(angle: Any) -> Any:
    """The angle from -pi to pi."""
    return (angle + math.pi) % (2 * math.pi) - math.pi


class SwingParameters(NamedTuple):
    """torque: the largest."""

    gravity: float = 10.0
    torque: float = 2.0
    seconds: float = 0.05
    max_steps: float = 200


class Pendulum(Timed):
    """Gymnasium's Pendulum-v1."""

    Parameters = SwingParameters
    gymnasium_id = "Pendulum-v1"
    _HIGH = np.array([1, 1, 8], np.float32)
    observation_space = Box(-_HIGH, _HIGH)
    action_space = Box(-2.0, 2.0, (1,))

    def begin(self, key: Any, params: Any) -> Any:
        high = np.array([math.pi, 1.0])
        return ops.uniform(key, -high, high, (2,))

    def move(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Any, Any]:
        (angle, turning), torque = state, ops.clip(action, -params.torque, params.torque)[0]
        cost = ops.square(_wrapped(angle)) + 0.1 * ops.square(turning) + 0.001 * ops.square(torque)
        turning = turning + params.seconds * (1.5 * params.gravity * ops.sin(angle) + 3.0 * torque)
        turning = ops.clip(turning, -8.0, 8.0)
        return ops.stack([angle + params.seconds * turning, turning]), -cost, False

    def observe(self, state: Any) -> Any:
        return ops.cast(ops.stack([ops.cos(state[0]), ops.sin(state[0]), state[1]]), "float32")


class MountainCarParameters(NamedTuple):
    force: float = 0.001
    gravity: float = 0.0025
    goal: float = 0.5
    max_steps: float = 200


class MountainCar(Timed):
    """Gymnasium's MountainCar-v0. Moore 1990, Efficient Memory-based Learning for Robot Control."""

    Parameters: ClassVar[Any] = MountainCarParameters
    gymnasium_id = "MountainCar-v0"
    _HIGH = np.array([0.6, 0.07], np.float32)
    observation_space = Box(np.array([-1.2, -0.07], np.float32), _HIGH)
    action_space: Space = Discrete(3)

    def begin(self, key: Any, params: Any) -> Any:
        position = ops.uniform(key, -0.6, -0.4, ())
        return ops.stack([position, 0.0 * position])

    def move(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Any, Any]:
        state, there = self.driven(state, (action - 1) * params.force, params)
        return state, -1.0, there

    def driven(self, state: Any, force: Any, params: Any) -> tuple[Any, Any]:
        """(the state after a force, whether it is the goal)."""
        position, velocity = state
        velocity = ops.clip(velocity + force - params.gravity * ops.cos(3 * position), -0.07, 0.07)
        position = ops.clip(position + velocity, -1.2, 0.6)
        velocity = ops.where((position <= -1.2) & (velocity < 0), 0.0 * velocity, velocity)
        return ops.stack([position, velocity]), (position >= params.goal) & (velocity >= 0)


class MountainCarContinuous(MountainCar):
    """Gymnasium's MountainCarContinuous-v0."""

    Parameters = partial(MountainCarParameters, force=0.0015, goal=0.45, max_steps=999)
    gymnasium_id = "MountainCarContinuous-v0"
    action_space = Box(-1.0, 1.0, (1,))

    def move(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Any, Any]:
        state, there = self.driven(state, ops.clip(action, -1.0, 1.0)[0] * params.force, params)
        return ops.cast(state, "float32"), ops.where(there, 100.0, 0.0) - 0.1 * ops.square(action[0]), there


class Acrobot(Timed):
    """Gymnasium's Acrobot-v1: two links of a length of 1, a mass of 1 and a moment of inertia of 1, the equations of
    Sutton & Barto's book, integrated by Runge and Kutta's fourth order. Sutton 1996, Generalization in Reinforcement
    Learning."""

    Parameters = partial(SwingParameters, gravity=9.8, torque=1.0, seconds=0.2, max_steps=500)
    gymnasium_id = "Acrobot-v1"
    _HIGH = np.array([1, 1, 1, 1, 4 * math.pi, 9 * math.pi], np.float32)
    observation_space = Box(-_HIGH, _HIGH)
    action_space = Discrete(3)

    def begin(self, key: Any, params: Any) -> Any:
        return ops.cast(ops.uniform(key, -0.1, 0.1, (4,)), "float32")

    def move(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Any, Any]:
        torque, dt = (action - 1) * params.torque, params.seconds
        k1 = self._slope(state, torque, params)
        k2 = self._slope(state + dt / 2 * k1, torque, params)
        k3 = self._slope(state + dt / 2 * k2, torque, params)
        k4 = self._slope(state + dt * k3, torque, params)
        first, second, *turning = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        first, second = _wrapped(first), _wrapped(second)
        terminated = -ops.cos(first) - ops.cos(second + first) > 1.0
        fast = [ops.clip(x, -most * math.pi, most * math.pi) for x, most in zip(turning, (4, 9), strict=True)]
        return ops.stack([first, second, *fast]), ops.where(terminated, 0.0, -1.0), terminated

    def _slope(self, state: Any, torque: Any, params: Any) -> Any:
        first, second, turning, bending = state
        cos, sin, g = ops.cos(second), ops.sin(second), params.gravity
        d1, d2 = 3.5 + cos, 1.25 + 0.5 * cos
        phi2 = 0.5 * g * ops.cos(first + second - math.pi / 2)
        phi1 = (
            -0.5 * sin * (ops.square(bending) + 2 * bending * turning) + 1.5 * g * ops.cos(first - math.pi / 2) + phi2
        )
        bent = (torque + d2 / d1 * phi1 - 0.5 * ops.square(turning) * sin - phi2) / (1.25 - ops.square(d2) / d1)
        return ops.stack([turning, bending, -(d2 * bent + phi1) / d1, bent])

    def observe(self, state: Any) -> Any:
        first, second, *turning = state
        seen = [ops.cos(first), ops.sin(first), ops.cos(second), ops.sin(second), *turning]
        return ops.cast(ops.stack(seen), "float32")


class GameParameters(NamedTuple):
    """noise: the probability that chance decides: a move to another side in a grid, the previous action again in
    Breakout, whether an arm pays in a bandit."""

    noise: float = 0.0
    max_steps: float = 100


class Grid(Timed):
    """Go up, right, down or left to G, from any other cell; walls stay in the way. The reward is 1 there and 0
    elsewhere. Observations are (row, column)."""

    Parameters = GameParameters
    MAP: ClassVar[tuple[str, ...]] = ("xxxxxxxx", *["x......x"] * 5, "x.....Gx", "xxxxxxxx")
    action_space = Discrete(4)

    def __init__(self, **changed: Any):
        super().__init__(**changed)
        cells = np.array([list(row) for row in self.MAP])
        self._floor, self._starts = (cells != "x").astype(np.float32), np.argwhere(cells == ".").astype(np.float32)
        self._goal = np.argwhere(cells == "G")[0]
        self.observation_space = MultiDiscrete(np.array(cells.shape), dtype=np.int32)

    def begin(self, key: Any, params: Any) -> Any:
        count = len(self._starts)
        drawn = ops.cast(ops.uniform(key, 0.0, count, ()), "int32")
        return ops.cast(ops.sum(ops.one_hot(drawn, count)[:, None] * self._starts, 0), "int32")

    def move(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Any, Any]:
        slipped, other = ops.uniform(key, 0.0, 1.0, (2,))
        way = (action + ops.where(slipped < params.noise, 1 + ops.cast(3 * other, "int32"), 0)) % 4
        row = state[0] + ops.where(way == 0, -1, ops.where(way == 2, 1, 0))
        column = state[1] + ops.where(way == 3, -1, ops.where(way == 1, 1, 0))
        rows, columns = self._floor.shape
        free = ops.sum(ops.one_hot(row, rows)[:, None] * ops.one_hot(column, columns) * self._floor) > 0
        after = ops.where(free, ops.cast(ops.stack([row, column]), "int32"), state)
        there = (after[0] == self._goal[0]) & (after[1] == self._goal[1])
        return after, ops.where(there, 1.0, 0.0), there

    def observe(self, state: Any) -> Any:
        return state


class FourRooms(Grid):
    """The grid of Sutton, Precup & Singh 1999, doi:10.1016/S0004-3702(99)00052-1, figure 2, with the goal G1 in a
    hallway. There a third of all moves slip: `noise=1 / 3`."""

    MAP = (
        "xxxxxxxxxxxxx", "x.....x.....x", "x.....x.....x", "x...........x", "x.....x.....x", "x.....x.....x",
        "xx.xxxx.....x", "x.....xxxGxxx", "x.....x.....x", "x.....x.....x", "x...........x", "x.....x.....x",
        "xxxxxxxxxxxxx",
    )  # fmt: skip


class Breakout(Timed):
    """Breakout by the rules of MinAtar, with its minimal actions: stay, left, right. Young & Tian 2019,
    arXiv:1903.03176. Images of 10 x 10 have the channels paddle, ball, its last place, and bricks.

    A state is the column of the paddle, the ball (column, row), the way that it goes, its last place, the bricks
    [10, 10], whether its last step met a brick (it then goes through the next), and the last action.
    """

    Parameters = partial(GameParameters, noise=0.1, max_steps=1_000)
    observation_space = Box(0, 255, (10, 10, 4), np.uint8)
    action_space = Discrete(3)
    _WALL = np.repeat(np.array([0, 1, 1, 1, 0, 0, 0, 0, 0, 0], np.float32)[:, None], 10, 1)

    def begin(self, key: Any, params: Any) -> Any:
        draw = ops.uniform(key, 0.0, 1.0, ())
        one = ops.cast(ops.ones_like(draw), "int32")
        right = ops.cast(draw < 0.5, "int32")
        ball, way = ops.stack([9 * right, 3 * one]), ops.stack([one - 2 * right, one])
        return 4 * one, ball, way, ball, self._WALL * ops.ones_like(draw), one < 0, 0 * one

    def move(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Any, Any]:
        paddle, ball, (dx, dy), _, bricks, struck, before = state
        action = ops.where(ops.uniform(key, 0.0, 1.0, ()) < params.noise, before, ops.cast(action, "int32"))
        paddle = ops.clip(paddle + ops.where(action == 2, 1, action * -1), 0, 9)
        x, y = ball[0] + dx, ball[1] + dy
        dx, x = ops.where((x < 0) | (x > 9), -dx, dx), ops.clip(x, 0, 9)
        met = _cell(x, y)
        brick, bottom = ops.sum(met * bricks) > 0, y == 9
        broken, middle = brick & ~struck, bottom & (ball[0] == paddle)
        side = bottom & ~middle & (x == paddle)
        back = broken | middle | side
        whole = bottom & (ops.sum(bricks) == 0)
        bricks = ops.where(whole, self._WALL, ops.where(broken, bricks * (1 - met), bricks))
        way = ops.stack([ops.where(side, -dx, dx), ops.where(back | (y < 0), -dy, dy)])
        after = ops.stack([x, ops.where(back, ball[1], ops.maximum(y, 0))])
        return (paddle, after, way, ball, bricks, brick, action), ops.where(broken, 1.0, 0.0), bottom & ~back

    def observe(self, state: Any) -> Any:
        paddle, ball, _, last, bricks, *_ = state
        planes = [_cell(paddle, 9 + 0 * paddle), _cell(*ball), _cell(*last), bricks]
        return ops.cast(255 * ops.stack(planes, -1), "uint8")


def _cell(x: Any, y: Any) -> Any:
    """[10, 10] with a 1 in this column and row, if they are inside."""
    return ops.one_hot(y, 10)[:, None] * ops.one_hot(x, 10)


class Bandit(Timed):
    """Arms with a reward of 1 or 0, whose probabilities are drawn anew for each episode, evenly from [0, 1]: for agents
    with a memory, which see the last arm [arms] and its reward. Duan et al. 2016, arXiv:1611.02779."""

    Parameters = GameParameters

    def __init__(self, arms: int = 5, **changed: Any):
        super().__init__(**changed)
        self.observation_space, self.action_space, self.arms = Box(0.0, 1.0, (arms + 1,)), Discrete(arms), arms

    def begin(self, key: Any, params: Any) -> Any:
        chances = ops.cast(ops.uniform(key, 0.0, 1.0, (self.arms,)), "float32")
        return chances, ops.concatenate([0 * chances, 0 * chances[:1]])

    def move(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Any, Any]:
        chances, arm = state[0], ops.one_hot(action, self.arms)
        chance = params.noise / 2 + (1 - params.noise) * ops.sum(arm * chances)
        won = ops.where(ops.uniform(key, 0.0, 1.0, (1,)) < chance, 1.0, 0.0)
        return (chances, ops.concatenate([arm, won])), won[0], False

    def observe(self, state: Any) -> Any:
        return state[1]


FUNCTIONAL: dict[str, type[FunctionalEnvironment]] = {
    **{
        f"functional:{kind.gymnasium_id}": kind
        for kind in (CartPole, Pendulum, MountainCar, MountainCarContinuous, Acrobot)
    },
    "functional:Grid-v0": Grid,
    "functional:FourRooms-v0": FourRooms,
    "functional:Breakout-v0": Breakout,
    "functional:Bandit-v0": Bandit,
}
"""Etude's own, by the names that runs take."""
