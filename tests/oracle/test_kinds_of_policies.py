"""V-trace, REINFORCE, A3C, evolution strategies and recurrent PPO: whole small runs beside slow programs."""

import dataclasses
import functools
from typing import ClassVar

import gymnasium as gym
from drawing import drawn, pieces, scripts
from hypothesis import strategies as st
from policy_equations import NoiseScale
from scripted_worlds import ScriptedWorld
from slow_kinds import SlowA3C, SlowES, SlowReinforce, SlowUnrolls
from slow_recurrent import SlowRecurrentPPO
from test_replayed_policies import MASKED, beside, beside_stops, follow
from watched import Collection, Watched, watched_events

import etude
from etude.tuning.evolution.evolution import copied
from etude.tuning.evolution.structure import Mutation

algorithms = etude.algorithms
CHOICE = gym.spaces.Discrete(3)


class WatchedIMPALA(Watched, algorithms.IMPALA):
    """IMPALA, watched."""


class WatchedAPPO(Watched, algorithms.APPO):
    """APPO, watched."""


class WatchedReinforce(Watched, algorithms.Reinforce):
    """REINFORCE, watched."""


class WatchedA3C(Watched, algorithms.A3C):
    """A3C, watched."""


class WatchedRecurrentPPO(Watched, algorithms.RecurrentPPO):
    """Recurrent PPO, watched."""


class WatchedES(algorithms.ES):
    """Evolution strategies, whose noise is noted."""

    noted: ClassVar[list] = []

    def estimate(self, weights, returns, noise):
        self.noted[:] = [noise]
        return super().estimate(weights, returns, noise)


COMMON = {
    "normalize_observation": st.booleans(),
    "normalize_reward": st.booleans(),
    "clip_reward": st.booleans(),
    "entropy_coefficient": st.sampled_from([0.0, 0.1]),
    "gamma": st.sampled_from([0.9, 1.0]),
    "learning_rate": st.just(3e-2) | st.just(etude.Linear(5e-2, 1e-2)),
    "max_gradient_norm": st.none() | st.just(0.5),
    "optimizer": st.just(etude.optimizers.Adam(epsilon=1e-3)),
    "network": st.just(etude.Mlp(())),
}
UNROLLS = {
    **COMMON,
    "rollout_length": st.integers(1, 6),
    "minibatch_size": st.none() | st.integers(1, 14),
    "epochs": st.integers(1, 3),
    "trace_lambda": st.sampled_from([0.5, 1.0]),
    "rho_bar": st.sampled_from([0.9, 1.0, 2.0]),
    "c_bar": st.sampled_from([0.9, 1.0, 2.0]),
}
IMPALA_CONFIGS = st.builds(algorithms.IMPALAConfig, **UNROLLS)
APPO_CONFIGS = st.builds(
    algorithms.APPOConfig,
    **UNROLLS,
    target_update_every=st.integers(1, 4),
    kl_coefficient=st.sampled_from([0.0, 0.5]),
    clip_range=st.sampled_from([0.02, 0.3]),
    normalize_advantage=st.booleans(),
)


@drawn(
    few=2, many=12, script=MASKED, config=IMPALA_CONFIGS | APPO_CONFIGS, environments=st.integers(1, 4),
    lengths=pieces(60, 3),
)  # fmt: skip
def test_impala_and_appo_correct_whole_rollouts_by_v_trace(script, config, environments, lengths, folder):
    agent = WatchedAPPO if isinstance(config, algorithms.APPOConfig) else WatchedIMPALA
    slow = SlowUnrolls(config, script, CHOICE, environments, sum(lengths))
    beside_stops(slow, agent, functools.partial(ScriptedWorld, script, CHOICE), lengths, [], folder)


@drawn(
    few=2, many=10, script=MASKED, config=IMPALA_CONFIGS | APPO_CONFIGS, environments=st.integers(2, 5),
    steps=st.integers(1, 90), size=st.integers(1, 14), smooth=st.sampled_from([1.0, 0.3]),
)  # fmt: skip
def test_the_noise_of_gradients_decides_how_many_steps_the_rollouts_of_a_minibatch_have(
    script, config, environments, steps, size, smooth
):
    rule = etude.adapt.Adapt("noise_scale", "minibatch_size", every=1, smooth=smooth, parts=2, rate=3.0)
    config = dataclasses.replace(config, adapt=(rule,), minibatch_size=size)
    agent = WatchedAPPO if isinstance(config, algorithms.APPOConfig) else WatchedIMPALA
    slow = SlowUnrolls(config, script, CHOICE, environments, steps)
    slow.noise_scale = NoiseScale(size, 2, smooth)
    beside(slow, agent(config), functools.partial(ScriptedWorld, script, CHOICE), (steps,))


REINFORCE_CONFIGS = st.builds(
    algorithms.ReinforceConfig, **COMMON, baseline=st.booleans(), normalize_advantage=st.booleans()
)


@drawn(
    few=2, many=15, script=MASKED, config=REINFORCE_CONFIGS, environments=st.integers(1, 3),
    lengths=pieces(40, 3),
)  # fmt: skip
def test_reinforce_learns_from_each_step_of_whole_episodes_once(script, config, environments, lengths, folder):
    slow = SlowReinforce(config, script, CHOICE, environments, sum(lengths))
    beside_stops(slow, WatchedReinforce, functools.partial(ScriptedWorld, script, CHOICE), lengths, [], folder)


A3C_CONFIGS = st.builds(
    algorithms.A3CConfig,
    **{name: own for name, own in COMMON.items() if not name.startswith(("normalize", "clip"))},
    rollout_length=st.integers(1, 6),
    normalize_advantage=st.booleans(),
    gae_lambda=st.sampled_from([0.0, 0.8, 1.0]),
)


@drawn(few=2, many=4, script=MASKED, config=A3C_CONFIGS, environments=st.integers(1, 3), lengths=pieces(60, 3))
def test_a3c_applies_the_gradient_of_each_rollout_with_the_weights_that_it_began_with(
    script, config, environments, lengths, folder
):
    slow = SlowA3C(config, script, CHOICE, environments, sum(lengths))
    beside_stops(slow, WatchedA3C, functools.partial(ScriptedWorld, script, CHOICE), lengths, [], folder)


ES_CONFIGS = st.builds(
    algorithms.ESConfig,
    network=COMMON["network"],
    optimizer=COMMON["optimizer"],
    normalize_observation=st.booleans(),
    max_gradient_norm=st.none() | st.just(0.5),
    learning_rate=st.just(3e-2),
    sigma=st.sampled_from([0.05, 0.5]),
    weight_decay=st.sampled_from([0.0, 0.1]),
)


@drawn(few=2, many=15, script=MASKED, config=ES_CONFIGS, pairs=st.integers(1, 3), steps=st.integers(1, 60))
def test_evolution_strategies_ascend_the_ranks_of_what_perturbed_weights_earned(script, config, pairs, steps):
    slow, world = SlowES(config, script, 2 * pairs), functools.partial(ScriptedWorld, script, CHOICE)
    with etude.Run(WatchedES(config), world, environments=2 * pairs, engine="torch") as run:
        slow.begin(run.engine.weights())
        for entry in watched_events(run.steps(steps)):
            if isinstance(entry, Collection):
                collection = entry
            else:
                slow.learn(collection, entry, WatchedES.noted[0], run.engine.weights())


@st.composite
def recurrent_configs(draw):
    given = {name: draw(own) for name, own in COMMON.items()}
    length = draw(st.integers(1, 3))
    given["network"] = etude.Recurrent(etude.Mlp(()), draw(st.integers(1, 2)), draw(st.sampled_from(["gru", "lstm"])))
    return algorithms.RecurrentPPOConfig(
        **given,
        sequence_length=length,
        rollout_length=length * draw(st.integers(1, 3)),
        minibatch_size=draw(st.none() | st.integers(1, 9)),
        epochs=draw(st.integers(1, 2)),
        clip_range=draw(st.sampled_from([0.01, 0.2])),
        value_clip_range=draw(st.none() | st.just(0.1)),
        normalize_advantage=draw(st.booleans()),
        gae_lambda=draw(st.sampled_from([0.0, 0.8, 1.0])),
    )


@drawn(
    few=2, many=3, script=scripts(), config=recurrent_configs(), environments=st.integers(1, 2), lengths=pieces(10, 3)
)
def test_recurrent_ppo_learns_from_sequences_with_the_states_of_their_first_steps(
    script, config, environments, lengths, folder
):
    slow = SlowRecurrentPPO(config, script, CHOICE, environments, sum(lengths))
    beside_stops(slow, WatchedRecurrentPPO, functools.partial(ScriptedWorld, script, CHOICE), lengths, [], folder)


@drawn(
    few=2, many=5, script=scripts(), config=recurrent_configs(), environments=st.integers(1, 3), lengths=pieces(14, 3),
    units=st.integers(1, 3),
)  # fmt: skip
def test_the_cell_of_recurrent_ppo_changes_and_nothing_else(script, config, environments, lengths, units):
    # Nothing tells what an optimizer remembers of other weights, and a scale of steps that are dropped.
    config = dataclasses.replace(config, optimizer=etude.optimizers.SGD(), normalize_reward=False)
    slow = SlowRecurrentPPO(config, script, CHOICE, environments, sum(lengths))
    world = functools.partial(ScriptedWorld, script, CHOICE)
    run = etude.Run(WatchedRecurrentPPO(config), world, environments=environments, engine="torch")
    slow.begin(run.engine.weights())
    for length in lengths:
        follow(run, slow, length)
        more = units - config.network.units
        config = dataclasses.replace(config, network=dataclasses.replace(config.network, units=units))
        kind = "add_units" if more > 0 else "remove_units"
        mutation = Mutation(kind, "network", "cell", amount=abs(more)) if more else Mutation()
        child = copied(run, config, mutation, seed=2)
        run.close()
        run, units = child, 3 - units % 3
        slow.mutate(config, run.engine.weights())
    run.close()
