"""Asynchronous gradients: actor-learners collect rollouts and differentiate the losses there. Mnih et al. 2016,
arXiv:1602.01783."""
