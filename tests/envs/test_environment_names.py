"""What a user may name as an environment, and what is said where it does not exist."""

import sys
import types
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import SyncVectorEnv
from worlds import Counter

from etude.base.errors import ConfigError, EnvironmentFault, MissingExtra, SpaceError
from etude.envs import choose_vectorization, make_environment, make_environments, name_of
from etude.envs.configured import ConfiguredEnvironment

SOURCE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

def short(length=7, render_mode=None):
    return gymnasium.wrappers.TimeLimit(CartPoleEnv(render_mode=render_mode), length)

number = 3
"""


NEIGHBOURS = """
from lengths_of_episodes import LENGTH
from my_cartpoles import short

def made():
    return short(LENGTH)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_cartpoles.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_cartpoles", None)


def limit(environment):
    return environment.env._max_episode_steps


def test_a_gymnasium_id_a_class_and_a_callable_make_environments():
    for env in ("CartPole-v1", CartPoleEnv, lambda: gym.make("CartPole-v1")):
        environment = make_environment(env)
        assert environment.spaces.action.n == 2
        assert environment.reset(seed=0).shape == (4,)


def test_a_module_and_a_callable_in_the_current_folder(folder):
    assert limit(make_environment("my_cartpoles:short")) == 7


def test_a_file_and_a_callable(folder):
    for path in ("my_cartpoles.py", str(folder / "my_cartpoles.py")):
        environment = make_environment(f"{path}:short", length=9)
        assert limit(environment) == 9
        assert environment.name == f"{path}:short"


def test_a_file_imports_its_neighbours_wherever_the_program_runs(folder, tmp_path_factory, monkeypatch):
    (folder / "tasks.py").write_text(NEIGHBOURS)
    (folder / "lengths_of_episodes.py").write_text("LENGTH = 8")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    try:
        assert limit(make_environment(f"{folder}/tasks.py:made")) == 8
    finally:
        sys.modules.pop("lengths_of_episodes", None)
    assert sys.path == [*before, str(folder)]  # behind what is installed


def test_a_function_of_a_file_imports_its_neighbours_when_it_is_called(folder, tmp_path_factory, monkeypatch):
    importing_late = NEIGHBOURS.replace("from lengths_of_episodes import LENGTH\n", "").replace(
        "    return", "    from lengths_of_episodes import LENGTH\n    return"
    )
    assert importing_late.count("import LENGTH") == 1
    (folder / "late_tasks.py").write_text(importing_late)
    (folder / "lengths_of_episodes.py").write_text("LENGTH = 6")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        assert limit(make_environment(f"{folder}/late_tasks.py:made")) == 6
    finally:
        sys.modules.pop("lengths_of_episodes", None)


def test_an_id_of_a_package_that_gymnasium_does_not_know_is_answered_with_how_it_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    for name in ("MiniGrid-Empty-5x5-v0", "BabyAI-GoToObj-v0"):
        for given in (name, f"minigrid:{name}"):
            with pytest.raises(ConfigError, match="needs minigrid: pip install minigrid"):
                make_environment(given)


def test_an_id_of_a_package_that_is_installed_imports_it(folder, monkeypatch):
    made = "import gymnasium\ngymnasium.register('MiniGrid-Made-Up-v0', gymnasium.spec('CartPole-v1').entry_point)\n"
    (folder / "minigrid.py").write_text(made)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "minigrid", raising=False)
    try:
        assert make_environment("MiniGrid-Made-Up-v0").reset(seed=0).shape == (4,)
    finally:
        gym.registry.pop("MiniGrid-Made-Up-v0", None)
        sys.modules.pop("minigrid", None)
    with pytest.raises(ConfigError, match="There is no Gymnasium environment 'MiniGrid-Other-v0'"):
        make_environment("MiniGrid-Other-v0")


def test_gymnasium_s_own_module_and_id():
    assert make_environment("gymnasium:CartPole-v1").reset(seed=0).shape == (4,)


def test_ids_are_made_without_the_checking_wrapper():
    env = make_environment("CartPole-v1").env
    while isinstance(env, gym.Wrapper):
        assert not isinstance(env, gym.wrappers.PassiveEnvChecker)
        env = env.env


def test_keywords_reach_what_makes_the_environment():
    assert limit(make_environment("CartPole-v1", max_episode_steps=33)) == 33
    environments = make_environments("CartPole-v1", np.arange(2), 0, max_episode_steps=5)
    environments.reset()
    flags = [environments.step(np.array([t % 2] * 2))[3].tolist() for t in range(5)]
    assert flags[-1] == [True, True]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("CartPole-v7", "Did you mean CartPole-v1"),
        ("cartpole-v1", "Did you mean CartPole-v1"),
        ("LunarLander", "Did you mean LunarLander"),
        ("Ponk-v9", "There is no Gymnasium environment 'Ponk-v9'"),
        ("Taxi-v3", "deprecated.*Taxi-v4"),
        ("no_such_module:make", "Cannot import 'no_such_module'"),
        ("no_such_file.py:make", "There is no file 'no_such_file.py'"),
        ("gymnasium:wrapers", "gymnasium has no 'wrapers'.*Did you mean"),
        ("my_cartpoles:number", "is a int; expected a callable"),
        ("my_cartpoles:shrt", "has no 'shrt'. Did you mean short"),
        (7, "got 7"),
        (CartPoleEnv(), r"Give a function that makes it: lambda: CartPoleEnv\(\.\.\.\)\.$"),
        (gym.make("CartPole-v1"), r"lambda: gymnasium.make\('CartPole-v1'\)\.$"),
    ],
)
def test_what_cannot_be_made_says_why(env, message, folder):
    with pytest.raises(ConfigError, match=message):
        make_environment(env)


@pytest.mark.parametrize("env", ["my_broken:make", "my_broken.py:make", "my_broken:Some-v0"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("import no_such_dependency", r"ModuleNotFoundError: .*'no_such_dependency' \(.*my_broken.py:2\)"),
        ("1 / 0", r"ZeroDivisionError: division by zero \(.*my_broken.py:2\)"),
        ("raise SystemExit('no main guard')", r"SystemExit: no main guard \(.*my_broken.py:2\)"),
        ("def make(", r"SyntaxError: .* \(my_broken.py, line 2\)"),
    ],
)
def test_what_a_module_of_the_user_raises_at_import_is_told_with_its_line(env, line, message, folder):
    (folder / "my_broken.py").write_text(f"\n{line}\n")
    with pytest.raises(EnvironmentFault, match=f"^The module of '{env}' could not be imported: it raised {message}"):
        make_environment(env)


def test_what_a_module_of_wrappers_raises_at_import_is_told(folder):
    (folder / "my_broken_wrappers.py").write_text("1 / 0")
    env = ConfiguredEnvironment("CartPole-v1", {}, ("my_broken_wrappers:Scaled",))
    with pytest.raises(EnvironmentFault, match="'my_broken_wrappers:Scaled' could not be imported: it raised ZeroDiv"):
        make_environment(env)


def test_a_missing_dependency_of_gymnasium_is_named_with_what_installs_it():
    def make():
        raise gym.error.DependencyNotInstalled("Box2D is not installed")

    with pytest.raises(MissingExtra, match=r"Box2D is not installed.*pip install 'etude\[envs\]'"):
        make_environment(make)


def test_a_missing_dependency_that_no_extra_installs_is_told_in_its_own_words():
    def make():
        raise gym.error.DependencyNotInstalled("Run pip install my-simulator")

    with pytest.raises(ConfigError, match="needs what is not installed: Run pip install my-simulator"):
        make_environment(make)


def test_a_missing_simulator_module_is_named_with_what_installs_it(monkeypatch):
    def make():
        raise ModuleNotFoundError("No module named 'mujoco'", name="mujoco")

    with pytest.raises(MissingExtra, match=r"pip install 'etude\[envs\]'"):
        make_environment(make)


def test_what_is_no_environment_is_refused():
    for make in (dict, lambda: 3):
        with pytest.raises(ConfigError, match="expected a gymnasium.Env"):
            make_environment(make)


def test_an_environment_of_the_old_gym_package_is_named_as_such():
    old = types.new_class("OldEnv", ())
    old.__module__ = "gym.core"
    with pytest.raises(ConfigError, match="old gym package; subclass gymnasium.Env"):
        make_environment(lambda: old())


def fleet(num_envs, first=0):
    return SyncVectorEnv([lambda i=i: Counter(first + i) for i in range(num_envs)], autoreset_mode="SameStep")


def test_a_callable_with_num_envs_makes_a_simulator_of_the_right_size():
    environments = make_environments(fleet, np.arange(5), 0, first=10)
    assert environments.native
    assert environments.reset()[:, 0].tolist() == [10, 11, 12, 13, 14]


def test_a_simulator_cannot_be_looped_and_a_plain_callable_not_vectorised():
    with pytest.raises(ConfigError, match="vectorization='native'"):
        make_environments(fleet, np.arange(2), 0, "loop")
    with pytest.raises(ConfigError, match="no vectorised form.*vectorization='loop'"):
        make_environments(Counter, np.arange(2), 0, "native")
    with pytest.raises(ConfigError, match="parameter num_envs"):
        make_environments(lambda: fleet(2), np.arange(2), 0)


def test_many_cartpoles_are_one_simulator_and_few_are_looped():
    assert choose_vectorization("CartPole-v1", 63) == "loop"
    assert choose_vectorization("CartPole-v1", 64) == "native"
    assert choose_vectorization("CartPole-v1", 64, "loop") == "loop"
    assert choose_vectorization("Pendulum-v1", 500) == "loop"
    assert choose_vectorization(fleet, 1) == "native"


def test_a_vector_entry_point_that_does_not_fit_is_left_aside():
    class Deaf(SyncVectorEnv):
        def __init__(self, num_envs, **kwargs):
            super().__init__([Counter] * num_envs)

        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)

    gym.register("Deaf-v0", Counter, vector_entry_point=Deaf)
    try:
        assert choose_vectorization("Deaf-v0", 100) == "loop"
    finally:
        del gym.registry["Deaf-v0"]


def a_cart_pole():
    return gym.make("CartPole-v1", max_episode_steps=7)


def one_that_cannot_render():
    return Bare()


class Bare(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}


def test_what_a_callable_makes_is_rendered_though_it_takes_no_render_mode():
    environment = make_environment(a_cart_pole, render_mode="rgb_array")
    try:
        environment.reset(seed=1)
        assert environment.render().dtype == np.uint8
        assert environment.env.spec.max_episode_steps == 7  # made again as the callable had made it
    finally:
        environment.close()


def test_what_cannot_be_rendered_says_what_to_change():
    with pytest.raises(ConfigError, match=r"one_that_cannot_render was made with render_mode=None.*'rgb_array'"):
        make_environment(one_that_cannot_render, render_mode="rgb_array")


def test_several_agents_are_rendered_with_the_spaces_of_each():
    environment = make_environment("mpe2:simple_spread_v3", render_mode="rgb_array")
    try:
        assert list(environment.spaces.agents) == ["agent_0", "agent_1", "agent_2"]
        environment.reset(seed=1)
        assert environment.render().ndim == 3
    finally:
        environment.close()


def test_arguments_that_are_bound_already_do_not_change_the_name():
    assert name_of(partial(partial(CartPoleEnv, "human"), None)) == "CartPoleEnv"


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_what_is_no_space_is_refused_with_its_name(name):
    class Listed(CartPoleEnv):
        def __init__(self):
            super().__init__()
            setattr(self, name, [4])

    with pytest.raises(SpaceError, match=f"Listed has no {name} of gymnasium.spaces. Set self.{name} in __init__"):
        make_environments(Listed, np.arange(1), 0)


def test_the_reset_of_the_old_gym_api_is_told_what_it_takes():
    class Old(CartPoleEnv):
        def reset(self):
            return super().reset()

    with pytest.raises(EnvironmentFault, match=r"keyword argument 'seed'.*Expected: def reset\(self, \*, seed=None"):
        make_environments(Old, np.arange(1), 0).reset()
