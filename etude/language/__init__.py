"""Text environments, and what makes environments of tokens of them.

`etude/Wordle-v0` and the others are registered with Gymnasium when this is imported; runs import it themselves, and
take the names alone, such as `Wordle`.
"""

import gymnasium

from etude.language.environment import Game, GameWithTool, TokenEnvironment, environment_factory, game_of
from etude.language.games import Arithmetic, GraphWalks, TwentyQuestions
from etude.language.pretrained import Pretrained
from etude.language.tokens import Characters, HuggingFace, Tokenizer
from etude.language.wordle import GreedyInformation, RandomMixture, Wordle, words

__all__ = [
    "GAMES", "Arithmetic", "Characters", "Game", "GameWithTool", "GraphWalks", "GreedyInformation", "HuggingFace",
    "Pretrained", "RandomMixture", "TokenEnvironment", "Tokenizer", "TwentyQuestions", "Wordle", "environment_factory",
    "game_of", "words",
]  # fmt: skip

GAMES = {name: f"etude/{name}-v0" for name in ("Arithmetic", "GraphWalks", "TwentyQuestions", "Wordle")}

for name, registered in GAMES.items():
    gymnasium.register(registered, f"etude.language:{name}")
