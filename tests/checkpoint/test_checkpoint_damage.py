"""Any byte that is not as it was written is found before anything is handed out."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_states import same, small_state

from etude import checkpoint
from etude.base.errors import CheckpointError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    checkpoint.write(tmp_path / "x.etude", small_state())
    return tmp_path / "x.etude"


def refused(path: Path, data: bytes) -> str:
    """The message with which both `read` and `verify` refuse these bytes; any other error is a failure."""
    path.write_bytes(data)
    with pytest.raises(CheckpointError):
        checkpoint.verify(path)
    with pytest.raises(CheckpointError) as error:
        checkpoint.read(path)
    return str(error.value)


@pytest.mark.long_but("255")
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_is_detected(path: Path, mask: int) -> None:
    whole = path.read_bytes()
    for i in range(len(whole)):
        refused(path, whole[:i] + bytes([whole[i] ^ mask]) + whole[i + 1 :])


def test_every_flip_inside_a_member_names_the_member(path: Path) -> None:
    whole = path.read_bytes()
    for member in checkpoint.inspect(path).members:
        for i in range(member.offset, member.offset + member.size):
            message = refused(path, whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :])
            assert f"member '{member.name}': it does not match its checksum" in message
            assert str(path) in message


def test_a_file_cut_off_at_any_length_is_detected(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        refused(path, whole[:length])


def test_every_missing_doubled_or_added_byte_is_detected(path: Path) -> None:
    whole = path.read_bytes()
    for i in range(0, len(whole), 3):
        refused(path, whole[:i] + whole[i + 1 :])
        refused(path, whole[: i + 1] + whole[i:])
    refused(path, whole + b"\0")
    refused(path, whole + whole)
    refused(path, b"")


def test_members_swapped_between_files_are_detected_and_named(path: Path) -> None:
    ours = path.read_bytes()
    other = path.with_name("other.etude")
    checkpoint.write(other, small_state(2))
    theirs = other.read_bytes()
    other.unlink()
    assert len(ours) == len(theirs)
    for member in checkpoint.inspect(path).members:
        part = slice(member.offset, member.offset + member.size)
        assert ours[part] != theirs[part]
        swapped = ours[: part.start] + theirs[part] + ours[part.stop :]
        assert f"member '{member.name}': it does not match" in refused(path, swapped)


def test_members_that_are_removed_or_exchanged_within_a_file_are_detected(path: Path) -> None:
    whole = path.read_bytes()
    members = checkpoint.inspect(path).members
    parts = [whole[member.offset : member.offset + member.size] for member in members]
    head, tail = whole[: members[0].offset], whole[members[-1].offset + members[-1].size :]
    for i in range(len(parts)):
        refused(path, head + b"".join(parts[:i] + parts[i + 1 :]) + tail)
        refused(path, head + b"".join(parts[:i] + parts[i : i + 1] * 2 + parts[i + 1 :]) + tail)
    refused(path, head + b"".join(reversed(parts)) + tail)
    path.write_bytes(head + b"".join(parts) + tail)
    assert same(checkpoint.read(path), small_state())


def test_damage_in_a_component_that_is_skipped_is_detected_too(path: Path) -> None:
    whole = path.read_bytes()
    member = next(member for member in checkpoint.inspect(path).members if member.name == "replay.safetensors")
    path.write_bytes(whole[: member.offset + 9] + b"!" + whole[member.offset + 10 :])
    with pytest.raises(CheckpointError, match=r"replay\.safetensors"):
        checkpoint.read(path, skip={"replay"})


def test_the_error_offers_the_newest_complete_checkpoint_beside(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        checkpoint.write(tmp_path / f"step_{step:09d}.etude", small_state(step))
    for step in (3, 4):
        path = tmp_path / f"step_{step:09d}.etude"
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        CheckpointError, match=r"its end is missing\. A complete one beside it is .*step_000000002\.etude"
    ):
        checkpoint.read(tmp_path / "step_000000004.etude")


def test_missing_files_and_other_files_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        checkpoint.read(tmp_path / "none.etude")
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        checkpoint.read(tmp_path)
    (tmp_path / "text.etude").write_text("hello")
    with pytest.raises(CheckpointError, match="is not an etude checkpoint"):
        checkpoint.read(tmp_path / "text.etude")


def test_a_newer_format_asks_for_a_newer_etude(path: Path) -> None:
    whole = path.read_bytes()
    assert "format version 2; this etude reads version 1" in refused(path, whole[:8] + b"\2" + whole[9:])
