"""What the board starts, in processes of their own: a film of a run, and its policy for observations."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

from etude.board.runs import BoardRun
from etude.report.filming import can_write_mp4
from etude.serving.http import Refused

FILMING = 600.0  # seconds that a film may take
ANSWERING = 60.0  # seconds that a policy may take to load and to answer
AT_A_TIME = 2  # films, and policies
LINE = 2**24  # bytes of an answer


class Processes:
    """Those that were started for browsers. Policies end with the board, as their standard input does."""

    def __init__(self) -> None:
        self._filming: set[str] = set()
        self._policies: dict[str, tuple[str, asyncio.subprocess.Process, asyncio.Lock]] = {}

    async def film(self, run: BoardRun) -> dict[str, Any]:
        """Record an episode of the newest checkpoint, as `etude watch RUN --video`; what that printed."""
        if run.name in self._filming or len(self._filming) >= AT_A_TIME:
            raise Refused(409, "A video is being recorded. Wait until it is there.")
        folder = run.folder / "video"
        if folder.is_symlink():
            raise Refused(403, "The folder for videos of this run is a link, which the board does not write through.")
        path = folder / f"board-{run.metrics.step}.{'mp4' if can_write_mp4() else 'gif'}"
        self._filming.add(run.name)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "etude", "watch", str(run.folder), "--video", str(path),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            try:
                output, _ = await asyncio.wait_for(process.communicate(), FILMING)
            finally:
                _end(process)
        except TimeoutError:
            raise Refused(504, f"The video took more than {FILMING:.0f} s, and was given up.") from None
        finally:
            self._filming.discard(run.name)
        text = output.decode(errors="replace").strip()[-2_000:]
        if process.returncode:
            raise Refused(422, text or f"etude watch ended with {process.returncode}.")
        return {"output": text}

    async def act(self, run: BoardRun, asked: dict[str, Any]) -> dict[str, Any]:
        """What the policy of a run does for an observation; see `policy.ShownPolicy.answer`."""
        process, lock = await self._policy(run)
        assert process.stdin is not None and process.stdout is not None
        async with lock:
            try:
                process.stdin.write(json.dumps(asked).encode() + b"\n")
                line = await asyncio.wait_for(process.stdout.readline(), ANSWERING)
            except (TimeoutError, ValueError, OSError):
                line = b""
            if not line.endswith(b"\n"):
                self._forget(run.name)
                raise Refused(504, "The policy did not answer. Ask again: it is loaded anew.")
        found = json.loads(line)
        if "error" in found:
            raise Refused(422, found["error"])
        return found

    async def _policy(self, run: BoardRun) -> tuple[asyncio.subprocess.Process, asyncio.Lock]:
        """The process of the newest checkpoint of a run."""
        newest = run.newest_checkpoint()
        if newest is None:
            raise Refused(404, "This run has no checkpoint yet.")
        held = self._policies.get(run.name)
        if held is not None and held[0] == newest and held[1].returncode is None:
            return held[1:]
        self._forget(run.name)
        while len(self._policies) >= AT_A_TIME:
            self._forget(next(iter(self._policies)))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "etude.board.policy", str(run.folder), limit=LINE,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self._policies[run.name] = newest, process, asyncio.Lock()
        return process, self._policies[run.name][2]

    def close(self) -> None:
        """End all policies."""
        for name in list(self._policies):
            self._forget(name)

    def _forget(self, name: str) -> None:
        if (held := self._policies.pop(name, None)) is not None:
            _end(held[1])


def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
