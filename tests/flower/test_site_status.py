"""The file in which a site tells its own operator how it is."""

from pathlib import Path

import pytest

from fedapa.federation import site_status


def test_without_room_for_another_file_the_present_one_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    site_status.note(tmp_path, state="ready")
    monkeypatch.setattr("fedapa.store.atomic_io.os.fsync", full)
    site_status.note(tmp_path, fault="the disk is full")
    assert site_status.read(tmp_path).items() >= {"state": "ready", "fault": "the disk is full"}.items()
    assert [path.name for path in tmp_path.iterdir()] == [site_status.FILE]
