"""Disks that are full where a test wants them to be."""

from pathlib import Path


def without_room_for(path: Path) -> None:
    """Have the next write of a file that is to be whole fail: the file that would take its place is a device that is full."""
    path.with_name(f".{path.name}.new").symlink_to("/dev/full")
