"""Agents of one page each in Keras, for `etude.RL`: to run, to read, and to start your own from."""
