"""`etude board`: a web page of runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from etude.base.errors import ConfigError, needing
from etude.cli.options import takes, with_names
from etude.cli.output import say

SEVERAL_PAGES = 100  # connections at a time


@dataclass(frozen=True)
@takes("certificate key")
class BoardOptions:
    """Show the runs below the folders RUNS... (by default `runs`) as a web page, live: a table, curves with seeds
    grouped, configs compared, warnings, videos. It reads, and runs nothing that it finds.

    An address that other machines reach needs a token, in the environment variable ETUDE_TOKEN.
    """

    address: str = "127.0.0.1:8800"  # to listen at, HOST:PORT; port 0: one that is free


def main(arguments: Sequence[str]) -> int:
    """Answer browsers until Ctrl-C."""
    names, options = with_names(BoardOptions, arguments, "board RUNS...")
    from etude.board.runs import RunBoard
    from etude.checkpoint.run_directory import ROOT
    from etude.serving.clients import address_of, is_loopback

    host, port = address_of(options.address)
    token = os.environ.get("ETUDE_TOKEN") or None
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--address {options.address} can be reached from other machines, and would show them your runs: set the "
            "environment variable ETUDE_TOKEN, or listen at 127.0.0.1."
        )
    board = RunBoard([Path(name) for name in names] or [ROOT])
    with needing("etude board", "serve"):
        import uvicorn

        from etude.board.server import application
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"Cannot listen at {options.address}: {reason}. Give another one: --address.") from error
    hosts = frozenset() if token is not None else frozenset({host, "localhost", "127.0.0.1", "::1"})
    app = application(board, hosts, token)
    server = uvicorn.Server(uvicorn.Config(
        app, log_level="error", lifespan="off", access_log=False, ws="none",
        server_header=False, timeout_graceful_shutdown=2, limit_concurrency=SEVERAL_PAGES,
        ssl_certfile=options.certificate, ssl_keyfile=options.key,
    ))  # fmt: skip
    scheme = "http" if options.certificate is None else "https"
    shown = f"[{host}]" if ":" in host else host
    say(f"The board is at {scheme}://{shown}:{listening.getsockname()[1]}/{'?token=TOKEN' if token else ''}")
    say("Ctrl-C ends it.")
    app.state.board.ending = lambda: server.should_exit
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
    app.state.board.close()
    return 0
