"""What programs outside play over HTTP, as an environment. See docs/serving.md."""

from etude.serving.client import Client, EpisodeLost
from etude.serving.clients import ClientLimits, Clients, clients_of, preset_name

__all__ = ["Client", "Clients", "EpisodeLost", "ClientLimits", "clients_of", "preset_name"]
