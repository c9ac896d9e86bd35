"""The list that every engine's tests run through: algorithms, spaces and networks, and random batches for them."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from etude import ByEmbedding, Conv, Mlp, Policies, Recurrent, engines
from etude.agent import Agent
from etude.algorithms import (
    A2CConfig,
    A3CConfig,
    AIRLConfig,
    ApexDDPGConfig,
    ApexDQNConfig,
    APPOConfig,
    BCConfig,
    C51Config,
    CQLConfig,
    DDPGConfig,
    DiscreteSACConfig,
    DistributionSpec,
    DQNConfig,
    GAILConfig,
    IMPALAConfig,
    IQLConfig,
    MADDPGConfig,
    MAPPOConfig,
    MARWILConfig,
    MATD3Config,
    PPOConfig,
    QRDQNConfig,
    R2D2Config,
    RainbowConfig,
    RecurrentPPOConfig,
    ReinforceConfig,
    SACConfig,
    TD3BCConfig,
    TD3Config,
    find,
)
from etude.base import trees
from etude.base.data import Batch
from etude.base.optimizers import SGD, Adam, AdamW, Lion, RMSProp
from etude.base.schedules import Linear, at
from etude.base.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Spaces, Tuple
from etude.engines.numpy import NumpyEngine
from etude.multi_agent.joint import joined_spaces
from etude.protocols import Explorer
from etude.training.build import best_for, multi_agent_for
from etude.training.build.exploration import explorer_for

VECTOR = Box(-1.0, 1.0, (5,), np.float32)
IMAGE = Box(0, 255, (12, 12, 2), np.uint8)
NESTED = Dict({"place": Tuple([Discrete(3), MultiDiscrete([2, 4])]), "switches": MultiBinary(3), "speed": VECTOR})
MASKED = Dict({"observation": VECTOR, "action_mask": MultiBinary(3)})
FRAMES = Dict({"camera": Box(0, 255, (3, 12, 12), np.uint8), "speed": Box(-1.0, 1.0, (3, 5), np.float32)})  # stacks
CAMERA = Dict({"camera": IMAGE, "speed": VECTOR})
SMALL_CONV = Conv(((4, 4, 2), (8, 3, 1)), (16,))


@dataclass(frozen=True)
class Case:
    """One algorithm on one pair of spaces."""

    name: str
    algorithm: str
    spaces: Spaces
    config: Any
    policies: Any = None

    def agent(self) -> Agent:
        agent = find(self.algorithm)[0](self.config)
        return agent if self.spaces.agents is None else multi_agent_for(agent, self.spaces, self.policies)

    def explorers(self) -> tuple[Explorer, Explorer]:
        """What takes the best actions, and what explores."""
        return best_for(self.agent(), self.spaces), explorer_for(self.agent(), self.spaces, None, 1, 1)

    def hyper(self, **changes: float) -> dict[str, float]:
        """What the config says, but for some numbers that make a few gradient steps tell more."""
        values = {field.name: getattr(self.config, field.name) for field in dataclasses.fields(self.config)}
        found = {name: at(value, 0, 1) for name, value in values.items() if isinstance(value, float | Linear)}
        found |= {name: getattr(self.config, name, 1) for name in ("policy_delay", "discriminator_every")}
        found |= {"learning_rate": 1e-3, "gamma": 0.9, "target_update_every": 3, "tau": 0.05, "temperature": 0.5}
        found |= {"gae_lambda": 0.9, "trace_lambda": 0.9, "entropy_coefficient": 0.01, "max_gradient_norm": 0.5}
        return found | changes


BOX2 = Box(-1.0, 1.0, (2,), np.float32)
NARROW = Mlp((16, 16))
PAIR = joined_spaces({name: Spaces(MASKED, Discrete(3)) for name in ("ann", "bob")})
STATED = joined_spaces({name: Spaces(MASKED, Discrete(3)) for name in ("ann", "bob")}, state=VECTOR)
ARMS_STATED = joined_spaces({name: Spaces(VECTOR, BOX2) for name in ("left", "right")}, state=NESTED)
ARMS = joined_spaces({name: Spaces(VECTOR, BOX2) for name in ("left", "right")})
UNLIKE = joined_spaces({"arm": Spaces(NESTED, BOX2), "switch": Spaces(MASKED, Discrete(3))})
DESCRIBED = Dict({"actions": Box(-1.0, 1.0, (3, 4), np.float32), "observation": VECTOR, "action_mask": MultiBinary(3)})
BY_EMBEDDING = ByEmbedding(network=NARROW)
BETA, MIXTURE = DistributionSpec("beta"), DistributionSpec("mixture", components=2)
BETAS, CONDITIONAL = DistributionSpec("mixture", component="beta"), DistributionSpec("conditional", hidden=(8, 8))
REMEMBERING = Recurrent(Mlp((16,)), 8, widths=(8,))
CASES = [
    Case("dqn", "dqn", Spaces(VECTOR, Discrete(3)), DQNConfig(network=NARROW, double=False)),
    Case("double dqn, masked", "dqn", Spaces(MASKED, Discrete(3)), DQNConfig(network=NARROW, double=True)),
    Case("dqn on images", "dqn", Spaces(IMAGE, Discrete(3)), DQNConfig(network=SMALL_CONV)),
    Case("dqn on shifted images", "dqn", Spaces(IMAGE, Discrete(3)), DQNConfig(network=SMALL_CONV, random_shift=4)),
    Case("dqn on stacked frames", "dqn", Spaces(FRAMES, Discrete(3)), DQNConfig(network=SMALL_CONV)),
    Case("dqn on nested", "dqn", Spaces(NESTED, Discrete(3)), DQNConfig(network=NARROW, max_gradient_norm=None)),
    Case("ppo discrete", "ppo", Spaces(VECTOR, Discrete(3)), PPOConfig(network=Mlp((16,), "tanh", "orthogonal"))),
    Case("ppo multidiscrete", "ppo", Spaces(NESTED, MultiDiscrete([2, 3])), PPOConfig(network=NARROW)),
    Case("ppo multibinary", "ppo", Spaces(VECTOR, MultiBinary(3)), PPOConfig(network=NARROW)),
    Case("ppo box, normalised", "ppo", Spaces(VECTOR, BOX2), PPOConfig(network=NARROW, normalize_observation=True)),
    Case("ppo masked", "ppo", Spaces(MASKED, Discrete(3)), PPOConfig(network=NARROW, max_gradient_norm=None)),
    Case("ppo on images", "ppo", Spaces(IMAGE, Discrete(3)), PPOConfig(network=SMALL_CONV)),
    Case("sac", "sac", Spaces(VECTOR, BOX2), SACConfig(network=NARROW)),
    Case("sac on images", "sac", Spaces(IMAGE, BOX2), SACConfig(network=SMALL_CONV)),
    Case("sac on a camera and a vector", "sac", Spaces(CAMERA, BOX2), SACConfig(network=SMALL_CONV)),
    Case("sac on shifted images", "sac", Spaces(CAMERA, BOX2), SACConfig(network=SMALL_CONV, random_shift=2)),
    Case("sac, fixed temperature", "sac", Spaces(NESTED, BOX2), SACConfig(network=NARROW, learn_temperature=False)),
    Case(
        "sac, bounded",
        "sac",
        Spaces(VECTOR, BOX2),
        SACConfig(network=NARROW, max_gradient_norm=1.0, optimizer=Adam(0.5)),
    ),
    Case("sac, gsde", "sac", Spaces(NESTED, BOX2), SACConfig(network=NARROW, gsde=True)),
    Case("sac on images, gsde", "sac", Spaces(IMAGE, BOX2), SACConfig(network=SMALL_CONV, gsde=True)),
    Case("ppo box, gsde", "ppo", Spaces(VECTOR, BOX2), PPOConfig(network=NARROW, gsde=True)),
    Case("bc box", "bc", Spaces(VECTOR, BOX2), BCConfig(network=NARROW, normalize_observation=True)),
    Case("bc box, squared error", "bc", Spaces(NESTED, BOX2), BCConfig(network=NARROW, squared_error=True)),
    Case("bc masked", "bc", Spaces(MASKED, Discrete(3)), BCConfig(network=NARROW)),
    Case("bc multidiscrete", "bc", Spaces(VECTOR, MultiDiscrete([2, 3])), BCConfig(network=NARROW)),
    Case("bc multibinary", "bc", Spaces(VECTOR, MultiBinary(3)), BCConfig(network=NARROW)),
    Case("cql discrete", "cql", Spaces(MASKED, Discrete(3)), CQLConfig(network=NARROW)),
    Case("cql box", "cql", Spaces(VECTOR, BOX2), CQLConfig(network=NARROW, samples=3)),
    Case("cql box, lagrange", "cql", Spaces(NESTED, BOX2), CQLConfig(network=NARROW, samples=2, target_gap=1.0)),
    Case("cql discrete on images", "cql", Spaces(IMAGE, Discrete(3)), CQLConfig(network=SMALL_CONV)),
    Case("cql box on images", "cql", Spaces(IMAGE, BOX2), CQLConfig(network=SMALL_CONV, samples=2)),
    Case("iql discrete", "iql", Spaces(NESTED, Discrete(3)), IQLConfig(network=NARROW)),
    Case("iql box", "iql", Spaces(VECTOR, BOX2), IQLConfig(network=NARROW)),
    Case("marwil discrete", "marwil", Spaces(MASKED, Discrete(3)), MARWILConfig(network=NARROW)),
    Case("marwil box", "marwil", Spaces(VECTOR, BOX2), MARWILConfig(network=NARROW)),
    Case("td3_bc", "td3_bc", Spaces(VECTOR, BOX2), TD3BCConfig(network=NARROW)),
    Case("ddpg", "ddpg", Spaces(NESTED, BOX2), DDPGConfig(network=NARROW)),
    Case("ddpg on images", "ddpg", Spaces(IMAGE, BOX2), DDPGConfig(network=SMALL_CONV)),
    Case("td3", "td3", Spaces(VECTOR, BOX2), TD3Config(network=NARROW)),
    Case("td3, bounded", "td3", Spaces(NESTED, BOX2), TD3Config(network=NARROW, policy_delay=1, max_gradient_norm=1.0)),
    Case("td3 on images", "td3", Spaces(IMAGE, BOX2), TD3Config(network=SMALL_CONV, normalize_observation=True)),
    Case("td3 on shifted images", "td3", Spaces(IMAGE, BOX2), TD3Config(network=SMALL_CONV, random_shift=4)),
    Case("discrete sac", "discrete_sac", Spaces(VECTOR, Discrete(3)), DiscreteSACConfig(network=NARROW)),
    Case("discrete sac on images", "discrete_sac", Spaces(IMAGE, Discrete(3)), DiscreteSACConfig(network=SMALL_CONV)),
    Case(
        "discrete sac, masked",
        "discrete_sac",
        Spaces(MASKED, Discrete(3)),
        DiscreteSACConfig(network=NARROW, learn_temperature=False),
    ),
    Case("r2d2, masked", "r2d2", Spaces(MASKED, Discrete(3)), R2D2Config(network=REMEMBERING, n_step=3)),
    Case(
        "r2d2 on images, from zeros",
        "r2d2",
        Spaces(IMAGE, Discrete(3)),
        R2D2Config(network=Recurrent(SMALL_CONV, 8), stored_state=False, max_gradient_norm=None),
    ),
    Case(
        "r2d2 on nested, rescaled",
        "r2d2",
        Spaces(NESTED, Discrete(3)),
        R2D2Config(network=Recurrent(NARROW, 8, "lstm"), rescale_values=True, normalize_observation=True),
    ),
    Case(
        "dqn, dueling and noisy, masked",
        "dqn",
        Spaces(MASKED, Discrete(3)),
        DQNConfig(network=Mlp((16, 16), dueling=True, noisy=0.5)),
    ),
    Case(
        "dqn on images, dueling and noisy",
        "dqn",
        Spaces(IMAGE, Discrete(3)),
        DQNConfig(network=Conv(((4, 4, 2),), (16,), dueling=True, noisy=0.5), double=False),
    ),
    Case("c51", "c51", Spaces(VECTOR, Discrete(3)), C51Config(network=NARROW, atoms=11, v_min=-2.0, v_max=2.0)),
    Case("c51, double, masked", "c51", Spaces(MASKED, Discrete(3)), C51Config(network=NARROW, atoms=11, double=True)),
    Case("c51 on images", "c51", Spaces(IMAGE, Discrete(3)), C51Config(network=SMALL_CONV, atoms=11)),
    Case("qr_dqn", "qr_dqn", Spaces(VECTOR, Discrete(3)), QRDQNConfig(network=NARROW, quantiles=8)),
    Case(
        "qr_dqn, double, masked",
        "qr_dqn",
        Spaces(MASKED, Discrete(3)),
        QRDQNConfig(network=NARROW, quantiles=8, double=True),
    ),
    Case("c51 on shifted images", "c51", Spaces(IMAGE, Discrete(3)), C51Config(network=SMALL_CONV, random_shift=1)),
    Case("qr_dqn on images", "qr_dqn", Spaces(IMAGE, Discrete(3)), QRDQNConfig(network=SMALL_CONV, quantiles=8)),
    Case(
        "rainbow",
        "rainbow",
        Spaces(NESTED, Discrete(3)),
        RainbowConfig(network=Mlp((16, 16), dueling=True, noisy=0.5), atoms=11, v_min=-2.0, v_max=2.0),
    ),
    Case("apex_dqn", "apex_dqn", Spaces(VECTOR, Discrete(3)), ApexDQNConfig(network=Mlp((16, 16), dueling=True))),
    Case("apex_ddpg", "apex_ddpg", Spaces(VECTOR, BOX2), ApexDDPGConfig(network=NARROW)),
    Case("a2c discrete", "a2c", Spaces(MASKED, Discrete(3)), A2CConfig(network=NARROW)),
    Case("a2c multibinary", "a2c", Spaces(VECTOR, MultiBinary(3)), A2CConfig(network=NARROW)),
    Case("a2c box", "a2c", Spaces(NESTED, BOX2), A2CConfig(network=NARROW, normalize_advantage=True)),
    Case("a2c box, gsde", "a2c", Spaces(VECTOR, BOX2), A2CConfig(network=NARROW, gsde=True)),
    Case("a3c discrete", "a3c", Spaces(MASKED, Discrete(3)), A3CConfig(network=NARROW)),
    Case("a3c box", "a3c", Spaces(NESTED, BOX2), A3CConfig(network=NARROW, max_gradient_norm=None)),
    Case(
        "ppo with a penalty",
        "ppo",
        Spaces(VECTOR, Discrete(3)),
        PPOConfig(network=NARROW, objective="penalty", value_clip_range=0.2, normalize_value=True),
    ),
    Case(
        "recurrent_ppo, masked",
        "recurrent_ppo",
        Spaces(MASKED, Discrete(3)),
        RecurrentPPOConfig(network=REMEMBERING, value_clip_range=0.2),
    ),
    Case(
        "recurrent_ppo box on nested",
        "recurrent_ppo",
        Spaces(NESTED, BOX2),
        RecurrentPPOConfig(network=Recurrent(NARROW, 8, "lstm"), normalize_observation=True),
    ),
    Case(
        "recurrent_ppo multidiscrete on images",
        "recurrent_ppo",
        Spaces(IMAGE, MultiDiscrete([2, 3])),
        RecurrentPPOConfig(network=Recurrent(SMALL_CONV, 8), max_gradient_norm=None),
    ),
    Case("impala discrete", "impala", Spaces(MASKED, Discrete(3)), IMPALAConfig(network=NARROW)),
    Case("impala multidiscrete", "impala", Spaces(NESTED, MultiDiscrete([2, 3])), IMPALAConfig(network=NARROW)),
    Case("appo discrete", "appo", Spaces(VECTOR, Discrete(3)), APPOConfig(network=NARROW, kl_coefficient=0.5)),
    Case("appo box", "appo", Spaces(VECTOR, BOX2), APPOConfig(network=NARROW, normalize_observation=True)),
    Case("reinforce discrete", "reinforce", Spaces(MASKED, Discrete(3)), ReinforceConfig(network=NARROW)),
    Case("reinforce box, bare", "reinforce", Spaces(VECTOR, BOX2), ReinforceConfig(network=NARROW, baseline=False)),
    Case("gail discrete", "gail", Spaces(VECTOR, Discrete(3)), GAILConfig(network=NARROW)),
    Case("gail box", "gail", Spaces(NESTED, BOX2), GAILConfig(network=NARROW)),
    Case("gail on images", "gail", Spaces(IMAGE, Discrete(3)), GAILConfig(network=SMALL_CONV, reward_form="log D")),
    Case("gail multibinary", "gail", Spaces(VECTOR, MultiBinary(3)), GAILConfig(network=NARROW)),
    Case("airl discrete", "airl", Spaces(MASKED, Discrete(3)), AIRLConfig(network=NARROW, state_only=True)),
    Case("airl box", "airl", Spaces(VECTOR, BOX2), AIRLConfig(network=NARROW, normalize_observation=False)),
    Case("ppo beta", "ppo", Spaces(VECTOR, BOX2), PPOConfig(network=NARROW, distribution=BETA)),
    Case("ppo mixture", "ppo", Spaces(NESTED, BOX2), PPOConfig(network=NARROW, distribution=MIXTURE)),
    Case("ppo conditional", "ppo", Spaces(VECTOR, MultiDiscrete([2, 3])), PPOConfig(distribution=CONDITIONAL)),
    Case("a2c mixture of betas", "a2c", Spaces(VECTOR, BOX2), A2CConfig(network=NARROW, distribution=BETAS)),
    Case("appo beta", "appo", Spaces(VECTOR, BOX2), APPOConfig(network=NARROW, distribution=BETA, kl_coefficient=0.5)),
    Case("appo mixture", "appo", Spaces(VECTOR, BOX2), APPOConfig(distribution=MIXTURE, kl_coefficient=0.5)),
    Case(
        "appo conditional",
        "appo",
        Spaces(NESTED, MultiBinary(3)),
        APPOConfig(network=NARROW, distribution=CONDITIONAL, kl_coefficient=0.5),
    ),
    Case("bc mixture", "bc", Spaces(VECTOR, BOX2), BCConfig(network=NARROW, distribution=MIXTURE)),
    Case("marwil conditional", "marwil", Spaces(VECTOR, MultiDiscrete([2, 3])), MARWILConfig(distribution=CONDITIONAL)),
    Case("iql beta", "iql", Spaces(VECTOR, BOX2), IQLConfig(network=NARROW, distribution=BETA)),
    Case(
        "recurrent_ppo conditional",
        "recurrent_ppo",
        Spaces(VECTOR, MultiDiscrete([2, 3])),
        RecurrentPPOConfig(network=REMEMBERING, distribution=CONDITIONAL),
    ),
    Case("dqn by embedding, masked", "dqn", Spaces(DESCRIBED, Discrete(3)), DQNConfig(network=BY_EMBEDDING)),
    Case(
        "ppo by embedding, masked",
        "ppo",
        Spaces(DESCRIBED, Discrete(3)),
        PPOConfig(network=BY_EMBEDDING, normalize_observation=False),
    ),
    Case("c51 by embedding", "c51", Spaces(DESCRIBED, Discrete(3)), C51Config(network=BY_EMBEDDING, atoms=11)),
    Case("dqn, several", "dqn", PAIR, DQNConfig(network=NARROW), Policies("shared", identity=True)),
    Case("ppo, several", "ppo", UNLIKE, PPOConfig(network=NARROW, normalize_observation=True)),
    Case("td3, several", "td3", ARMS, TD3Config(network=NARROW)),
    Case("maddpg", "maddpg", UNLIKE, MADDPGConfig(network=NARROW)),
    Case("maddpg discrete", "maddpg", PAIR, MADDPGConfig(network=NARROW, max_gradient_norm=None)),
    Case("matd3", "matd3", ARMS, MATD3Config(network=NARROW)),
    Case("mappo", "mappo", UNLIKE, MAPPOConfig(network=NARROW)),
    Case(
        "dqn, rmsprop", "dqn", Spaces(VECTOR, Discrete(3)), DQNConfig(network=NARROW, optimizer=RMSProp(centered=True))
    ),
    Case("ppo, sgd", "ppo", Spaces(VECTOR, BOX2), PPOConfig(network=NARROW, optimizer=SGD(0.9, nesterov=True))),
    Case("sac, adamw", "sac", Spaces(VECTOR, BOX2), SACConfig(network=NARROW, optimizer=AdamW())),
    Case("td3, lion", "td3", Spaces(VECTOR, BOX2), TD3Config(network=NARROW, optimizer=Lion(weight_decay=0.1))),
    Case("mappo, shared", "mappo", PAIR, MAPPOConfig(network=NARROW), Policies("shared", identity=True)),
    Case(
        "mappo, state", "mappo", STATED, MAPPOConfig(network=NARROW, critic_reads="state", normalize_observation=True)
    ),
    Case("maddpg, state", "maddpg", STATED, MADDPGConfig(network=NARROW, critic_reads="state")),
    Case("matd3, state", "matd3", ARMS_STATED, MATD3Config(network=NARROW, critic_reads="state")),
]
LENGTH = 6  # of sequences
IN_A_ROW = ("sequences", "advantage_sequences", "unrolls")  # [B, LENGTH]; of the first, weights are [B]


def every_case(*kept: str) -> Any:
    """A mark: a test of every case. All but the cases that are kept are variants; where none is named, all but the
    first of each algorithm."""
    first = {case.algorithm: case.name for case in reversed(CASES)}
    kept = kept or tuple(first.values())
    marked = [pytest.param(c, marks=() if c.name in kept else pytest.mark.variant, id=c.name) for c in CASES]
    return pytest.mark.parametrize("case", marked)


def variants_but(kept: tuple[str, ...], names: Any) -> list:
    """Parameters of a test; all but those that are kept are variants."""
    return [pytest.param(name, marks=() if name in kept else pytest.mark.variant) for name in names]


def made(case: Case, engine_name: str, seed: int = 0) -> Any:
    """A fresh engine, or one that was used before and is put back to its fresh state: it is compiled already."""
    engine, fresh = _made(case.name, engine_name, seed)
    engine.restore(fresh)
    return engine


@functools.cache
def _made(name: str, engine_name: str, seed: int) -> tuple[Any, dict]:
    case = next(case for case in CASES if case.name == name)
    engine = engines.create(engine_name, case.agent(), case.spaces, seed=seed)
    return engine, engine.state()


def random_values(space: Any, rng: np.random.Generator, *shape: int) -> Any:
    """Random members of a space, [*shape, ...]; a mask always allows the first action."""
    if isinstance(space, Dict):
        found = {key: random_values(part, rng, *shape) for key, part in space.spaces.items()}
        if "action_mask" in found:
            found["action_mask"][..., 0] = 1
        return found
    if isinstance(space, Tuple):
        return tuple(random_values(part, rng, *shape) for part in space.spaces)
    if isinstance(space, Discrete):
        return rng.integers(0, space.n, shape)
    if isinstance(space, MultiDiscrete):
        return rng.integers(0, space.nvec, (*shape, *space.nvec.shape))
    if isinstance(space, MultiBinary):
        return rng.integers(0, 2, (*shape, space.n)).astype(np.int8)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (*shape, *space.shape)).astype(np.uint8)
    return rng.uniform(-0.9, 0.9, (*shape, *space.shape)).astype(np.float32)


def random_batches(case: Case, k: int, n: int, seed: int = 0) -> Batch:
    """k random batches of n transitions, or sequences or unrolls of them, that fit the case."""
    rng = np.random.default_rng(seed)
    spaces, agent = case.spaces, case.agent()
    shape: tuple[int, ...] = (k, n, LENGTH) if agent.learns_from in IN_A_ROW else (k, n)
    observation = random_values(spaces.observation, rng, *shape)
    following = random_values(spaces.observation, rng, *shape)
    action = random_values(spaces.action, rng, *shape)
    if spaces.masked:
        allowed = np.take_along_axis(observation["action_mask"], action[..., None], -1)[..., 0] == 1
        action = np.where(allowed, action, 0)
    shape = shape if spaces.agents is None else (k, n, len(spaces.agents))
    normal = lambda: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    ends = 1.0 if agent.learns_from == "returns" else 0.2  # whole returns need little bootstrapping
    extras = {"log_prob": -1.5 + 0.1 * normal(), "advantage": normal(), "return": normal(), "value": normal()}
    on_policy = dict.fromkeys(("advantages", "advantage_sequences", "demonstrations", "gradients"), tuple(extras))
    wanted = (on_policy | {"episodes": ("return",), "unrolls": ("log_prob",)}).get(agent.learns_from, ())
    bootstraps = agent.learns_from not in ("advantages", "advantage_sequences", "episodes", "gradients")
    if spaces.agents is not None:
        extras["active"] = (rng.random(shape) < 0.8).astype(np.float32)
        wanted = (*wanted, "active")
    batch = Batch(
        observation=observation,
        action=action,
        reward=normal(),
        discount=np.where(rng.random(shape) < ends, 0.0, 0.9).astype(np.float32),
        next_observation=following if bootstraps else None,
        weight=rng.uniform(0.5, 1.0, shape if agent.learns_from in IN_A_ROW[1:] else (k, n)).astype(np.float32),
        index=np.zeros((k, n), np.int64),
        extras={name: extras[name] for name in wanted},
    )
    if agent.learns_from == "demonstrations":
        batch.extras["expert"] = random_demonstrations(spaces, rng, k, n)
    if agent.learns_from == "unrolls":
        batch.extras["goes_on"] = np.tile(np.float32([1, 0, 1, 1, 1, 1]), (k, n, 1))
    if agent.learns_from == "advantage_sequences":
        batch.extras["first"] = np.tile(np.float32([0, 0, 1, 0, 0, 1]), (k, n, 1))
        batch.extras["recurrent_state"] = random_memories(case, rng, k, n)
    if agent.learns_from == "sequences":
        batch.extras.update(random_extras_of_sequences(case, rng, k, n))
    return batch


def random_demonstrations(spaces: Spaces, rng: np.random.Generator, k: int, n: int) -> dict[str, Any]:
    """Steps of an expert that always takes the first action."""
    action = random_values(spaces.action, rng, k, n)
    return {
        "observation": random_values(spaces.observation, rng, k, n),
        "action": np.zeros_like(action),
        "next_observation": random_values(spaces.observation, rng, k, n),
        "discount": np.where(rng.random((k, n)) < 0.2, 0.0, 0.9).astype(np.float32),
    }


def random_extras_of_sequences(case: Case, rng: np.random.Generator, k: int, n: int) -> dict[str, np.ndarray]:
    """Sequences of which up to 2 steps burn in, and up to 3 of the others are filled up."""
    time = np.arange(LENGTH)
    before, stop = rng.integers(0, 3, (k, n, 1)), rng.integers(LENGTH - 3, LENGTH + 1, (k, n, 1))
    extras = {"mask": np.float32((time >= before) & (time < stop)), "first": np.zeros((k, n, LENGTH), np.float32)}
    extras["first"][..., 0] = before[..., 0] == 0
    if case.config.stored_state:
        extras["recurrent_state"] = random_memories(case, rng, k, n)
    return extras


def random_memories(case: Case, rng: np.random.Generator, *shape: int) -> np.ndarray:
    """[*shape, M]."""
    size = NumpyEngine(case.agent(), case.spaces).state_size
    return rng.uniform(-0.5, 0.5, (*shape, size)).astype(np.float32)


def acted(actor: Any, observation: Any) -> Any:
    """What an engine's `act` returns; with random memories where it keeps them."""
    return actor.act(*_inputs(actor, observation))


def valued(actor: Any, observation: Any) -> Any:
    """What an engine's `value` returns; with random memories where it keeps them."""
    return actor.value(*_inputs(actor, observation))


def _inputs(actor: Any, observation: Any) -> tuple:
    if not actor.state_size:
        return (observation,)
    n = len(trees.leaves(observation)[0])
    return observation, np.random.default_rng(9).uniform(-0.5, 0.5, (n, actor.state_size)).astype(np.float32)


def pick(batches: Batch, i: int) -> Batch:
    """Batch number i of stacked ones."""
    following = None if batches.next_observation is None else trees.rows(batches.next_observation, i)
    return Batch(
        trees.rows(batches.observation, i),
        batches.action[i],
        batches.reward[i],
        batches.discount[i],
        following,
        batches.weight[i],
        batches.index[i],
        {name: trees.rows(value, i) for name, value in batches.extras.items()},
    )
