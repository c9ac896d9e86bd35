"""The list that every engine's tests run through: algorithms, spaces and networks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from etude import ActorCritic, ByEmbedding, Conv, Mlp, Policies, Recurrent, Transformer, engines
from etude.agent import Agent
from etude.algorithms import (
    A2CConfig,
    A3CConfig,
    AIRLConfig,
    ApexDDPGConfig,
    ApexDQNConfig,
    APPOConfig,
    AWACConfig,
    BCConfig,
    C51Config,
    CalQLConfig,
    CategoricalSACConfig,
    CQLConfig,
    CrossQConfig,
    DDPGConfig,
    DecisionTransformerConfig,
    DiscreteSACConfig,
    DistributionSpec,
    DPOConfig,
    DQNConfig,
    DreamerV3Config,
    EDACConfig,
    GAILConfig,
    GRPOConfig,
    ILQLConfig,
    IMPALAConfig,
    IQLConfig,
    LinUCBConfig,
    MADDPGConfig,
    MAPPOConfig,
    MARWILConfig,
    MATD3Config,
    MPOConfig,
    NeuralTSConfig,
    PETSConfig,
    PPOConfig,
    PQNConfig,
    QMIXConfig,
    QRDQNConfig,
    R2D2Config,
    RainbowConfig,
    ReBRACConfig,
    RecurrentPPOConfig,
    ReinforceConfig,
    RewardModelConfig,
    RLHFConfig,
    SACConfig,
    SACNConfig,
    TD3BCConfig,
    TD3Config,
    TDMPC2Config,
    TQCConfig,
    TRPOConfig,
    VDNConfig,
    VMPOConfig,
    XQLConfig,
    find,
)
from etude.base.schedules import Linear, at
from etude.base.spaces import Box, Dict, Discrete, Hybrid, MultiBinary, MultiDiscrete, Spaces, Tokens, Tuple
from etude.multi_agent.joint import joined_spaces
from etude.networks import SimBa, SimBaV2
from etude.optimizers import SGD, Adam, AdamW, Lion, RMSProp
from etude.protocols import Explorer
from etude.training.assembly.agents import multi_agent_for
from etude.training.assembly.exploration import explorer_for
from etude.training.kinds.by_policy import best_explorer

VECTOR = Box(-1.0, 1.0, (5,), np.float32)
IMAGE = Box(0, 255, (12, 12, 2), np.uint8)
NESTED = Dict({"place": Tuple([Discrete(3), MultiDiscrete([2, 4])]), "switches": MultiBinary(3), "speed": VECTOR})
MASKED = Dict({"observation": VECTOR, "action_mask": MultiBinary(3)})
SEEN_MASKED = Dict({"observation": IMAGE, "action_mask": MultiBinary(3)})
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
        return best_explorer(self.agent(), self.spaces), explorer_for(self.agent(), self.spaces, None, 1, 1)

    def hyper(self, **changes: float) -> dict[str, float]:
        """What the config says, but for some numbers that make a few gradient steps tell more."""
        values = {field.name: getattr(self.config, field.name) for field in dataclasses.fields(self.config)}
        found = {name: at(value, 0, 1) for name, value in values.items() if isinstance(value, float | Linear)}
        found |= {name: getattr(self.config, name, 1) for name in ("policy_delay", "discriminator_every", "epochs")}
        found |= {"learning_rate": 1e-3, "gamma": 0.9, "target_update_every": 3, "tau": 0.05, "temperature": 0.5}
        found |= {"gae_lambda": 0.9, "trace_lambda": 0.9, "entropy_coefficient": 0.01, "max_gradient_norm": 0.5}
        return found | changes


BOX2 = Box(-1.0, 1.0, (2,), np.float32)
HYBRID = Hybrid(BOX2, MultiDiscrete([2, 3]))
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
NORMED = ActorCritic(Mlp((16,), layer_norm=True), Mlp((16, 16), layer_norm=True))
SAC_ENSEMBLE = SACConfig(network=NORMED, n_critics=5, n_target_critics=2, policy_delay=2)
DROQ = SACConfig(
    network=ActorCritic(NARROW, Mlp((16, 16), layer_norm=True, dropout=0.3)), n_target_critics=2, policy_delay=2
)
SIMBA = SACConfig(network=ActorCritic(SimBa(1, 8), SimBa(2, 8, 2)), normalize_observation=True)
SPHERICAL = CategoricalSACConfig(
    network=ActorCritic(SimBaV2(1, 8), SimBaV2(2, 8, 2)), learning_rate=3e-4, atoms=11, v_max=2.0
)
IMAGINING = DreamerV3Config(
    network=Mlp((8, 8), layer_norm=True),
    encoder=Mlp((8,), layer_norm=True),
    dynamics=Mlp((8,), layer_norm=True),
    units=8,
    latents=2,
    classes=4,
    sequence_length=6,
    horizon=2,
    bins=11,
    largest=4.0,
    free_nats=0.1,
)
PLANNING = TDMPC2Config(
    network=Mlp((8, 8), layer_norm=True),
    encoder=Mlp((8,), layer_norm=True),
    latent_size=8,
    simplex_size=4,
    sequence_length=6,
    decay=0.8,
    n_critics=3,
    bins=11,
    largest=4.0,
    n_plans=8,
    n_policy_plans=2,
    n_elites=3,
    iterations=2,
)
TRIALS = PETSConfig(
    network=Mlp((8, 8), "silu"), n_models=3, horizon=3, iterations=2, n_plans=8, n_elites=3, plan_temperature=0.5
)
SPECTRAL = Mlp((16, 16), spectral_norm=True)
TEXTS = Dict({"observation": Tokens(tuple("_>abcd"), 9), "action_mask": MultiBinary(6)})
READING = Transformer(1, 8, 2, 12, 10)
BERT = dataclasses.replace(READING, causal=False)
DECIDING = DecisionTransformerConfig(
    network=Transformer(1, 8, 2, 12, context=9), sequence_length=6, return_scale=2.0, time_steps=5
)
REMEMBERING = Recurrent(Mlp((16,)), 8, widths=(8,))
MIXED_STATES = QMIXConfig(
    network=NARROW, mixing_units=4, hypernetwork=Mlp(()), critic_reads="state", normalize_observation=True
)
CASES = [
    Case("dqn", "dqn", Spaces(VECTOR, Discrete(3)), DQNConfig(network=NARROW, double=False)),
    Case("double dqn, masked", "dqn", Spaces(MASKED, Discrete(3)), DQNConfig(network=NARROW, double=True)),
    Case("dqn on images", "dqn", Spaces(IMAGE, Discrete(3)), DQNConfig(network=SMALL_CONV)),
    Case("dqn on shifted images", "dqn", Spaces(IMAGE, Discrete(3)), DQNConfig(network=SMALL_CONV, random_shift=4)),
    Case("dqn on stacked frames", "dqn", Spaces(FRAMES, Discrete(3)), DQNConfig(network=SMALL_CONV)),
    Case("dqn on nested", "dqn", Spaces(NESTED, Discrete(3)), DQNConfig(network=NARROW, max_gradient_norm=None)),
    Case("ppo discrete", "ppo", Spaces(VECTOR, Discrete(3)), PPOConfig(network=Mlp((16,), "tanh", "orthogonal"))),
    Case("ppo multidiscrete", "ppo", Spaces(NESTED, MultiDiscrete([2, 3])), PPOConfig(network=NARROW)),
    Case("ppo numbers and choices", "ppo", Spaces(VECTOR, HYBRID), PPOConfig(network=NARROW)),
    Case("ppo multibinary", "ppo", Spaces(VECTOR, MultiBinary(3)), PPOConfig(network=NARROW)),
    Case("ppo box, normalised", "ppo", Spaces(VECTOR, BOX2), PPOConfig(network=NARROW, normalize_observation=True)),
    Case("ppo masked", "ppo", Spaces(MASKED, Discrete(3)), PPOConfig(network=NARROW, max_gradient_norm=None)),
    Case("ppo on images", "ppo", Spaces(IMAGE, Discrete(3)), PPOConfig(network=SMALL_CONV)),
    Case("pqn", "pqn", Spaces(NESTED, Discrete(3)), PQNConfig(network=Mlp((16, 16), layer_norm=True))),
    Case("pqn on images, masked", "pqn", Spaces(SEEN_MASKED, Discrete(3)), PQNConfig(network=SMALL_CONV)),
    Case("v_mpo, masked", "v_mpo", Spaces(MASKED, Discrete(3)), VMPOConfig(network=NARROW, epochs=2)),
    Case("v_mpo box on nested", "v_mpo", Spaces(NESTED, BOX2), VMPOConfig(network=NARROW, epochs=2)),
    Case("v_mpo numbers and choices", "v_mpo", Spaces(VECTOR, HYBRID), VMPOConfig(network=NARROW, epochs=2)),
    Case("trpo, masked", "trpo", Spaces(MASKED, Discrete(3)), TRPOConfig(network=NARROW, epochs=2)),
    Case("trpo box on nested", "trpo", Spaces(NESTED, BOX2), TRPOConfig(network=NARROW, epochs=2)),
    Case("lin_ucb", "lin_ucb", Spaces(NESTED, Discrete(3)), LinUCBConfig(batch_size=8, train_every=4)),
    Case("lin_ucb, masked", "lin_ucb", Spaces(MASKED, Discrete(3)), LinUCBConfig(thompson=True, ridge=0.5)),
    Case(
        "lin_ucb on images",
        "lin_ucb",
        Spaces(IMAGE, Discrete(3)),
        LinUCBConfig(SMALL_CONV, batch_size=16, train_every=16),
    ),
    Case("neural_ts", "neural_ts", Spaces(NESTED, Discrete(3)), NeuralTSConfig(network=NARROW, train_every=3)),
    Case("neural_ts, masked", "neural_ts", Spaces(MASKED, Discrete(3)), NeuralTSConfig(NARROW, thompson=False)),
    Case("neural_ts on images", "neural_ts", Spaces(IMAGE, Discrete(3)), NeuralTSConfig(network=SMALL_CONV)),
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
    Case("sac, five critics", "sac", Spaces(NESTED, BOX2), SAC_ENSEMBLE),
    Case("td_mpc2", "td_mpc2", Spaces(NESTED, BOX2), PLANNING),
    Case("pets", "pets", Spaces(NESTED, BOX2), TRIALS),
    Case("mpo", "mpo", Spaces(NESTED, BOX2), MPOConfig(network=NARROW, samples=3)),
    Case("mpo, masked", "mpo", Spaces(MASKED, Discrete(3)), MPOConfig(network=NARROW)),
    Case("mpo on images", "mpo", Spaces(CAMERA, BOX2), MPOConfig(network=SMALL_CONV, samples=2, temperature=0.5)),
    Case("dreamer_v3", "dreamer_v3", Spaces(NESTED, BOX2), dataclasses.replace(IMAGINING, burn_in=2)),
    Case(
        "dreamer_v3 masked, from zeros",
        "dreamer_v3",
        Spaces(MASKED, Discrete(3)),
        dataclasses.replace(IMAGINING, stored_state=False),
    ),
    Case(
        "dreamer_v3 on images",
        "dreamer_v3",
        Spaces(CAMERA, Discrete(3)),
        dataclasses.replace(IMAGINING, encoder=SMALL_CONV, normalize_observation=True),
    ),
    Case("td_mpc2 on images", "td_mpc2", Spaces(CAMERA, BOX2), dataclasses.replace(PLANNING, encoder=SMALL_CONV)),
    Case("tqc", "tqc", Spaces(NESTED, BOX2), TQCConfig(network=NARROW, n_critics=3, quantiles=5)),
    Case("categorical_sac", "categorical_sac", Spaces(NESTED, BOX2), SPHERICAL),
    Case("crossq", "crossq", Spaces(NESTED, BOX2), CrossQConfig(network=NARROW, policy_delay=2)),
    Case("sac, droq", "sac", Spaces(NESTED, BOX2), DROQ),
    Case("sac, simba", "sac", Spaces(NESTED, BOX2), SIMBA),
    Case("dqn without biases", "dqn", Spaces(VECTOR, Discrete(3)), DQNConfig(network=Mlp((16, 16), bias=False))),
    Case("dqn, spectral", "dqn", Spaces(VECTOR, Discrete(3)), DQNConfig(network=SPECTRAL, double=False)),
    Case("dqn, simba", "dqn", Spaces(MASKED, Discrete(3)), DQNConfig(network=SimBa(2, 8, 2))),
    Case("sac, gsde", "sac", Spaces(NESTED, BOX2), SACConfig(network=NARROW, gsde=True)),
    Case("sac on images, gsde", "sac", Spaces(IMAGE, BOX2), SACConfig(network=SMALL_CONV, gsde=True)),
    Case("ppo box, gsde", "ppo", Spaces(VECTOR, BOX2), PPOConfig(network=NARROW, gsde=True)),
    Case("bc box", "bc", Spaces(VECTOR, BOX2), BCConfig(network=NARROW, normalize_observation=True)),
    Case("bc box, squared error", "bc", Spaces(NESTED, BOX2), BCConfig(network=NARROW, squared_error=True)),
    Case("bc masked", "bc", Spaces(MASKED, Discrete(3)), BCConfig(network=NARROW)),
    Case("bc multidiscrete", "bc", Spaces(VECTOR, MultiDiscrete([2, 3])), BCConfig(network=NARROW)),
    Case("bc multibinary", "bc", Spaces(VECTOR, MultiBinary(3)), BCConfig(network=NARROW)),
    Case("bc on tokens", "bc", Spaces(TEXTS, Discrete(6)), BCConfig(network=READING)),
    Case("bc on masked tokens", "bc", Spaces(TEXTS, Discrete(6)), BCConfig(network=BERT, masked=0.4)),
    Case("grpo", "grpo", Spaces(TEXTS, Discrete(6)), GRPOConfig(network=READING)),
    Case("dpo", "dpo", Spaces(TEXTS, Discrete(6)), DPOConfig(network=READING)),
    Case("reward_model", "reward_model", Spaces(TEXTS, Discrete(6)), RewardModelConfig(network=READING)),
    Case("rlhf", "rlhf", Spaces(TEXTS, Discrete(6)), RLHFConfig(network=READING, gamma=0.9)),
    Case("ilql", "ilql", Spaces(TEXTS, Discrete(6)), ILQLConfig(network=READING)),
    Case("ilql, monte carlo", "ilql", Spaces(TEXTS, Discrete(6)), ILQLConfig(network=READING, monte_carlo=True)),
    Case(
        "decision_transformer",
        "decision_transformer",
        Spaces(NESTED, BOX2),
        dataclasses.replace(DECIDING, normalize_observation=True),
    ),
    Case(
        "decision_transformer, masked",
        "decision_transformer",
        Spaces(MASKED, Discrete(3)),
        dataclasses.replace(DECIDING, target_return=3.0),
    ),
    Case(
        "decision_transformer on images",
        "decision_transformer",
        Spaces(IMAGE, MultiDiscrete([2, 3])),
        dataclasses.replace(DECIDING, encoder=SMALL_CONV),
    ),
    Case("cql discrete", "cql", Spaces(MASKED, Discrete(3)), CQLConfig(network=NARROW)),
    Case("cql box", "cql", Spaces(VECTOR, BOX2), CQLConfig(network=NARROW, samples=3)),
    Case("cql box, lagrange", "cql", Spaces(NESTED, BOX2), CQLConfig(network=NARROW, samples=2, target_gap=1.0)),
    Case("cql discrete on images", "cql", Spaces(IMAGE, Discrete(3)), CQLConfig(network=SMALL_CONV)),
    Case("cql box on images", "cql", Spaces(IMAGE, BOX2), CQLConfig(network=SMALL_CONV, samples=2)),
    Case("cal_ql", "cal_ql", Spaces(VECTOR, BOX2), CalQLConfig(network=NARROW, samples=3)),
    Case("cal_ql, lagrange", "cal_ql", Spaces(NESTED, BOX2), CalQLConfig(network=NARROW, samples=2, target_gap=1.0)),
    Case("rebrac", "rebrac", Spaces(VECTOR, BOX2), ReBRACConfig(network=NORMED)),
    Case("rebrac on nested", "rebrac", Spaces(NESTED, BOX2), ReBRACConfig(network=NARROW, normalize_observation=True)),
    Case("sac_n", "sac_n", Spaces(VECTOR, BOX2), SACNConfig(network=NARROW, n_critics=4)),
    Case("edac", "edac", Spaces(NESTED, BOX2), EDACConfig(network=NARROW, n_critics=3)),
    Case("awac", "awac", Spaces(VECTOR, BOX2), AWACConfig(network=NARROW)),
    Case("awac on images", "awac", Spaces(IMAGE, BOX2), AWACConfig(network=SMALL_CONV, normalize_observation=True)),
    Case("iql discrete", "iql", Spaces(NESTED, Discrete(3)), IQLConfig(network=NARROW)),
    Case("xql", "xql", Spaces(VECTOR, BOX2), XQLConfig(network=NARROW, gumbel_clip=1.0)),
    Case("xql discrete", "xql", Spaces(NESTED, Discrete(3)), XQLConfig(network=NARROW)),
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
    Case("pqn, several", "pqn", PAIR, PQNConfig(network=NARROW), Policies("shared", identity=True)),
    Case("v_mpo, several", "v_mpo", PAIR, VMPOConfig(network=NARROW, epochs=2), Policies("shared", identity=True)),
    Case("trpo, several", "trpo", PAIR, TRPOConfig(network=NARROW, epochs=2), Policies("shared", identity=True)),
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
    Case("qmix", "qmix", PAIR, QMIXConfig(network=NARROW, mixing_units=4)),
    Case("vdn", "vdn", PAIR, VDNConfig(network=NARROW, double=False)),
    Case("qmix, shared, state", "qmix", STATED, MIXED_STATES, Policies("shared", identity=True)),
    Case("qmix, noisy", "qmix", PAIR, QMIXConfig(network=Mlp((16,), noisy=0.5), mixing_units=4)),
]


BOTH = ("jax", "tensorflow")
# One of each kind of state that there is: it is compiled on every engine.
EVERY_KIND = ("dqn", "rainbow", "ppo discrete", "sac", "td3", "r2d2, masked", "airl discrete", "vdn")
# Their losses are those of DQN, DDPG, A2C and SAC, of which torch alone learns here.
OF_ANOTHER_LOSS = ("apex_dqn", "apex_ddpg", "a3c discrete", "sac_n")
# What TensorFlow traces and compiles for longest.
LONG_ON_TENSORFLOW = (
    "dreamer_v3", "td_mpc2", "rlhf", "decision_transformer", "gail discrete", "maddpg", "matd3", "mappo", "qmix"
)  # fmt: skip


def in_turn(names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Of these cases the first of each algorithm, with the engines that compile it: JAX or TensorFlow in turn, so that
    two algorithms that learn from the same are on both, but JAX what takes TensorFlow long."""
    firsts = {case.algorithm: case for case in reversed(CASES) if case.name in {*names} - {*OF_ANOTHER_LOSS}}
    alike = sorted(firsts.values(), key=lambda case: (case.agent().learns_from, case.spaces.agents is None, case.name))
    found = {}
    for i, case in enumerate(alike):
        one = "jax" if case.name in LONG_ON_TENSORFLOW else BOTH[i % 2]
        found[case.name] = BOTH if case.name in EVERY_KIND else (one,)
    return found


def every_case(*kept: str, others_long: bool = False) -> Any:
    """A mark: a test of every case. All but the cases that are kept are variants; where none is named, those that are
    compiled in turn. others_long: those are long that are neither kept nor the first of their algorithm."""
    names = [case.name for case in CASES]
    marks = [parameter.marks for parameter in variants_but(dict.fromkeys(kept, BOTH) or in_turn(names), names)]
    if others_long:
        firsts = in_turn(names)
        marks = [own if name in firsts else pytest.mark.long for own, name in zip(marks, names, strict=True)]
    marked = [pytest.param(case, marks=mark, id=case.name) for case, mark in zip(CASES, marks, strict=True)]
    return pytest.mark.parametrize("case", marked)


def variants_but(kept: Any, names: Any) -> list:
    """Parameters of a test; all but those that are kept are variants. kept: those, on JAX, or the engines that each is
    kept on."""
    on = kept if isinstance(kept, Mapping) else dict.fromkeys(kept, ("jax",))
    return [pytest.param(name, marks=pytest.mark.variant(*on.get(name, ()))) for name in names]


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
