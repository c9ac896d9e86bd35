"""Recorded data, alone and in fixed shares beside what is collected: whole small runs beside the slow program of
`slow_replay`. What is learned from is what was executed, whatever recorded it."""

import functools
import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np
from drawing import drawn, pieces, scripts
from hypothesis import strategies as st
from scripted_worlds import ScriptedWorld
from slow_replay import COLLECTED, ActsByClock, SlowRecorded, SlowReplay, follow, trained
from value_agents import FIELDS, TICKS, Clock, ClockConfig
from watched import Watched, watched_events

import etude
from etude.base.events import Collected, Started

MOVES = [gym.spaces.Box(-1.0, 1.0, (2,), np.float32), gym.spaces.Box(np.float32([-2, 0]), np.float32([4, 1]))]
NARROW = {"network": etude.Mlp((4,)), "batch_size": 6}
FORMATS = ("memory", "file", "parquet", "jsonl")


class SlowMixedClock(ActsByClock, SlowReplay):
    """Transitions of several sources."""


@drawn(
    few=2, many=20, script=scripts(), config=st.builds(ClockConfig, **FIELDS), episodes=st.integers(1, 4),
    lengths=st.sampled_from([(7,), (30, 90), (120,), (101, 3, 60)]), total=st.sampled_from([None, 500]),
)  # fmt: skip
def test_recorded_data_alone_is_learned_from_in_phases_whose_schedules_are_those_of_their_gradient_steps(
    script, config, episodes, lengths, total
):
    world = functools.partial(ScriptedWorld, script, TICKS)
    data = etude.record(world, episodes, seed=3)
    slow = SlowRecorded(config, 0, script, TICKS, {"recorded": data.episodes}, {"recorded": 1.0})
    with etude.Run(Clock(config), world, data=data, engine="torch") as run:
        for length in lengths:
            slow.total = max(slow.total, slow.step + length, total or 0)
            slow.begin(length)
            follow(run, slow, watched_events(run.steps(length, total=total)))


@drawn(
    few=2, many=25, script=scripts(), config=st.builds(ClockConfig, **FIELDS), environments=st.integers(1, 2),
    lengths=pieces(40), shares=st.lists(st.integers(1, 4), min_size=2, max_size=3),
)  # fmt: skip
def test_every_batch_holds_fixed_shares_of_recorded_data_and_of_what_is_collected(
    script, config, environments, lengths, shares
):
    world = functools.partial(ScriptedWorld, script, TICKS)
    data = [etude.record(world, 1 + i, seed=i + 1) for i in range(len(shares) - 1)]
    names = [f"data {i + 1}" for i in range(len(data))] + [COLLECTED]
    recorded = {name: one.episodes for name, one in zip(names, data, strict=False)}
    each = {name: share / sum(shares) for name, share in zip(names, shares, strict=True)}
    slow = SlowMixedClock(config, environments, script, TICKS, recorded, each)
    sources = [*zip(data, shares, strict=False), (COLLECTED, shares[-1])]
    with etude.Run(Clock(config), world, environments=environments, data=sources, engine="torch") as run:
        trained(run, slow, lengths)


class WatchedTD3BC(Watched, etude.algorithms.TD3BC):
    """TD3+BC, watched."""


class WatchedIQL(Watched, etude.algorithms.IQL):
    """IQL, watched."""


class WatchedAWAC(Watched, etude.algorithms.AWAC):
    """AWAC, watched."""


class WatchedSAC(Watched, etude.algorithms.SAC):
    """SAC, watched."""


@drawn(few=2, many=15, script=scripts(), space=st.sampled_from(MOVES), kept=st.sampled_from(FORMATS))
def test_recordings_of_samples_beyond_the_bounds_hold_what_was_executed(folder, script, space, kept):
    world = functools.partial(ScriptedWorld, script, space)
    recorder, path = etude.offline.EpisodeRecorder(), Path(tempfile.mkdtemp(dir=folder))
    writer = etude.offline.Writer(path, kept) if kept in ("parquet", "jsonl") else lambda event: None
    with etude.Run("ppo", world, environments=2, engine="torch", rollout_length=8, network=NARROW["network"]) as run:
        for event in run.steps(48):
            writer(event)
            if isinstance(event, Started):
                source = event.spaces
            for steps in getattr(event, "steps", ()) if isinstance(event, Collected) else ():
                recorder.add(steps)
    data = etude.offline.Dataset(tuple(recorder.episodes), source, None)
    if kept == "file":
        etude.offline.write(path / "data.parquet", data)
    config = etude.config("td3_bc", gradient_steps=4, normalize_observation=False, **NARROW)
    slow = SlowRecorded(config, 0, script, space, {"recorded": data.episodes}, {"recorded": 1.0})
    slow.phase, slow.total = 4, 8
    with etude.Run(WatchedTD3BC(config), world, data=data if kept == "memory" else path, engine="torch") as run:
        slow.begin(8)
        follow(run, slow, watched_events(run.steps(8)))


@drawn(
    few=2, many=15, script=scripts(), space=st.sampled_from(MOVES), agent=st.sampled_from([WatchedIQL, WatchedAWAC]),
    environments=st.integers(1, 2), lengths=pieces(40),
)  # fmt: skip
def test_agents_that_go_on_online_learn_from_the_actions_that_were_executed(
    script, space, agent, environments, lengths
):
    world = functools.partial(ScriptedWorld, script, space)
    data = etude.record(world, 3, seed=3)
    name = agent.__name__.removeprefix("Watched").lower()
    config = etude.config(name, learning_starts=4, train_every=3, gradient_steps=2, buffer_size=60, **NARROW)
    slow = SlowReplay(config, environments, script, space, {"data 1": data.episodes}, {"data 1": 0.5, COLLECTED: 0.5})
    sources = [(data, 0.5), (COLLECTED, 0.5)]
    with etude.Run(agent(config), world, environments=environments, data=sources, engine="torch") as run:
        trained(run, slow, lengths)
