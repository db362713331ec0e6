"""Conversions into the cache folder: whole or not there, once, also among several processes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.models.gguf_files import tiny_llama

from pomona.models import ModelError, Progress, cache, resolve_model
from pomona.models.cache import convert_once, converted_folder
from pomona.models.embedded import embedded_gguf
from pomona.models.progress import ignore

RESOLVE = "import sys; from pomona.models import resolve_model; print(resolve_model(sys.argv[1]).path)"
WAIT_S = 60


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POMONA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_llama().write(tmp_path / "Tiny-1M.Q4_1.gguf")


def entries(home: Path) -> list[str]:
    """What lies in the cache, without the lock files."""
    return sorted(path.name for path in (home / "models").iterdir() if path.suffix != ".lock")


def start(source: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RESOLVE, str(source)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for(home: Path, pattern: str) -> Path:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for path in (home / "models").glob(pattern):
            return path
        time.sleep(0.001)
    raise AssertionError("no conversion started")


def test_a_file_is_converted_once(source: Path, home: Path) -> None:
    seen: list[Progress] = []
    folder = resolve_model(str(source), seen.append)
    assert folder.name == "Tiny-1M"
    assert seen
    seen.clear()
    assert resolve_model(str(source), seen.append) == folder
    assert not seen
    assert entries(home) == [folder.path.name]


def test_a_changed_file_is_converted_again(source: Path) -> None:
    first = resolve_model(str(source)).path
    os.utime(source, ns=(1, 1))
    assert resolve_model(str(source)).path != first


def test_another_converter_version_converts_again(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = converted_folder(source, "x")
    monkeypatch.setattr(cache, "CONVERTER_VERSION", cache.CONVERTER_VERSION + 1)
    assert converted_folder(source, "x") != first


def test_a_folder_damaged_by_hand_is_made_again(source: Path) -> None:
    folder = resolve_model(str(source)).path
    (folder / "model.safetensors").unlink()
    assert (resolve_model(str(source)).path / "model.safetensors").is_file()


def test_a_failed_conversion_leaves_nothing(home: Path, tmp_path: Path) -> None:
    gguf = tiny_llama()
    gguf.metadata["general.architecture"] = "mamba"
    with pytest.raises(ModelError, match="mamba"):
        resolve_model(str(gguf.write(tmp_path / "odd.gguf")))
    assert entries(home) == []


def test_an_interrupted_conversion_leaves_nothing(source: Path, home: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == "converting":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve_model(str(source), interrupt)
    assert entries(home) == []
    assert resolve_model(str(source)).path.is_dir()


@pytest.mark.parametrize("moment", [".*.part-*", ".*.part-*/tokenizer.json"])
def test_a_killed_conversion_is_never_used(moment: str, home: Path) -> None:
    try:
        source = embedded_gguf()  # large enough to be caught in the middle
    except ModelError as error:
        pytest.skip(str(error))
    process = start(source)
    wait_for(home, moment)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (left,) = entries(home)
    assert ".part-" in left
    folder = resolve_model(str(source))
    assert entries(home) == [folder.path.name]


def test_a_killed_child_is_an_error_and_leaves_nothing(source: Path, home: Path) -> None:
    def kill(source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise ModelError("The conversion ended with status -9.")

    with pytest.raises(ModelError, match="status -9"):
        convert_once(source, "tiny", lambda: 0, kill, ignore)
    assert entries(home) == []


def test_two_at_once_convert_once(source: Path, home: Path) -> None:
    processes = [start(source) for _ in range(3)]
    results = [process.communicate(timeout=WAIT_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], results
    assert len({stdout for stdout, _ in results}) == 1
    assert len(entries(home)) == 1


def test_who_waits_is_told_and_converts_nothing(source: Path, home: Path) -> None:
    final = converted_folder(source, "tiny")
    final.parent.mkdir(parents=True)
    made = []

    def convert(source: Path, folder: Path) -> None:
        made.append(folder)

    with (final.parent / f".{final.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def finish_the_other(progress: Progress) -> None:
            assert "waiting" in progress.stage
            Path(resolve_model(str(source)).path).rename(final)
            fcntl.flock(lock, fcntl.LOCK_UN)

        assert convert_once(source, "tiny", lambda: 0, convert, finish_the_other) == final
    assert not made


def test_no_room_is_said_before_the_work(source: Path, home: Path) -> None:
    def convert(source: Path, folder: Path) -> None:
        raise AssertionError("must not start")

    with pytest.raises(ModelError, match=r"make room there or set POMONA_HOME"):
        convert_once(source, "tiny", lambda: 1 << 60, convert, ignore)


def test_a_cache_that_cannot_be_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POMONA_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"set POMONA_HOME to another folder"):
        resolve_model(str(source))
