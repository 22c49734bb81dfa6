"""The pytest plugin: studies are tests that carry claims.

The module is loaded in every pytest session of the environment, so it imports nothing heavy and each hook only hands
over. A study is a function ``study_*`` in a file ``study_*.py`` that takes the fixture ``study``.
"""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from studies.kit.fixture import Study


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of studies."""
    group = parser.getgroup("studies", "studies (metastable)")
    group.addoption(
        "--rung",
        choices=("sim", "minimodel", "fullscale"),
        default="sim",
        help="run what is claimed at this rung (sim); each has a report of its own",
    )
    group.addoption(
        "--seeds",
        metavar="N|fresh|until-decided[:CAP]",
        help="use seeds 0..N-1, seeds never used before, or such until the claims are decided, instead of those of each "
        "claim's record",
    )
    group.addoption("--all", action="store_true", help="also run the claims marked long")
    group.addoption(
        "--record", action="store_true", help="write the verdicts (or what fresh seeds gave) to the records"
    )
    group.addoption("--report", metavar="DIR", default="runs/report", help="folder of the report (runs/report)")
    group.addoption("--store", metavar="DIR", default="runs/store", help="folder of the runs (runs/store)")
    group.addoption(
        "--processes", metavar="N", type=int, help="processes that train in a sweep (2, or 1 inside a worker of xdist)"
    )


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add ``pytest_studies_finding``."""
    from studies.kit import hookspec

    pluginmanager.add_hookspecs(hookspec)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, let ``study_*.py`` be collected anywhere, and open the session."""
    from studies.kit.session import SESSION, StudySession

    config.addinivalue_line("markers", "claim(claim): a claim that the study concludes; written @claim(...)")
    for name, pattern in (("python_files", "study_*.py"), ("python_functions", "study_*")):
        if pattern not in config.getini(name):
            config.addinivalue_line(name, pattern)
    config.stash[SESSION] = StudySession(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Print the base of fresh seeds, with which the session can be repeated."""
    from studies.kit.session import SESSION

    session = config.stash[SESSION]
    return f"studies: fresh seeds, again with {session.seeds.option}" if session.seeds.fresh else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Any:
    """Read studies from their source where they are only listed: to load them takes seconds."""
    if not parent.config.option.collectonly or not module_path.name.startswith("study_"):
        return None
    from studies.kit.outline import OutlinedFile, outlined

    studies = outlined(module_path)
    return None if studies is None else OutlinedFile.from_parent(parent, path=module_path, studies=studies)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Register claims before other plugins select; leave other rungs and long claims out after."""
    from studies.kit.session import SESSION

    session = config.stash[SESSION]
    session.register(items)
    yield
    session.select(items)
    session.share()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker of pytest-xdist the base of fresh seeds."""
    from studies.kit.session import SESSION

    node.config.stash[SESSION].brief(node.workerinput)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the registry of a worker of pytest-xdist."""
    from studies.kit.session import SESSION

    text = getattr(node, "workeroutput", {}).get("metastable")
    if text:
        node.config.stash[SESSION].receive(text)


@pytest.fixture
def study(request: pytest.FixtureRequest) -> "Study":
    """What a study measures with, concludes with and shows."""
    from studies.kit.fixture import Study
    from studies.kit.registry import claims_of
    from studies.kit.session import SESSION, STUDY

    session = request.config.stash[SESSION]
    made = Study(
        request.node.path,
        claims_of(request.node),
        rung=session.rung,
        seeds=session.seeds,
        store_dir=session.store_dir,
        executor=session.executor,
        progress=session.ticker(),
        start=session.start,
        named=session.named,
    )
    request.node.stash[STUDY] = made
    return made


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Collect the findings when a study ends, and fail it if one of them fails."""
    from studies.kit.session import STUDY, conclude

    running = pyfuncitem.stash.get(STUDY, None)
    if running is None:
        return (yield)
    try:
        result = yield
        while running.again():
            pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
    except pytest.skip.Exception:
        raise
    except BaseException as error:
        conclude(pyfuncitem, running, f"the study stopped with {type(error).__name__}")
        raise
    failure = conclude(pyfuncitem, running)
    if failure:
        pytest.fail(failure, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the exhibits on the report, which carries them from a worker to the controlling process."""
    report = yield
    from studies.kit.session import EXHIBITS, STUDY

    running = item.stash.get(STUDY, None)
    if call.when == "call" and running is not None:
        from studies.kit.exhibits import dump

        setattr(report, EXHIBITS, dump(running.exhibits))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Show a study that passed by the least settled of its verdicts."""
    if report.when != "call" or not report.passed:
        return None
    from studies.kit.terminal import status

    return status(report)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the processes of sweeps."""
    from studies.kit.session import SESSION

    session.config.stash[SESSION].close()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the findings, write the report and, with ``--record``, the records."""
    from studies.kit.terminal import summarise

    summarise(terminalreporter, config)
