"""etude: reinforcement learning. Write an agent in Keras or PyTorch, train it anywhere."""

__version__ = "0.1.0"
