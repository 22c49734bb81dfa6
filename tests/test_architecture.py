"""What holds between files: the direction of imports, what an import may load, and how long a file may be."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]

BELOW = {
    "sim": set(),
    "minimodel": {"sim"},
    "fullscale": {"sim", "minimodel"},
    "studies": {"sim", "minimodel", "fullscale"},
}
"""Each package with those it may import."""

LONGEST = 350
"""Lines of a file; a third above what the style asks for, so that it stops a drift and not an edit."""


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


EVERY = [path for package in BELOW for path in modules(package)]


def imported(tree: ast.AST, top_level_only: bool = False) -> Iterator[str]:
    """The names of the modules a syntax tree imports, wherever in it."""
    for node in tree.body if top_level_only and isinstance(tree, ast.Module) else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def arrows(package: str, source: str) -> set[str]:
    """The packages of the project that this source imports against the direction."""
    found = {name.split(".")[0] for name in imported(ast.parse(source))}
    return found & (BELOW.keys() | {"tests", ""}) - BELOW[package] - {package}


# --- the direction of imports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", BELOW)
def test_imports_point_down(package):
    wrong = {
        str(path.relative_to(ROOT)): found for path in modules(package) if (found := arrows(package, path.read_text()))
    }
    assert wrong == {}, f"{package} may import {sorted(BELOW[package]) or 'none of the others'}"


def test_the_check_sees_an_arrow_the_other_way():
    assert arrows("sim", "import studies.kit") == {"studies"}
    assert arrows("sim", "def f():\n    from minimodel.agent import loop") == {"minimodel"}
    assert arrows("minimodel", "import fullscale") == {"fullscale"}
    assert arrows("studies", "from tests.conftest import ROOT") == {"tests"}
    assert arrows("studies", "from . import claims") == {""}  # imports are absolute
    assert arrows("fullscale", "import sim.mdp\nfrom minimodel import agent") == set()


def test_every_package_is_seen():
    assert len(modules("sim")) > 30
    assert len(modules("studies")) > 20
    assert {p.name for p in ROOT.iterdir() if (p / "py.typed").exists()} == set(BELOW)


# --- what an import loads ---------------------------------------------------------------------------------------------

LOADED = "print(*sorted({m.split('.')[0] for m in sys.modules} & set(unwanted)))"


def test_sim_loads_neither_torch_nor_matplotlib_nor_pytest(fresh_python):
    """Every submodule of it, in one interpreter."""
    program = f"""
import importlib, pkgutil, sys
import sim
names = [m.name for m in pkgutil.walk_packages(sim.__path__, "sim.", onerror=lambda name: 1 / 0)]
for name in names:
    importlib.import_module(name)
print(len(names))
unwanted = ("torch", "matplotlib", "pytest", "hypothesis", "jinja2", "studies", "minimodel", "fullscale")
{LOADED}
"""
    count, unwanted = fresh_python(program).split("\n")[:2]
    assert int(count) == len(modules("sim")) - 1  # all but sim itself
    assert unwanted == ""


def test_the_plugin_alone_loads_nothing_heavy(fresh_python):
    """It is loaded in every pytest session of the environment, also in those that have nothing to do with studies."""
    program = f"""
import sys
import studies.kit.plugin
unwanted = ("numpy", "scipy", "networkx", "pydantic", "simpy", "matplotlib", "torch", "jinja2", "sim", "rich", "tyro")
{LOADED}
"""
    assert fresh_python(program).strip() == ""


def test_the_check_of_loads_sees_a_load(fresh_python):
    program = f"import sys, numpy\nunwanted = ('numpy', 'torch')\n{LOADED}"
    assert fresh_python(program).strip() == "numpy"


def test_figures_do_without_pyplot():
    """The object interface only: pyplot keeps figures alive and picks a window system."""
    guilty = [
        str(path.relative_to(ROOT)) for path in EVERY if "matplotlib.pyplot" in imported(ast.parse(path.read_text()))
    ]
    assert guilty == []


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", BELOW)
def test_no_file_is_longer_than_a_reader(package):
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules(package)}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}


@pytest.mark.parametrize("package", BELOW)
def test_every_public_module_says_what_it_is(package):
    silent = []
    for path in modules(package):
        tree = ast.parse(path.read_text())
        public = not path.stem.startswith("_") or path.stem == "__init__"
        exports = any(isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__" for n in tree.body)
        if public and not exports and ast.get_docstring(tree) is None:
            silent.append(str(path.relative_to(ROOT)))
    assert silent == []


def exported(tree: ast.Module) -> list[str]:
    """The names in ``__all__``, where it is a list of strings."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [e.value for e in getattr(node.value, "elts", []) if isinstance(e, ast.Constant)]
    return []


def test_what_is_exported_exists_and_is_sorted():
    for path in modules("sim"):
        tree = ast.parse(path.read_text())
        names = exported(tree)
        defined = {getattr(n, "name", None) for n in tree.body}
        defined |= {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
        defined |= {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
        defined |= {a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
        assert set(names) <= defined, path
        assert len(set(names)) == len(names), path


def calls(tree: ast.AST, name: str) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node.lineno


@pytest.mark.parametrize("package", BELOW)
def test_libraries_do_not_print(package):
    """Nor stop in a debugger. The command line may print: that is what it is for."""
    for path in modules(package):
        if path.name in {"cli.py", "__main__.py"}:
            continue
        tree = ast.parse(path.read_text())
        for name in ("print", "breakpoint", "exec", "eval"):
            assert list(calls(tree, name)) == [], f"{path.relative_to(ROOT)} calls {name}()"


def test_no_test_module_is_shipped():
    with (ROOT / "pyproject.toml").open("rb") as file:
        shipped = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(shipped) == set(BELOW)
    assert [p for p in EVERY if p.name.startswith(("test_", "conftest"))] == []


# --- how to cite ------------------------------------------------------------------------------------------------------


def test_the_citation_is_complete_and_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= citation.keys()
    assert all({"name"} <= a.keys() or {"family-names"} <= a.keys() for a in citation["authors"])
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    assert str(citation["version"]) == project["version"]
    assert citation["license"] == project["license"]
    assert citation["title"].lower().startswith(project["name"])
