"""benchmarks*.md: a summary, learning, speed and memory, from benchmarks/*.json."""

from __future__ import annotations

import compared
import measured
import measured_evolution
import measured_features
from markdown_table import NOTE

SPEED = {
    "start_up": "Start-up (seconds)",
    "acting": "From an observation to an action (microseconds)",
    "learn_step": "A gradient step (microseconds), beside a bare loop in the same framework",
    "replay": "Replay: adding 8 rows, sampling 256, memory",
    "rollouts": "Collecting (environment steps per second), and the memory of workers",
    "pools": "Pools of many workers (seconds until their first chunk), and of many weights (steps per second)",
    "simultaneous": "One, two and four runs at once on two cores: total environment steps per second, cost per step",
    "solo_speed": "Agents in Keras or PyTorch: collecting (environment steps per second), with and without learning",
}
MACHINES = ("learning", "defaults", "evolution", "offline", "solo_learning", "whole_run", *SPEED)


def about() -> str:
    """Where the figures were measured, one line for each machine and set of versions."""
    found: dict[str, list[str]] = {}
    for name in MACHINES:
        held = measured.read(name).get("about", {})
        if held:
            libraries = ", ".join(f"{library} {number}" for library, number in held["versions"].items())
            peers = "".join(f", {library} {number}" for library, number in held.get("peers", {}).items())
            line = f"{held['machine']['processor']}, {held['machine']['cores']} cores, {held['machine']['system']}: "
            found.setdefault(f"{line}{libraries}" + (f"; peers: {peers[2:]}" if peers else ""), []).append(name)
    return "".join(f"- {', '.join(names)}: {line}.\n" for line, names in found.items()) or measured.NOT_MEASURED


def _picture(name: str, text: str) -> str:
    drawn = (measured.BENCHMARKS / name).exists()
    return f"![{text}](figures/{name})\n" if drawn else measured.NOT_MEASURED


def benchmarks() -> dict[str, str]:
    """The pages by their names."""
    return {"benchmarks.md": _overview(), "benchmarks-learning.md": _learning(), "benchmarks-speed.md": _speed()}


def _overview() -> str:
    return f"""# Benchmarks

{NOTE}
Look up how fast etude trains beside other libraries, what it learns ([learning](benchmarks-learning.md)), what single
parts cost ([speed and memory](benchmarks-speed.md)), and how it was measured.

How many times as many environment steps per second etude takes as other libraries, in whole runs with the same
hyperparameters and one thread. Compilation is included, imports are not.

{compared.summary()}
![Times as many environment steps per second as other libraries](figures/speed.png)

Against Stable-Baselines3 (with its contrib package) and SBX both sides use the hyperparameters of RL Baselines3 Zoo;
against CleanRL, those of CleanRL's scripts. {compared.agilerl()}
## Method

`python benchmarks/learning.py` and `solo_learning.py` measure learning (hours), `make bench` speed and memory,
`python -m benchmarks.simultaneous` several runs at once (an hour, on an otherwise idle machine). They write JSON into
`benchmarks/`, from which `python docs/generate.py` writes these pages. The machines are noisy: compared programs ran in
turns, and a ratio is the median of the ratios of the turns. Goals are bounds that the project set itself.

{about()}
## Whole runs

The runs behind the summary. "zoo": the hyperparameters of RL Baselines3 Zoo. In parentheses the lowest and the highest
ratio of the turns. The returns of DQN with CleanRL's hyperparameters differ because of the loss: etude's is the Huber
loss (Mnih et al. 2015), CleanRL's the squared error, which learns faster in the 4,000 gradient steps that these
hyperparameters leave (a loop of either loss in plain PyTorch reaches returns of 10 to 28 and of 74 to 272). TRPO's
critics take a quarter of the zoo's gradient steps, as in etude's preset. ARS plays the 16 episodes of a generation side
by side, where Stable-Baselines3's plays one after the other. CrossQ was measured on another machine, an Intel Xeon at
2.5 GHz.

{compared.in_full()}
## Single features

Each is a script of `benchmarks/`, whose first lines say how to run it. In parentheses the lowest and the highest value
of the turns, or their interval.

{measured_features.features()}"""


def _learning() -> str:
    return f"""# Benchmarks of learning

{NOTE}
Look up the return that each algorithm reaches, seed by seed. [Benchmarks](benchmarks.md#method) names the machines.

## Presets

20 episodes of evaluation after the last step. All seeds that were run are listed.

{measured.learning()}
## Defaults beside those of Stable-Baselines3

`python benchmarks/defaults.py --peers PYTHON`: no preset on either side, equal numbers of environment steps, the mean
return of 20 episodes from the same initial states after the last step. In parentheses the 95% bootstrap interval of the
mean over seeds. `python benchmarks/compare_ppo_update.py --peers PYTHON` compares single updates of PPO.

{measured.defaults()}
{_picture("defaults.png", "Returns of etude and of Stable-Baselines3 with the defaults of each")}
## Evolution and searches

`benchmarks/evolution.py`: environment steps of all members, evaluations included, and seconds until an evaluation
reaches the target: the median (lowest to highest) of all seeds, "never" for one that did not reach it.

From a learning rate that is wrong and a network of four units, on CartPole-v1 with the target 475: a population of six,
and a run that keeps these hyperparameters for as many steps as its members may train together.

{measured_evolution.evolution("bad", ["algorithm", "learning rate", "run"])}
Populations of four by etude, with its presets, and by AgileRL, with the values of its documentation, one thread a
process; `agilerl` has its environments in processes of their own. The target is 475 on CartPole-v1, 200 on
LunarLander-v3.

{measured_evolution.evolution("peers", ["algorithm", "environment", "library"])}
PPO on CartPole-v1 with the target 475: evolution and searches over the same ranges with the same number of steps.

{measured_evolution.evolution("searches", ["search"])}
{_picture("evolution.svg", "Environment steps of each seed until the target")}
## Learning from recorded data

{measured.offline()}
## Several agents

{measured.multi_agent()}
## bsuite

`benchmarks/bsuite_tasks.py` lists the hyperparameters. `deep_sea` uses a count-based exploration bonus, 0.1 divided by
the square root of the visit count of an observation (Strehl & Littman 2008); `cartpole_swingup`, temporally extended
exploration (`EpsilonZGreedy`).

{measured.bsuite()}
## Ape-X beside DQN

{measured.apex()}
## Agents in Keras or PyTorch

The example agents of `etude/examples`. CartPole-v1 counts as solved, and training stops, when the training return,
exploration included, has a mean of 475 over ten phases of one episode per environment. ddpg_her: the success rate over
100 episodes. maddpg: the mean return of 100 episodes, summed over the agents{measured.at_random()}.

{measured.learning_of_own_agents()}"""


def _speed() -> str:
    sections = "\n".join(f"## {title}\n\n{measured.speed(name)}" for name, title in SPEED.items())
    return f"""# Benchmarks of speed and memory

{NOTE}
Look up what the parts of a run cost. [Benchmarks](benchmarks.md#method) names the machines. Figures are medians with
their range, or medians alone in wide tables.

{_picture("simultaneous.svg", "Total environment steps per second of one, two and four runs at once")}
{sections}"""
