"""Agents of one page each in PyTorch, for `etude.RL_pytorch`: to run, to read, and to start your own from."""
