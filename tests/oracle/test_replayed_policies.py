"""PPO, A2C and MAPPO: whole small runs beside the slow programs of `slow_policies`.

What is collected, learned from, weighted, normalised and reported, and every weight, is what these compute.
"""

import dataclasses
import functools

import gymnasium as gym
from drawing import drawn, pieces, scripts, scripts_of_agents, scripts_of_turns, shown_early
from hypothesis import strategies as st
from policy_equations import NoiseScale
from scripted_worlds import ScriptedAgents, ScriptedTurns, ScriptedWorld
from slow_policies import Slow, SlowMAPPO
from watched import NOTED, Collection, Watched, watched_events

import etude
from etude import Policies

algorithms = etude.algorithms
CHOICE, MOVE = gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,), "float32")


class WatchedPPO(Watched, algorithms.PPO):
    """PPO, watched."""


class WatchedA2C(Watched, algorithms.A2C):
    """A2C, watched."""


class WatchedMAPPO(Watched, algorithms.MAPPO):
    """MAPPO, watched."""


def watched(config):
    """The agent of a config."""
    return WatchedA2C(config) if isinstance(config, algorithms.A2CConfig) else WatchedPPO(config)


def follow(run, slow, length):
    """Train beside the slow program."""
    before, slow.total = slow.step, max(slow.total, slow.step + length)
    for entry in watched_events(run.steps(length, total=slow.total)):
        if isinstance(entry, Collection):
            slow.collect(entry)
        elif slow.learns(entry):
            slow.learn(entry, run.engine.weights())
            for event in entry.adjusted:
                if event.name == "rollout_length":
                    slow.length = int(event.after)
    slow.differentiate_more(tuple(NOTED))
    assert slow.step == before + length or slow.whole_episodes and slow.step > before + length


def beside(slow, agent, world, lengths, **settings):
    """A run in pieces beside the slow program, at whose end nothing is left to learn from that should be learned."""
    with etude.Run(agent, world, environments=len(slow.worlds), engine="torch", **settings) as run:
        slow.begin(run.engine.weights())
        for length in lengths:
            follow(run, slow, length)
    slow.check_end()


def beside_stops(slow, agent, world, lengths, changes, folder, **settings):
    """A run that is saved after each piece, and goes on from there with other fields of its config."""
    config = slow.given
    run = etude.Run(agent(config), world, environments=len(slow.worlds), engine="torch", **settings)
    slow.begin(run.engine.weights())
    for i, length in enumerate(lengths):
        follow(run, slow, length)
        run.save(folder / "run")
        run.close()
        config = dataclasses.replace(config, **changes[i] if i < len(changes) else {})
        slow.go_on_with(config)
        run = etude.load(folder / "run", env=world, agent=agent(config))
    run.close()
    slow.check_end()


MASKED = scripts(3).map(shown_early)
COMING, TURNS = scripts_of_agents(3, 3).map(shown_early), scripts_of_turns(3, 3).map(shown_early)
PPO = {
    "rollout_length": st.integers(1, 6),
    "minibatch_size": st.none() | st.integers(1, 9),
    "epochs": st.integers(1, 3),
    "normalize_observation": st.booleans(),
    "normalize_reward": st.booleans(),
    "clip_reward": st.booleans(),
    "normalize_value": st.booleans(),
    "normalize_advantage": st.booleans(),
    "objective": st.sampled_from(["clip", "penalty"]),
    "clip_range": st.sampled_from([0.01, 0.2]),
    "value_clip_range": st.none() | st.just(0.1),
    "entropy_coefficient": st.sampled_from([0.0, 0.1]),
    "gamma": st.sampled_from([0.9, 1.0]),
    "gae_lambda": st.sampled_from([0.0, 0.8, 1.0]),
    "learning_rate": st.just(3e-2) | st.just(etude.Linear(5e-2, 1e-2)),
    "max_gradient_norm": st.none() | st.just(0.5),
    "network": st.just(etude.Mlp(())),
    "optimizer": st.just(etude.optimizers.Adam(epsilon=1e-3)),  # quotients of numbers that are rounded away say nothing
}
TAKEN = ("clip_range", "epochs", "objective", "value_clip_range", "normalize_value", "minibatch_size")
PPO_CONFIGS = st.builds(algorithms.PPOConfig, **PPO)
A2C_CONFIGS = st.builds(algorithms.A2CConfig, **{name: own for name, own in PPO.items() if name not in TAKEN})


@drawn(few=3, many=40, script=MASKED, config=PPO_CONFIGS, environments=st.integers(1, 4), steps=st.integers(1, 70))
def test_ppo_learns_from_choices_as_its_papers_say(script, config, environments, steps):
    slow = Slow(config, script, CHOICE, environments, steps)
    beside(slow, WatchedPPO(config), functools.partial(ScriptedWorld, script, CHOICE), (steps,))


@drawn(few=2, many=25, script=scripts(), config=PPO_CONFIGS, environments=st.integers(1, 3), steps=st.integers(1, 60))
def test_ppo_learns_from_samples_beyond_the_bounds_of_a_box(script, config, environments, steps):
    slow = Slow(config, script, MOVE, environments, steps)
    beside(slow, WatchedPPO(config), functools.partial(ScriptedWorld, script, MOVE), (steps,))


@drawn(few=2, many=20, script=MASKED, config=A2C_CONFIGS, environments=st.integers(1, 4), steps=st.integers(1, 60))
def test_a2c_learns_from_each_rollout_at_once(script, config, environments, steps):
    slow = Slow(config, script, CHOICE, environments, steps)
    beside(slow, WatchedA2C(config), functools.partial(ScriptedWorld, script, CHOICE), (steps,))


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "gamma": st.just(0.8),
        "gae_lambda": st.just(0.5),
        "epochs": st.integers(1, 2),
        "minibatch_size": st.integers(1, 5),
        "clip_range": st.just(0.1),
        "entropy_coefficient": st.just(0.05),
        "learning_rate": st.just(1e-2),
        "normalize_advantage": st.booleans(),
        "max_gradient_norm": st.just(0.2),
    },
)


@drawn(
    few=2, many=20, script=MASKED, config=PPO_CONFIGS, environments=st.integers(1, 4), lengths=pieces(40),
)  # fmt: skip
def test_pieces_of_training_learn_what_one_call_learns(script, config, environments, lengths):
    slow = Slow(config, script, CHOICE, environments, sum(lengths))
    beside(slow, WatchedPPO(config), functools.partial(ScriptedWorld, script, CHOICE), lengths)


@drawn(few=0, many=1, script=MASKED, config=PPO_CONFIGS, environments=st.integers(2, 4), lengths=pieces(40, 3))
def test_workers_collect_what_is_learned_from(script, config, environments, lengths):
    slow = Slow(config, script, CHOICE, environments, sum(lengths))
    beside(slow, WatchedPPO(config), functools.partial(ScriptedWorld, script, CHOICE), lengths, workers=2)


@drawn(
    few=2, many=12, script=MASKED, config=PPO_CONFIGS, environments=st.integers(1, 3), lengths=pieces(45, 3),
    changes=st.lists(CHANGES, max_size=2),
)  # fmt: skip
def test_a_saved_run_goes_on_with_other_hyperparameters(script, config, environments, lengths, changes, folder):
    slow = Slow(config, script, CHOICE, environments, sum(lengths))
    beside_stops(slow, WatchedPPO, functools.partial(ScriptedWorld, script, CHOICE), lengths, changes, folder)


RULES = st.builds(
    etude.adapt.Adapt,
    signal=st.just("kl"),
    hyperparameter=st.just("rollout_length"),
    target=st.sampled_from([1e-6, 1e-3, 1.0]),
    every=st.integers(1, 2),
    smooth=st.just(1.0),
    rate=st.just(1.0),
    direction=st.sampled_from([1, -1]),
)


@drawn(
    few=2, many=15, script=MASKED, config=PPO_CONFIGS, rule=RULES, environments=st.integers(1, 3),
    lengths=pieces(50, 4),
)  # fmt: skip
def test_rollouts_whose_length_adapts_are_learned_from(script, config, rule, environments, lengths):
    config = dataclasses.replace(config, adapt=(rule,), rollout_length=4)
    slow = Slow(config, script, CHOICE, environments, sum(lengths))
    beside(slow, WatchedPPO(config), functools.partial(ScriptedWorld, script, CHOICE), lengths)


@drawn(
    few=2, many=15, script=MASKED, config=PPO_CONFIGS | A2C_CONFIGS, environments=st.integers(1, 3),
    steps=st.integers(1, 90), size=st.integers(1, 9), smooth=st.sampled_from([1.0, 0.3]), parts=st.integers(2, 3),
)  # fmt: skip
def test_the_noise_of_gradients_decides_the_size_of_minibatches(
    script, config, environments, steps, size, smooth, parts
):
    rule = etude.adapt.Adapt("noise_scale", "minibatch_size", every=1, smooth=smooth, parts=parts, rate=3.0)
    config = dataclasses.replace(config, adapt=(rule,), minibatch_size=size)
    slow = Slow(config, script, CHOICE, environments, steps)
    slow.noise_scale = NoiseScale(size, parts, smooth)
    beside(slow, watched(config), functools.partial(ScriptedWorld, script, CHOICE), (steps,))


POLICIES = {
    "each": {"agent_0": (0,), "agent_1": (1,), "agent_2": (2,)},
    "shared": {"shared": (0, 1, 2)},
    "two": {"left": (0, 2), "right": (1,)},
}


def drivers(policies):
    """Which policy drives which agent, as a run takes it."""
    return {f"agent_{agent}": name for name, agents in policies.items() for agent in agents}


# Actions of a Box have no masks.
ACTING = COMING.map(lambda script: (script, CHOICE)) | scripts_of_agents(3).map(lambda script: (script, MOVE))


@drawn(
    few=4, many=40, acting=ACTING, config=PPO_CONFIGS | A2C_CONFIGS, policies=st.sampled_from([*POLICIES.values()]),
    identity=st.booleans(), environments=st.integers(1, 3), lengths=pieces(60, 2),
)  # fmt: skip
def test_agents_that_come_and_go_learn_from_the_turns_that_they_had(
    acting, config, policies, identity, environments, lengths, folder
):
    (script, space), total = acting, sum(lengths)
    slow = Slow(config, script, space, environments, total, 3, policies, identity=identity)
    world = functools.partial(ScriptedAgents, script, space, 3)
    agent = type(watched(config))
    beside_stops(slow, agent, world, lengths, [], folder, policies=Policies(drivers(policies), identity))


@drawn(
    few=2, many=30, script=TURNS, config=PPO_CONFIGS | A2C_CONFIGS, policies=st.sampled_from([*POLICIES.values()]),
    environments=st.integers(1, 3), steps=st.integers(1, 60),
)  # fmt: skip
def test_agents_that_take_turns_learn_from_their_own_turns(script, config, policies, environments, steps):
    slow = Slow(config, script, CHOICE, environments, steps, 3, policies, turns=True)
    world = functools.partial(ScriptedTurns, script, CHOICE, 3)
    beside(slow, watched(config), world, (steps,), policies=drivers(policies))


MAPPO_CONFIGS = st.builds(
    algorithms.MAPPOConfig,
    **{
        name: own
        for name, own in PPO.items()
        if name not in ("objective", "value_clip_range", "normalize_value", "max_gradient_norm")
    },
    critic_reads=st.sampled_from(["observations", "state"]),
)


@drawn(
    few=3, many=40, acting=ACTING | TURNS.map(lambda script: (script, CHOICE)), config=MAPPO_CONFIGS,
    policies=st.sampled_from([*POLICIES.values()]), identity=st.booleans(), environments=st.integers(1, 3),
    steps=st.integers(1, 60),
)  # fmt: skip
def test_mappo_critics_see_all_agents_and_who_acts(acting, config, policies, identity, environments, steps):
    script, space = acting
    turns = bool(script[0].order)
    slow = SlowMAPPO(config, script, space, environments, steps, 3, policies, turns=turns, identity=identity)
    world = functools.partial(ScriptedTurns if turns else ScriptedAgents, script, space, 3)
    beside(slow, WatchedMAPPO(config), world, (steps,), policies=Policies(drivers(policies), identity))


@drawn(
    few=2, many=12, script=COMING | TURNS, config=PPO_CONFIGS,
    environments=st.integers(1, 3), lengths=pieces(28, 3), train_every=st.integers(1, 9), starts=st.integers(0, 30),
)  # fmt: skip
def test_ppo_beside_a_policy_of_another_kind_learns_as_in_a_run_of_its_own(
    script, config, environments, lengths, train_every, starts
):
    turns, policies = bool(script[0].order), POLICIES["two"]
    team = {"left": policies["left"]}
    slow = Slow(config, script, CHOICE, environments, sum(lengths), 3, team, turns=turns, team="left.")
    dqn = algorithms.DQNConfig(
        network=etude.Mlp((4,)), batch_size=4, train_every=train_every, learning_starts=starts,
        normalize_observation=True,
    )  # fmt: skip
    world = functools.partial(ScriptedTurns if turns else ScriptedAgents, script, CHOICE, 3)
    members = {"left": WatchedPPO(config), "right": algorithms.DQN(dqn)}
    beside(slow, members, world, lengths, policies=drivers(policies))
