"""Files of agents of one's own, which hold no code: what each command makes of them."""

import pytest
import torch
from torch import nn

import etude
from etude import cli
from etude.base.errors import CheckpointError
from etude.explore import EpsGreedyQPolicy

CLASS = """
import etude
from torch import nn


class Mine(etude.RL_pytorch):
    def __init__(self):
        super().__init__()
        self.q, self.env = nn.Linear(4, 2), "CartPole-v1"
        self.param = self.q.parameters()

    def action(self, s):
        return self.q(s)

    def __call__(self, s, a, next_s, r, d):
        return (self.q(s).gather(1, a[:, None])[:, 0] - r) ** 2


def no_agent():
    return 3


def sized(size):
    return Mine()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a class in `mine.py`, and an agent of it that has learned for some episodes in `mine.etude`."""
    path = tmp_path_factory.mktemp("own")
    (path / "mine.py").write_text(CLASS)
    names = {}
    exec(CLASS, names)
    agent = names["Mine"]()
    agent.set(policy=EpsGreedyQPolicy(0.1), batch=16, num_updates=1)
    agent.train(torch.optim.Adam(agent.param), episodes=3, p=0)
    agent.save(path / "mine.etude")
    return path


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def test_an_agent_of_ones_own_is_evaluated_and_filmed_once_its_class_is_named(here, capsys):
    assert cli.main(["evaluate", "mine.etude", "--agent", "mine.py:Mine", "--episodes", "2"]) == 0
    assert capsys.readouterr().out.startswith("Mine after 3 episodes: return ")
    film = ["--video", "mine.gif", "--max-steps", "5"]
    assert cli.main(["watch", "mine.etude", "--agent", "mine.py:Mine", *film]) == 0
    assert (here / "mine.gif").stat().st_size


def test_its_rewards_and_losses_are_drawn_without_its_class(here, capsys):
    assert cli.main(["plot", "mine.etude"]) == 0
    assert (here / "mine.png").stat().st_size
    assert cli.main(["plot", "mine.etude", "--output", "other.png"]) == 0
    assert capsys.readouterr().out == "Drawn: mine.png\nDrawn: other.png\n"


@pytest.mark.parametrize("command", ["evaluate mine.etude", "watch mine.etude --video a.gif", "resume mine.etude"])
def test_other_commands_say_what_to_do_with_it(here, command, capsys):
    assert cli.main(command.split()) == 2
    assert capsys.readouterr().err == (
        "etude: mine.etude holds an agent of one's own, of the class Mine, and no code. Make one and restore it: agent "
        "= Mine(); agent.restore('mine.etude'). It goes on with agent.set(...) and agent.train(...) (etude evaluate "
        "and etude watch take mine.etude --agent FILE.py:Mine).\n"
    )
    for read in (etude.load, etude.resume):
        with pytest.raises(CheckpointError, match=r"agent.restore\('mine.etude'\).*agent.train\(...\)\.$"):
            read("mine.etude")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine.py:Mime", "mine.py has no agent 'Mime'. Did you mean Mine?"),
        ("mine.py:no_agent", "made a int; expected an agent of etude.RL or RL_pytorch"),
        ("mine.py:sized", "Name a function that makes the agent"),
    ],
)
def test_what_makes_no_agent_is_one_sentence(here, name, message, capsys):
    assert cli.main(["evaluate", "mine.etude", "--agent", name]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_text_is_one_sentence(here, capsys):
    (here / "noise.bin").write_bytes(bytes(range(256)))
    assert cli.main(["plot", "noise.bin"]) == 2
    assert "noise.bin holds no text. Give a run directory" in capsys.readouterr().err


def test_a_network_alone_is_evaluated_too():
    class Mine(etude.RL_pytorch):
        def __init__(self):
            super().__init__()
            self.q, self.env = nn.Linear(4, 2), "CartPole-v1"

        def action(self, s):
            return self.q(s)

    found = Mine().evaluate(episodes=3, max_steps=5)
    assert (found.lengths, found.cut_off) == ((5, 5, 5), 3)
    agent = Mine()
    assert agent.evaluate(episodes=2, seed=3).lengths[1:] == agent.evaluate(episodes=1, seed=4).lengths
