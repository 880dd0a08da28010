"""The structure keeps its promises: one arrow, a pure core, mirrored tests, a locked environment."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("controller", "optimizer", "profiler", "simulations")
PURE = ("optimizer", "controller/core")
FORBIDDEN_NAMES = {"utils", "util", "helpers", "common", "manager", "misc", "base_utils"}


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_import_contracts_hold() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("optimizer/search/greedy.py", "import time"),
        ("optimizer/model.py", "import profiler.samples"),
        ("controller/core/cycle.py", "import logging"),
        ("controller/core/cycle.py", "import controller.kube.gateway"),
        ("profiler/estimate.py", "import random"),
        ("controller/core/messages/explain.py", "import simulations.results.scoring"),
        ("controller/kube/reader.py", "import boto3"),
        ("controller/commands/quotas.py", "import botocore.exceptions"),
    ],
)
def test_a_deliberate_violation_of_the_contracts_is_caught(tmp_path: Path, module: str, line: str) -> None:
    for package in PACKAGES:
        for source in modules(package):
            copy = tmp_path / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(source.read_text())
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    with (tmp_path / module).open("a") as broken:
        broken.write(f"\n{line}\n")

    result = lint_imports(tmp_path)

    assert result.returncode != 0
    assert module.removesuffix(".py").replace("/", ".") in result.stdout


@pytest.mark.parametrize("module", modules(*PURE), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_pure_core_has_no_coroutines(module: Path) -> None:
    found = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.AsyncFunctionDef)]
    assert not found


@pytest.mark.parametrize(
    "module",
    [path for path in modules(*PACKAGES) if path.name == "__init__.py"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_package_runs_no_code_when_it_is_imported(module: Path) -> None:
    body = ast.parse(module.read_text()).body
    assert len(body) == 1
    assert ast.get_docstring(ast.parse(module.read_text()))


def test_every_unit_test_mirrors_a_module() -> None:
    unit = ROOT / "tests" / "unit"
    unaccounted = [
        str(test.relative_to(ROOT))
        for test in unit.rglob("test_*.py")
        if not (ROOT / test.relative_to(unit).parent / f"{test.stem.removeprefix('test_')}.py").is_file()
    ]
    assert not unaccounted


def test_the_architecture_names_every_folder_with_code() -> None:
    described = (ROOT / "ARCHITECTURE.md").read_text()
    folders = {str(path.parent.relative_to(ROOT)) for path in modules(*PACKAGES)} - {"simulations/lab"}
    of_scenarios = {folder for folder in folders if folder.startswith("simulations/scenarios/")}
    unnamed = sorted(folder for folder in folders - of_scenarios if f"`{folder}/`" not in described)
    assert not unnamed


def test_no_package_below_tests_can_shadow_ours() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert not [path for path in modules(*PACKAGES) if path.stem in FORBIDDEN_NAMES]


def test_no_other_distribution_provides_a_package_of_our_names() -> None:
    provided = packages_distributions()
    assert {package: set(provided.get(package, ())) - {"sluice-operator"} for package in PACKAGES} == {
        package: set() for package in PACKAGES
    }


def test_the_environment_has_the_versions_that_work_together() -> None:
    # Unpinned, resolvers fall back to a boto3 of 2014: kubernetes 37 and botocore disagree over python-dateutil.
    locked = (ROOT / "requirements.lock").read_text()
    assert re.search(r"^boto3==1\.", locked, re.MULTILINE)
    assert re.search(r"^kubernetes==36\.", locked, re.MULTILINE)


def test_locks_are_hash_checked_and_name_no_index() -> None:
    for name in ("", "-dev", "-simulate", "-build", "-docs", "-ray"):
        text = (ROOT / f"requirements{name}.lock").read_text()
        assert "--index-url" not in text
        assert "://" not in text
        requirements = re.findall(r"^[A-Za-z0-9_.-]+==\S+", text, re.MULTILINE)
        assert requirements
        assert text.count("--hash=sha256:") >= len(requirements)


def test_simulations_in_a_container_have_the_operators_versions() -> None:
    locked, simulate = ((ROOT / name).read_text() for name in ("requirements.lock", "requirements-simulate.lock"))
    versions = set(re.findall(r"^[A-Za-z0-9_.-]+==[^ ]+", locked, re.MULTILINE))
    assert versions < set(re.findall(r"^[A-Za-z0-9_.-]+==[^ ]+", simulate, re.MULTILINE))


def test_the_operators_lock_carries_nothing_of_the_lab() -> None:
    # aiohttp is in both: kopf needs it, too.
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[=<>]", requirement)[0] for requirement in extras["lab"]} - {"aiohttp"}
    locked = (ROOT / "requirements.lock").read_text()
    assert names
    assert not [name for name in names if re.search(rf"^{re.escape(name)}==", locked, re.MULTILINE)]
