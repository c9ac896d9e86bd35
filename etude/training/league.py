"""A league: frozen copies of a policy that learns, as its opponents, with the results of its games against each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base.checks import Stored
from etude.base.data import Steps
from etude.engines.by_policy import CHANCES, NUMBERS
from etude.explore.combined import COPY
from etude.multi_agent.by_policy import League
from etude.protocols import Weights

FIRST, STEP_SIZE, SCALE = 1_000.0, 16.0, 400.0  # Elo: the first rating, K, and the difference of odds of 10 to 1


@dataclass
class LeagueCopy:
    """A copy of the policy as it was at environment step `step`.

    games: that the policy has played against it. score: of these, how many the policy won; a draw counts half.
    """

    step: int
    weights: Weights
    elo: float
    games: int = 0
    score: float = 0.0

    @property
    def win_rate(self) -> float:
        """The policy's share of wins against it, as if a game more had been won and one more lost."""
        return (self.score + 1.0) / (self.games + 2.0)


def slots(league: League, environments: int) -> int:
    """How many copies may act at once: those of the league, one that leaves it, and one that has left it in each
    environment."""
    return league.size + (environments + 1 if environments else 0)


class LeagueTable:
    """The copies of one league, and Elo ratings. Elo 1978, The rating of chessplayers, past and present.

    policy: its name among the policies. weights: reads the present ones of the policy that learns, as a copy has them.
    players, opponents: the agents of both sides; the side with the higher sum of returns wins an episode. environments:
        how many play. A copy that leaves the league goes on with the episodes that it plays until they end.
    """

    def __init__(
        self,
        league: League,
        policy: str,
        weights: Callable[[], Weights],
        players: Iterable[str],
        opponents: Iterable[str],
        environments: int = 0,
    ):
        self.league: League = league
        self.slots: int = slots(league, environments)
        self._policy, self._weights = policy, weights
        self._players, self._opponents = tuple(players), tuple(opponents)
        self.elo: float = FIRST
        self.copies: dict[int, LeagueCopy] = {}
        self.leaving: dict[int, LeagueCopy] = {}  # have left, and may still be played against
        self._playing = np.full(environments, -1, np.int64)  # the copy that each environment's open episode is against
        self._loaded: Weights = {}
        self.update(0)

    def follow(self, steps: Steps) -> None:
        """Remember which copies the open episodes are played against."""
        numbers = steps.extras[f"{self._policy}.{COPY}"][-1].astype(np.int64)
        self._playing[steps.columns] = np.where(steps.terminated[-1] | steps.truncated[-1], -1, numbers)

    def record(self, steps: Steps) -> None:
        """Count the episodes that ended in these steps."""
        numbers = steps.extras[f"{self._policy}.{COPY}"]
        for (t, n), end in zip(steps.final_index.tolist(), steps.episodes, strict=True):
            number, totals = int(numbers[t, n]), end.total_by_agent
            copy = self.copies.get(number, self.leaving.get(number))
            if copy is None or totals is None:
                continue
            won = sum(totals[name] for name in self._players) - sum(totals[name] for name in self._opponents)
            score = 0.5 + 0.5 * float(np.sign(won))
            copy.games, copy.score = copy.games + 1, copy.score + score
            moved = STEP_SIZE * (score - 1.0 / (1.0 + 10.0 ** ((copy.elo - self.elo) / SCALE)))
            self.elo, copy.elo = self.elo + moved, copy.elo - moved

    def update(self, step: int) -> None:
        """After a learning phase: take a copy if one is due, and set how often each is to play."""
        playing = set(self._playing.tolist())
        self.leaving = {left: copy for left, copy in self.leaving.items() if left in playing}
        number, newest = step // self.league.every, max(self.copies, default=-1)
        if newest < 0 or number != self.copies[newest].step // self.league.every:
            number = max(number, newest + 1)  # `every` may have been another when the newest one was taken
            self.copies[number] = LeagueCopy(step, self._weights(), self.elo)
            ordered = list(self.copies.items())
            self.copies = dict(ordered[-self.league.size :])
            if len(self._playing):  # episodes that workers have begun ahead may be against the one that leaves
                self.leaving |= dict(ordered[: -self.league.size])
        self._loaded = self._to_load()

    def follow_moments(self, step: int) -> None:
        """Let a copy of this step hold the normaliser that its networks are used with, which moves after learning."""
        number, newest = next(reversed(self.copies.items()))
        if newest.step == step:
            newest.weights = self._weights()
            slot = len(self.copies) - 1
            assert self._loaded[NUMBERS][slot] == number
            self._loaded |= {f"{slot}.{name}": value for name, value in newest.weights.items()}

    def weights(self) -> Weights:
        """What a `LeagueEngine` acts with, as of the last update."""
        return self._loaded

    def metrics(self) -> dict[str, float]:
        """The policy's rating, and its mean win rate against the copies."""
        rates = [copy.win_rate for copy in self.copies.values()]
        return {f"{self._policy}.elo": self.elo, f"{self._policy}.win_rate": float(np.mean(rates))}

    def table(self) -> list[dict[str, Any]]:
        """A row for each copy, oldest first: its number, step, Elo rating, and the policy's games and win rate."""
        return [
            {"copy": number, "step": copy.step, "elo": copy.elo, "games": copy.games, "win_rate": copy.win_rate}
            for number, copy in self.copies.items()
        ]

    def state(self) -> dict[str, Any]:
        """Plain data and arrays from which `restore` goes on."""
        copies, leaving = (
            {str(number): vars(copy).copy() for number, copy in each.items()} for each in (self.copies, self.leaving)
        )
        chances = self._loaded[CHANCES][: self.league.size]
        return {"elo": self.elo, "copies": copies, "chances": chances, "leaving": leaving, "playing": self._playing}

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed."""
        held = saved.fields(("elo", "copies", "chances"), ("leaving", "playing"))
        held["elo"].number()
        held["chances"].array(np.float32, (self.league.size,), 0)
        copies = held["copies"].table()
        if not 1 <= len(copies) <= self.league.size or not all(n.isascii() and n.isdigit() for n in copies):
            held["copies"].refuse(f"1 to {self.league.size} copies by number")
        leaving = held["leaving"].table() if "leaving" in held else {}
        if len(leaving) > self.slots - self.league.size or not all(n.isascii() and n.isdigit() for n in leaving):
            held["leaving"].refuse(f"at most {self.slots - self.league.size} copies by number")
        if "playing" in held:
            held["playing"].array(np.int64, self._playing.shape, -1)
        like = next(iter(self.copies.values())).weights
        for copy in (*copies.values(), *leaving.values()):
            own = copy.fields(("step", "weights", "elo", "games", "score"))
            own["step"].whole()
            own["weights"].like(like)
            own["elo"].number()
            own["score"].number(0, own["games"].whole())

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed."""
        self.elo = float(state["elo"])
        self.copies, self.leaving = (
            {int(number): LeagueCopy(**copy) for number, copy in each.items()}
            for each in (state["copies"], state.get("leaving", {}))
        )
        self._playing[:] = state.get("playing", -1)
        self._loaded = self._to_load()
        self._loaded[CHANCES][: self.league.size] = state["chances"]

    def _to_load(self) -> Weights:
        found = {NUMBERS: np.full(self.slots, -1.0, np.float32), CHANCES: np.zeros(self.slots, np.float32)}
        for slot, (number, copy) in enumerate((*self.copies.items(), *self.leaving.items())):
            found[NUMBERS][slot] = number
            found |= {f"{slot}.{name}": value for name, value in copy.weights.items()}
        # Prioritised fictitious self-play prefers the copies that are hard to beat: (1 - win rate) squared. Vinyals et
        # al. 2019, doi:10.1038/s41586-019-1724-z.
        power = 0 if self.league.choose == "uniform" else 2
        found[CHANCES][: len(self.copies)] = [(1.0 - copy.win_rate) ** power for copy in self.copies.values()]
        return found
