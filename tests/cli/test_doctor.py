"""`pomona doctor`: what it finds, says and returns."""

from __future__ import annotations

import json
import os
import resource
import socket
import stat
import sys
from pathlib import Path

import pytest
from tests.cli.terminal import command

from pomona.cli.doctor import engine_checks, machine_checks, setup_checks
from pomona.cli.doctor.engine_checks import check_worker
from pomona.cli.doctor.finding import State
from pomona.config.keys import KeyStore
from pomona.config.resolve import resolve


def test_this_machine_is_sound(home: Path) -> None:
    KeyStore(home / "keys.json").create("laptop")
    child = command("doctor", "--json")
    report = json.loads(child.stdout)
    states = {finding["what"]: finding["state"] for finding in report["findings"]}
    assert (child.returncode, report["ok"], child.stderr) == (0, True, "")
    for what in ("pomona", "system", "engine", "paged attention", "API keys", "keys file", "settings"):
        assert states[what] == "ok"
    assert {"memory", "open files", "folder", "port 8642", "embedded model", "matrix products"} <= set(states)


def test_failures_are_counted(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("prot = 1")
    (home / "config.toml").chmod(0o644)
    child = command("doctor")
    assert child.returncode == 1
    assert "did you mean port?" in child.stdout
    assert "warning  settings file: " in child.stdout
    assert "1 problem found" in child.stdout
    # What does not hang on the settings is examined all the same.
    assert "engine: mlx" in child.stdout


def test_a_variable_that_is_no_setting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POMONA_PROT", "1")
    monkeypatch.setattr(engine_checks, "SELFTEST", "none")
    child = command("doctor", "--json")
    (finding,) = [f for f in json.loads(child.stdout)["findings"] if f["what"] == "settings"]
    assert finding["state"] == "failed"
    assert "POMONA_PORT" in finding["detail"]


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        finding = machine_checks.check_port("127.0.0.1", held.getsockname()[1])
    assert finding.state is State.WARNING
    assert "pomona config set port" in finding.detail


def test_the_folder_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_checks.check_disk(tmp_path / "a" / "b").state is State.OK
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert machine_checks.check_disk(tmp_path / "a" / "b").state is State.FAILED


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    finding = machine_checks.check_open_files()
    assert finding.state is State.WARNING
    assert "ulimit -n" in finding.detail
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1000**3, 1000**3))
    finding = machine_checks.check_memory()
    assert finding.state is State.WARNING
    assert "of which this process may use 1.0 GB" in finding.detail


def test_a_server_for_everybody_without_a_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POMONA_HOST", "0.0.0.0")
    (finding,) = setup_checks.check_keys(resolve())
    assert finding.state is State.FAILED
    monkeypatch.setenv("POMONA_ALLOW_REMOTE", "yes")
    (finding,) = setup_checks.check_keys(resolve())
    assert finding.state is State.WARNING
    KeyStore(home / "keys.json").create("laptop")
    assert {finding.state for finding in setup_checks.check_keys(resolve())} == {State.OK}
    (home / "keys.json").chmod(stat.S_IRUSR | stat.S_IROTH)
    assert State.WARNING in {finding.state for finding in setup_checks.check_keys(resolve())}
    (home / "keys.json").write_text("broken")
    assert {finding.state for finding in setup_checks.check_keys(resolve())} == {State.FAILED}


def test_models(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "models" / ".half-abc.part-x").mkdir(parents=True)
    monkeypatch.setenv("POMONA_MODEL", "/no/such/model")
    findings = {finding.what: finding for finding in setup_checks.check_models(resolve())}
    assert findings["configured model"].state is State.FAILED
    assert findings["conversion"].state is State.WARNING


def test_a_cache_larger_than_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POMONA_KV_MEMORY_BYTES", "1000TB")
    assert setup_checks.check_settings(resolve()).state is State.WARNING


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            """print('noise')
print('{"device": "Device(cpu, 0)", "mlx": "1.2", "kernels": "avx2", "blas": "fast"}')
print('{"check": "attention", "problem": ""}')""",
            [
                (State.OK, "engine", "mlx 1.2, Device(cpu, 0), kernels avx2"),
                (State.OK, "matrix products", "fast"),
                (State.OK, "attention", "works"),
            ],
        ),
        (
            """import sys; print('{"check": "attention", "problem": "differs"}'); sys.exit(1)""",
            [(State.FAILED, "attention", "differs")],
        ),
        (
            """raise ImportError("no _ops")""",
            [
                (
                    State.FAILED,
                    "engine",
                    "the self-test is not available or crashed (ImportError: no _ops); install pomona again",
                )
            ],
        ),
        (
            """raise ImportError("POMONA_CPU_THREADS=0 is wrong")""",
            [
                (
                    State.FAILED,
                    "engine",
                    "the self-test is not available or crashed (ImportError: POMONA_CPU_THREADS=0 is wrong); "
                    "correct that variable",
                )
            ],
        ),
    ],
)
def test_doctor_reads_the_self_test(script: str, expected: list[tuple[State, str, str]]) -> None:
    assert [tuple(finding) for finding in check_worker([sys.executable, "-c", script])] == expected
