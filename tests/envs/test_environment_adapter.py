"""Normalised spaces: what agents see and what environments get."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector import SyncVectorEnv
from space_cases import ACTIONS, Demanding, refuse_others
from worlds import Counter, Scripted, always

from etude.base import trees
from etude.base.errors import EnvironmentFault, NumericalError, SpaceError
from etude.base.spaces import Hybrid
from etude.envs import AdaptedEnvironment, LoopEnvironments, NativeEnvironments, make_environment, make_environments
from etude.envs.actions import Actions, RawActions
from etude.envs.observations import Observations

ZEROS = np.zeros(2, np.float32)


def looped(*envs):
    makes = iter(envs)
    return LoopEnvironments(lambda: next(makes), np.arange(len(envs)), 0)


def test_bounded_box_actions_are_scaled_from_minus_one_to_one():
    actions = Actions(Box(np.array([0, -2, 10], np.float32), np.array([1, 2, 30], np.float32)))
    assert actions.space == Box(-1, 1, (3,), np.float32)
    given = np.array([[-1, -1, -1], [0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5]], np.float32)
    expected = [[0, -2, 10], [0.5, 0, 20], [1, 2, 30], [0.75, 1, 25]]
    assert actions.convert(given).tolist() == expected


def test_actions_beyond_the_bounds_are_clipped():
    actions = Actions(Box(0, 3, (2,), np.float32))
    assert actions.convert(np.array([[-7, 9]], np.float32)).tolist() == [[0, 3]]


def test_unbounded_actions_pass_and_half_bounded_ones_are_counted_from_their_bound_and_clipped_there():
    low, high = np.array([-np.inf, 2, -1], np.float32), np.array([np.inf, np.inf, 3], np.float32)
    actions = Actions(Box(low, high))
    assert actions.convert(np.array([[50, 5, 0], [-50, -1, 0]], np.float32)).tolist() == [[50, 7, 1], [-50, 2, 1]]
    assert actions.space.low.tolist() == [-np.inf, 0, -1]
    assert actions.space.high.tolist() == [np.inf, np.inf, 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8])
def test_every_scaled_action_is_legal(dtype):
    rng = np.random.default_rng(0)
    for _ in range(50):
        low = rng.uniform(0, 100, 3) if dtype == np.uint8 else rng.uniform(-100, 100, 3)
        space = Box(low.astype(dtype), (low + rng.uniform(1, 90, 3)).astype(dtype), dtype=dtype)
        for action in Actions(space).convert(rng.uniform(-1.5, 1.5, (40, 3)).astype(np.float32)):
            assert space.contains(action), (space, action)


def test_whole_numbered_boxes_are_rounded_to_the_nearest():
    assert Actions(Box(0, 10, (1,), np.int64)).convert(np.array([[0.09], [0.11]], np.float32)).tolist() == [[5], [6]]


def test_actions_in_raw_units_are_only_clipped_and_cast():
    low, high = np.array([0, -np.inf, 10], np.float64), np.array([1, np.inf, 30], np.float64)
    actions = Actions(Box(low, high, dtype=np.float64), RawActions)
    assert actions.space == Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
    converted = actions.convert(np.array([[0.5, 700, 20], [-3, -0.25, 99]], np.float32))
    assert converted.dtype == np.float64
    assert converted.tolist() == [[0.5, 700, 20], [0, -0.25, 30]]


def test_raw_actions_of_whole_numbers_are_rounded_and_do_not_wrap_around():
    actions = Actions(Box(0, 255, (2,), np.uint8), RawActions)
    assert actions.convert(np.array([[1.6, -7], [300, 254.4]], np.float32)).tolist() == [[2, 0], [255, 254]]


def test_raw_actions_refuse_what_is_not_finite():
    with pytest.raises(NumericalError, match="for environment 1: not finite"):
        Actions(Box(-1, 1, (1,)), RawActions).convert(np.array([[0], [np.nan]], np.float32))


def test_raw_actions_change_nothing_for_discrete_actions():
    assert Actions(Discrete(3, start=4), RawActions).convert(np.array([2])).tolist() == [6]


def test_discrete_actions_are_counted_from_their_start():
    env = Scripted(action_space=Discrete(3, start=-1))
    environments = looped(env)
    assert environments.spaces.action == Discrete(3)
    environments.reset()
    for action in range(3):
        environments.step(np.array([action]))
    assert env.actions == [-1, 0, 1]
    assert all(env.action_space.contains(action) for action in env.actions)


def test_multi_discrete_actions_are_counted_from_their_starts():
    env = Scripted(action_space=MultiDiscrete([2, 3], start=[5, 7]))
    environments = looped(env)
    assert environments.spaces.action == MultiDiscrete([2, 3])
    environments.reset()
    environments.step(np.array([[1, 2]]))
    assert env.actions[0].tolist() == [6, 9]
    assert env.action_space.contains(env.actions[0])


def test_multi_binary_actions_have_the_dtype_of_their_space():
    env = Scripted(action_space=MultiBinary(3))
    environments = looped(env)
    environments.reset()
    environments.step(np.array([[1, 0, 1]]))
    assert env.action_space.contains(env.actions[0])


def test_the_pendulum_gets_its_own_torques():
    environments = make_environments("Pendulum-v1", np.arange(2), 0)
    assert environments.spaces.action == Box(-1, 1, (1,), np.float32)
    environments.reset()
    environments.step(np.array([[1], [-0.5]], np.float32))
    assert [env.unwrapped.last_u for env in environments._envs] == [2, -1]


def test_an_action_space_without_numbers_and_choices_is_refused_with_what_to_do():
    for space in (Text(5), Dict({"say": Text(5), "do": Discrete(2)}), Dict({}), Box(-1, 1, (0,)), MultiDiscrete([])):
        with pytest.raises(SpaceError, match=r"(Text|Dict|Box|Multi).*ActionWrapper"):
            Actions(space)


def test_actions_of_several_parts_are_numbers_before_choices_in_one_array():
    arms = Tuple([Box(-1, 1, (), np.float64), MultiBinary(2)])
    space = Dict({"move": Box(0, 4, (1, 2), np.float32), "jump": Discrete(3, start=4), "arms": arms})
    actions = Actions(space)
    assert actions.space == Hybrid(Box(-1, 1, (3,), np.float32), MultiDiscrete([2, 2, 3]))
    given = np.array([[0.5, 1, -1, 0, 1, 2], [-0.5, 0, 0, 1, 1, 0]], np.float32)
    first, second = actions.each(given)
    refuse_others(space, first)
    assert first["arms"][0] == 0.5 and second["arms"][0] == -0.5
    assert [each["arms"][1].tolist() for each in (first, second)] == [[0, 1], [1, 1]]
    assert [each["jump"] for each in (first, second)] == [6, 4]
    assert [each["move"].tolist() for each in (first, second)] == [[[4, 0]], [[2, 2]]]
    together = actions.convert(given)
    assert together["jump"].tolist() == [6, 4] and together["move"].shape == (2, 1, 2)


@pytest.mark.parametrize("case", ACTIONS, ids=lambda case: case.kind)
def test_every_action_has_the_shape_and_dtype_of_its_space(case):
    actions, rng = Actions(case.space), np.random.default_rng(0)
    actions.space.seed(0)
    given = np.stack([actions.space.sample() for _ in range(20)])
    if isinstance(actions.space, Box):
        given += rng.normal(size=given.shape).astype(np.float32) * (0 if isinstance(actions.space, Hybrid) else 1)
    for action in actions.each(given):
        refuse_others(case.space, action)
    assert len(actions.space.shape) == 1


@pytest.mark.parametrize("case", ACTIONS, ids=lambda case: case.kind)
def test_simulators_get_actions_of_every_shape_in_batches(case):
    autoreset = gym.vector.AutoresetMode.SAME_STEP
    simulator = SyncVectorEnv([lambda: Lenient(case.space)] * 3, autoreset_mode=autoreset)
    environments = NativeEnvironments(simulator, np.arange(3), 0)
    environments.reset()
    environments.step(np.stack([environments.spaces.action.sample() for _ in range(3)]))


class Lenient(Demanding):
    """Takes numbers without axes, too, as Gymnasium hands them over from a batch."""

    def step(self, action):
        return super().step(trees.map(lambda x: np.asarray(x) if isinstance(x, np.generic) else x, action))


class Mission(gym.Space):
    """Texts in a space of its own class, which does not say how long they are: what MiniGrid has."""

    def __init__(self, *texts):
        super().__init__(dtype=str)
        self.texts = texts

    def sample(self):
        return self.texts[int(self.np_random.integers(len(self.texts)))]

    def contains(self, x):
        return x in self.texts

    def __eq__(self, other):
        return isinstance(other, Mission) and self.texts == other.texts


def told(space, *texts):
    """Observations of an environment that returns these, one after the other."""
    following = iter(texts[1:])
    environments = looped(
        Scripted(space, reset=lambda seed: (texts[0], {}), step=lambda action: (next(following), 0.0, False, False, {}))
    )
    return environments, [environments.reset(), *(environments.step(np.zeros(1, np.int64))[0] for _ in texts[1:])]


def test_texts_are_codes_of_their_characters_in_sorted_order_and_0_after_the_last_one():
    environments, seen = told(Text(5, charset="cab"), "ab", "", "ccccc")
    assert environments.spaces.observation == MultiDiscrete([4] * 5, dtype=np.uint8)
    assert [each[0].tolist() for each in seen] == [[1, 2, 0, 0, 0], [0] * 5, [3] * 5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abcabc", r"has 6 characters: 'abcabc'; expected 2 to 5, as Text\(2, 5, .*says"),
        ("a", "has 1 characters: 'a'; expected 2 to 5"),
        ("adb", "is 'adb', with 'd'; expected characters of Text"),
        (b"ab", "is a bytes: .*expected a text"),
        (None, "is a NoneType: None; expected a text"),
    ],
)
def test_a_text_outside_of_its_space_is_told(text, message):
    space = Text(5, min_length=2, charset="abc")
    with pytest.raises(EnvironmentFault, match=f"step 1: the observation {message}"):
        told(space, "ab", text)


def test_texts_of_a_space_that_does_not_say_what_it_holds_are_read_and_cut_with_a_warning():
    space = Dict({"mission": Mission("go to A", "get B"), "place": Discrete(4)})
    with pytest.warns(UserWarning, match="has 130 characters, and its space, a Mission, does not say .* first 128"):
        environments, seen = told(space, *({"mission": text, "place": 1} for text in ("get B", "go to A?!", "x" * 130)))
    codes = [each["mission"][0] for each in seen]
    assert environments.spaces.observation["mission"].shape == (128,)
    assert codes[0][:5].tolist() == [codes[1][0], codes[0][1], codes[0][2], codes[1][2], codes[0][4]]
    assert codes[1][7] == codes[1][8] == environments.spaces.observation["mission"].nvec[0] - 1
    assert (codes[2] == codes[2][0]).all()


def test_a_space_of_texts_without_samples_is_read_too():
    class Mute(Mission):
        def sample(self):
            raise NotImplementedError

    _, seen = told(Mute(), "go")
    assert (seen[0] > 0).sum() == 2


def test_float64_observations_become_float32():
    env = Scripted(
        Box(-np.inf, np.inf, (2,), np.float64),
        reset=lambda seed: (np.zeros(2), {}),
        step=always(np.array([1 / 3, 2.0]), 1, False, False, {}),
    )
    environments = looped(env)
    assert environments.spaces.observation.dtype == np.float32
    assert environments.reset().dtype == np.float32
    observation, reward, *_ = environments.step(np.zeros(1, np.int64))
    assert observation[0].tolist() == [np.float32(1 / 3), 2]
    assert reward.dtype == np.float32


def test_discrete_observations_are_int64_and_counted_from_zero():
    env = Scripted(Discrete(4, start=10), reset=lambda seed: (10, {}), step=always(13, 0.0, False, False, {}))
    environments = looped(env)
    assert environments.spaces.observation == Discrete(4)
    first, (second, *_) = environments.reset(), environments.step(np.zeros(1, np.int64))
    assert (first.dtype, first.tolist(), second.tolist()) == (np.int64, [0], [3])


def test_images_stay_uint8():
    frame = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    env = Scripted(Box(0, 255, (2, 2, 3), np.uint8), reset=lambda seed: (frame, {}))
    observation = looped(env).reset()
    assert observation.dtype == np.uint8
    assert np.array_equal(observation[0], frame)


NESTED = Dict({"b": Tuple([Discrete(3), Box(-1, 1, (2,), np.float64)]), "a": Dict({"c": MultiBinary(2)})})


def nested(t):
    return {"b": (t % 3, np.full(2, t / 10)), "a": {"c": np.array([t % 2, 1], np.int8)}}


def nested_env():
    return Scripted(NESTED, reset=lambda seed: (nested(0), {}), step=lambda t: (nested(t), 0.0, t == 2, False, {}))


@pytest.mark.parametrize(
    "make",
    [
        lambda: looped(nested_env(), nested_env()),
        lambda: NativeEnvironments(SyncVectorEnv([nested_env] * 2, autoreset_mode="SameStep"), np.arange(2), 0),
        lambda: NativeEnvironments(SyncVectorEnv([nested_env] * 2, autoreset_mode="Disabled"), np.arange(2), 0),
        lambda: NativeEnvironments(SyncVectorEnv([nested_env] * 2, autoreset_mode="NextStep"), np.arange(2), 0),
    ],
    ids=["loop", "same step", "disabled", "next step"],
)
def test_nested_observations_are_trees_of_plain_dicts_and_tuples(make):
    environments = make()
    observation = environments.reset()
    assert type(observation) is dict
    assert type(observation["b"]) is tuple
    assert [leaf.dtype for leaf in trees.leaves(observation)] == [np.int8, np.int64, np.float32]
    after, *_ = environments.step(np.zeros(2, np.int64))
    assert after["b"][0].tolist() == [1, 1]
    assert after["b"][1].tolist() == [[np.float32(0.1)] * 2] * 2
    after, _, terminated, _, final = environments.step(np.zeros(2, np.int64))
    assert terminated.all()
    assert after["b"][0].tolist() == [0, 0]
    assert final[1]["b"][0] == 2
    assert final[1]["a"]["c"].tolist() == [0, 1]


def masked(t, info_mask):
    mask = np.array([t % 2 == 0, 1], np.int8)
    return (ZEROS, {"action_mask": mask}) if info_mask else ({"action_mask": mask, "position": ZEROS}, {})


def masked_env(info_mask, final=None):
    space = None if info_mask else Dict({"action_mask": MultiBinary(2), "position": Box(-1, 1, (2,), np.float32)})

    def step(t):
        observation, info = masked(t, info_mask)
        if t == 3 and final is not None:
            info = final
        return observation, 0.0, t == 3, False, info

    return Scripted(space, reset=lambda seed: masked(0, info_mask), step=step)


@pytest.mark.parametrize("kind", ["loop", "SameStep", "Disabled", "NextStep"])
@pytest.mark.parametrize("info_mask", [True, False])
def test_action_masks_become_a_key_of_the_observation(info_mask, kind):
    def make():
        return masked_env(info_mask)

    if kind == "loop":
        environments = looped(make(), make())
    else:
        environments = NativeEnvironments(SyncVectorEnv([make] * 2, autoreset_mode=kind), np.arange(2), 0)
    assert environments.spaces.masked
    assert sorted(environments.spaces.observation.spaces) == ["action_mask", "observation" if info_mask else "position"]
    masks = [environments.reset()["action_mask"].tolist()]
    for _ in range(4):
        observation, *_, final = environments.step(np.zeros(2, np.int64))
        masks.append(observation["action_mask"].tolist())
        if final:
            assert final[0]["action_mask"].tolist() == [0, 1]
    even, odd = [[1, 1]] * 2, [[0, 1]] * 2
    assert masks == [even, odd, even, even, odd]


@pytest.mark.parametrize("kind", ["SameStep", "Disabled", "NextStep"])
def test_the_masks_of_a_simulator_s_other_environments_survive_a_restart(kind):
    class Masked(Counter):
        def reset(self, *, seed=None, options=None):
            return super().reset()[0], {"action_mask": np.array([1, 0], np.int8)}

        def step(self, action):
            *rest, _ = super().step(action)
            return *rest, {"action_mask": np.array([self.t % 2, 1], np.int8)}

    simulator = SyncVectorEnv([lambda i=i: Masked(i) for i in range(3)], autoreset_mode=kind)
    environments = NativeEnvironments(simulator, np.arange(3), 0)
    environments.reset()
    alone = 0
    for _ in range(12):
        observation, *_, final = environments.step(np.zeros(3, np.int64))
        alone += len(final) in (1, 2)
        for i, t in enumerate(observation["observation"][:, 2]):
            assert observation["action_mask"][i].tolist() == ([1, 0] if t == 0 else [t % 2, 1])
    assert alone > 3


def test_a_mask_joins_the_keys_of_a_dict_observation():
    space = Dict({"x": Box(-1, 1, (2,), np.float32)})
    env = Scripted(space, reset=lambda seed: ({"x": ZEROS}, {"action_mask": np.array([0, 1], np.int8)}))
    assert sorted(looped(env).reset()) == ["action_mask", "x"]


@pytest.mark.parametrize(
    ("space", "mask", "flags"),
    [
        (MultiDiscrete([[2, 3]]), ((np.array([1, 0]), np.array([1, 1, 0])),), [1, 0, 1, 1, 0]),
        (
            Dict({"b": Discrete(2), "a": Box(-1, 1, (2,)), "c": Tuple([MultiBinary(1), MultiDiscrete([3])])}),
            {"b": np.array([0, 1]), "a": None, "c": (np.array([1, 0]), (np.array([0, 1, 1]),))},
            [0, 1, 1, 0, 0, 1, 1],
        ),
    ],
)
def test_masks_of_the_parts_of_an_action_are_joined(space, mask, flags):
    environments = looped(Demanding(space, mask))
    assert environments.reset()["action_mask"].tolist() == [flags]


def test_a_mask_of_another_size_is_told():
    with pytest.raises(SpaceError, match=r"mask in info has 3 flags; Tuple.* needs 5, one for each choice"):
        looped(Demanding(Tuple([Discrete(2), MultiDiscrete([3])]), np.ones(3)))


def test_a_mask_of_several_parts_is_joined():
    mask = (np.array([0, 1], np.int8), np.array([1, 1, 0], np.int8))
    env = Scripted(action_space=MultiDiscrete([2, 3]), reset=lambda seed: (ZEROS, {"action_mask": mask}))
    assert looped(env).reset()["action_mask"].tolist() == [[0, 1, 1, 1, 0]]


@pytest.mark.parametrize("last", [{}, {"action_mask": np.zeros(2, np.int8)}], ids=["none", "empty"])
def test_the_last_observation_may_come_without_a_mask_or_with_an_empty_one(last):
    environments = looped(masked_env(True, final=last))
    environments.reset()
    for _ in range(3):
        *_, final = environments.step(np.zeros(1, np.int64))
    assert final[0]["action_mask"].tolist() == [1, 1]


def test_a_mask_that_allows_nothing_is_a_fault():
    info = {"action_mask": np.zeros(2, np.int8)}
    env = Scripted(reset=lambda seed: (ZEROS, {"action_mask": np.ones(2)}), step=always(ZEROS, 0.0, False, False, info))
    environments = looped(env)
    environments.reset()
    with pytest.raises(EnvironmentFault, match="step 1: the observation 'action_mask' allows no action"):
        environments.step(np.zeros(1, np.int64))


def test_without_a_mask_in_the_info_of_a_step_every_action_is_allowed():
    env = Scripted(reset=lambda seed: (ZEROS, {"action_mask": np.array([0, 1], np.int8)}))
    environments = looped(env)
    assert environments.reset()["action_mask"].tolist() == [[0, 1]]
    assert environments.step(np.zeros(1, np.int64))[0]["action_mask"].tolist() == [[1, 1]]


def test_taxi_is_masked_by_its_info():
    environments = make_environments("Taxi-v4", np.arange(2), 0)
    observation = environments.reset()
    assert environments.spaces.masked
    assert observation["observation"].dtype == np.int64
    for i, env in enumerate(environments._envs):
        assert observation["action_mask"][i].tolist() == env.unwrapped.action_mask(env.unwrapped.s).tolist()


def test_an_unusable_observation_space_is_refused_with_what_to_do():
    with pytest.raises(SpaceError, match="Sequence.*wrapper"):
        looped(Scripted(gym.spaces.Sequence(Discrete(2))))
    for space in (Box(0, 1, (0,)), Box(0, 255, (3, 0, 3), np.uint8), Dict({}), Tuple(()), MultiDiscrete([])):
        with pytest.raises(SpaceError, match="observation space is .* holds nothing"):
            Observations(space)
    with pytest.raises(SpaceError, match=r"in its part 'arm', is Box\(0,\) float32, which holds nothing"):
        Observations(Dict({"arm": Box(0, 1, (0,)), "leg": Discrete(2)}))


def test_one_environment_gives_what_a_row_of_many_does():
    alone, many = make_environment("CartPole-v1"), make_environments("CartPole-v1", np.arange(1), 3)
    seed = many.state()[0]["seed"]
    assert np.array_equal(alone.reset(seed=seed), many.reset()[0])
    for _ in range(30):
        observation, reward, terminated, truncated, _ = alone.step(1)
        rows = many.step(np.array([1]))
        last = rows[4].get(0, rows[0][0])
        assert np.array_equal(observation, last)
        assert (reward, terminated, truncated) == (rows[1][0], rows[2][0], rows[3][0])
        if terminated:
            break
    assert terminated


def test_one_environment_renders_in_the_mode_that_it_was_made_with():
    environment = make_environment("CartPole-v1", render_mode="rgb_array")
    environment.reset(seed=0)
    assert environment.render().shape == (400, 600, 3)
    environment.close()


def test_one_environment_with_box_actions_and_trees():
    environment = AdaptedEnvironment(nested_env(), "nested")
    assert environment.reset()["b"][0] == 0
    observation, *_ = environment.step(np.int64(1))
    assert observation["b"][0] == 1
