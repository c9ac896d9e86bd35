"""What a collector is to do: a chunk of time steps, or whole episodes.

Plans ask for steps and do not take them: environments may be anywhere, and may step while another plan goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etude.base import trees
from etude.base.data import Steps
from etude.protocols import Environments
from etude.rollout.collector import SHORTEST, Clock, Collector, End, Plan, Result
from etude.rollout.episodes import Episodes, Played, Stretch
from etude.rollout.rows import Ends, Rows, Template

MakeRows = Callable[[Template, int, int], Rows]


def carry_out(plan: Plan[Result], environments: Environments) -> Result:
    """Take the steps that a plan asks for; returns its result."""
    take, send, outcome = environments.step, plan.send, None
    while True:
        try:
            action, at = send(outcome)
        except StopIteration as done:
            return done.value
        outcome = take(action, at)


def chunk(
    collector: Collector, steps: int, step: int, n: int, stride: int, make_rows: MakeRows = Rows.allocate
) -> Plan[Steps]:
    """`steps` time steps of the first `n` environments.

    step: environment steps of the run so far. stride: by how much each time step advances them, which is the number of
    environments that the whole run steps. make_rows: where to write.
    """
    # A native simulator cannot step a part: it steps everything, and the columns that were not asked for lose rows.
    width = len(collector.columns) if collector.environments.native else n
    positions = collector.everyone[:width]
    rows = make_rows(collector.template(), steps, width)
    noise = collector.draw(steps, positions)
    while True:
        ends: list[End] = []
        _, lost = yield from collector.stretch(rows, noise, Clock(0, steps, step, stride), positions, ends, _never)
        if not lost:
            break
        collector.cut()  # all columns have as many rows, so that none before the loss is kept
    trees.put(rows.observation, steps, collector.observations(positions))
    restarted = collector.take_restarted(collector.everyone[:n])
    collector.cut(positions[n:])
    index, finals = [(end.t, end.position) for end in ends], [end.observation for end in ends]
    at_ends = Ends.of(index, finals, [end.episode for end in ends], collector.template().observation)
    collected = rows.to_steps(at_ends, collector.columns[:n], restarted)
    collector.judge(collected)
    return collected


def alone(collector: Collector, position: int, steps: int, step: int, stride: int) -> Plan[Steps]:
    """`steps` time steps of the environment at this position, while the others wait. No simulator that is native, and
    none that loses episodes, can do that."""
    ends: list[End] = []
    rows, noise = Rows.allocate(collector.template(), steps, 1), collector.draw(steps, (position,))
    yield from collector.stretch(rows, noise, Clock(0, steps, step, stride), (position,), ends, _never)
    trees.put(rows.observation, steps, collector.observations((position,)))
    index, finals = [(end.t, 0) for end in ends], [end.observation for end in ends]
    at_ends = Ends.of(index, finals, [end.episode for end in ends], collector.template().observation)
    return rows.to_steps(at_ends, collector.columns[[position]], collector.take_restarted((position,)))


def whole_episodes(collector: Collector, step: int, stride: int) -> Plan[tuple[Steps, ...]]:
    """Every environment goes on until it has ended an episode: one `Steps` for each.

    Those that have ended one wait for the others; those of a native simulator go on, and have one `Steps` together. A
    time step advances `step` by `stride` also where only some environments take it.
    """
    episodes = Episodes(len(collector.columns), collector.environments.native)
    while episodes.left:
        limit = episodes.time or collector.expected  # rows grow by doubling
        episodes.add((yield from piece(collector, episodes.left, limit, step + episodes.time * stride, stride)))
    collector.expected = max(SHORTEST, episodes.time)
    return episodes.to_steps(collector.columns)


def piece(
    collector: Collector,
    left: tuple[int, ...],
    limit: int,
    step: int,
    stride: int,
    make_rows: MakeRows = Rows.allocate,
) -> Plan[Played]:
    """The environments at the positions `left` go on until they have ended an episode, or for `limit` time steps, or
    until an episode is lost. Each stops at its end, but for a native simulator."""
    native = collector.environments.native
    playing = everyone = collector.everyone if native else left
    rows = make_rows(collector.template(), limit, len(everyone))
    collector.leave_unjudged(rows)
    restarted, generators = collector.take_restarted(everyone), collector.generators(everyone)
    noise = collector.draw(limit, everyone)
    halt = _when_all_of(left) if native else _at_once
    stretches: list[Stretch] = []
    ends: list[End] = []
    lost: list[int] = []
    t, stopped = 0, dict.fromkeys(everyone, 0)
    while left and t < limit and not lost:
        start, clock = t, Clock(t, limit, step, stride)
        t, lost = yield from collector.stretch(rows.first(len(playing)), noise, clock, playing, ends, halt)
        stretches.append(Stretch(start, t, playing))
        stopped |= dict.fromkeys(playing, t)
        ended = {end.position for end in ends}
        left = tuple(i for i in left if i not in ended)
        if left and not native:
            noise = noise[:, [column for column, i in enumerate(playing) if i not in ended]]
            playing = left
    for i, state in zip(everyone, generators, strict=True):
        if stopped[i] < limit:
            collector.rewind(i, state, stopped[i])
    if native and lost:
        collector.cut()
    following = collector.observations(everyone)
    return Played(rows, tuple(stretches), tuple(ends), everyone, following, restarted, frozenset(lost), left)


def _never(ends: list[End]) -> bool:
    return False


def _at_once(ends: list[End]) -> bool:
    return True


def _when_all_of(left: tuple[int, ...]) -> Any:
    return lambda ends: {*left} <= {end.position for end in ends}
