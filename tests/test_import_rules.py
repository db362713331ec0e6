"""Dependencies between pomona's packages point one way, and only some of them may know mlx.

The rules are read from the source with `ast`: imports inside functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "python"
ROOT = SOURCE / "pomona"

# What each package may import from pomona, besides itself.
ALLOWED = {
    "__main__": {"cli"},
    "config": set(),
    "conversation": set(),
    "link": {"config", "conversation"},
    "models": {"config"},
    "text": {"conversation"},
    "formats": {"conversation"},
    "protocols": {"conversation"},
    "server": {"config", "conversation", "formats", "link", "models", "protocols", "text"},
    "cli": {"config", "conversation", "models", "server"},
    "grammar": {"conversation"},
    "kv": {"_core", "_ops"},
    "worker": {"_core", "_ops", "config", "grammar", "kv", "link"},
}

MLX = ("mlx", "mlx_lm", "mlx_vlm", "mlx_audio")
MLX_PACKAGES = {"worker", "kv", "encoders", "vision", "audio", "speculative"}
# These run in processes of their own, started by name.
CONVERTERS = {"pomona.models.gguf_import"}


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """Every module that `module` names in an import; of pomona's, those that exist as files."""
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base]).rstrip(".")
            names.add(base)
            # `from pomona.text import template` imports a module, not only a name.
            names |= {name for alias in node.names if (name := f"{base}.{alias.name}") in modules()}
            if base == "pomona":
                names |= {f"pomona.{alias.name}" for alias in node.names if alias.name.startswith("_")}
    return frozenset(names)


def with_parents(module: str) -> Iterator[str]:
    """Importing a.b.c runs a and a.b as well."""
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


@cache
def closure(module: str) -> frozenset[str]:
    """Everything that importing `module` may import, within pomona and the first step outside."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        for name in with_parents(waiting.pop()):
            if name not in seen:
                seen.add(name)
                waiting += imports(name) if name in modules() else ()
    return frozenset(seen)


def package_of(module: str) -> str:
    """'pomona.text.template' belongs to 'text', 'pomona._core' to '_core', 'pomona' to nothing."""
    return [*module.split("."), ""][1]


def is_mlx(module: str) -> bool:
    return module.split(".")[0] in MLX or module == "pomona._ops"


def test_every_package_has_a_rule() -> None:
    packages = {package_of(module) for module in modules()} - {""}
    assert packages <= set(ALLOWED) | (MLX_PACKAGES - set(ALLOWED)), "add the new package to ALLOWED"


@pytest.mark.parametrize("module", sorted(modules()))
def test_dependencies_point_one_way(module: str) -> None:
    package = package_of(module)
    if package == "":
        assert not {name for name in imports(module) if name.startswith("pomona.")}
        return
    used = {package_of(name) for name in imports(module) if name.startswith("pomona.")}
    known = {name for name in used if (ROOT / name).is_dir() or name.startswith("_")}
    extra = {name for name in known if not name.startswith("__")} - ALLOWED[package] - {package}
    assert not extra, f"{module} must not import {', '.join(sorted(extra))}"


@pytest.mark.parametrize(
    "module", sorted(m for m in modules() if package_of(m) not in MLX_PACKAGES and m not in CONVERTERS)
)
def test_no_mlx_outside_the_worker(module: str) -> None:
    reached = sorted(name for name in closure(module) if is_mlx(name))
    assert not reached, f"{module} reaches {', '.join(reached)}"


@pytest.mark.parametrize("module", sorted(m for m in modules() if package_of(m) in ("worker", "kv")))
def test_the_engine_knows_nothing_of_the_server(module: str) -> None:
    forbidden = {"server", "protocols", "formats", "cli"}
    reached = sorted(name for name in closure(module) if package_of(name) in forbidden)
    assert not reached, f"{module} reaches {', '.join(reached)}"


def test_the_rules_see_what_they_should() -> None:
    """The test's own eyes: a converter does reach mlx, and the walk follows imports into packages."""
    assert "mlx.core" in closure("pomona.models.gguf_import")
    assert "pomona.models.folder" in closure("pomona.cli")
    assert "pomona.config.schema" in imports("pomona.config")


@pytest.mark.parametrize("module", ["pomona.cli", "pomona.server.main"])
def test_the_server_process_loads_no_mlx(module: str) -> None:
    loaded = f"', '.join(m for m in sys.modules if m.split('.')[0] in {MLX})"
    code = f"import sys, {module}; sys.exit({loaded} or 0)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
