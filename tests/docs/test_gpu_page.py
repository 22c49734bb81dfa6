"""What docs/gpu.md and docs/fullscale.md say is so: their tables, names, commands and code."""

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

pytest.importorskip("transformers")

from fullscale.agent.compaction import Compaction
from fullscale.agent.schedules import Asynchronous
from fullscale.agent.setup import Data, Sampler, Training
from fullscale.dialogue.tags import ARGUMENT
from fullscale.engine.servers import AtSglang, AtVllm, OwnLlama
from fullscale.monitors.rewards import Judged
from fullscale.presets import PRESETS, search_r1_qwen3_8b
from fullscale.train import configured
from fullscale.train import run as train_command
from minimodel.agent import schedule
from minimodel.agent.monitor import EvidenceFirst
from sim.cluster.scheduling import Capacity, MaxStaleness, Order
from sim.learning.family import cispo
from sim.records.config import replace
from studies.kit.cli import main as metastable
from tests.fullscale.agent.conftest import single_threaded  # noqa: F401  tiny problems are slower on two threads
from tests.fullscale.agent.small import begin, training

ROOT = Path(__file__).resolve().parents[2]
GPU, FULL = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("gpu.md", "fullscale.md"))
PAGES = GPU + FULL


@pytest.fixture(scope="module")
def make_gpu():
    """The script that writes the pages' tables."""
    spec = importlib.util.spec_from_file_location("make_gpu", ROOT / "docs" / "make_gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def between(page, marks):
    start, end = marks
    assert page.count(start) == page.count(end) == 1
    return page.partition(start)[2].partition(end)[0].strip()


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_costs_are_those_of_the_presets(make_gpu):
    assert between(GPU, make_gpu.MARKS["costs"]) == make_gpu.costs()


def test_the_table_has_every_preset_for_gpus_and_its_sums_hold(make_gpu):
    rows = re.findall(r"^\| `(\w+)` \| (\d+) GiB \| ([\d,]+) \(([\d,]+) sampling, ([\d,]+) learning\)", GPU, re.M)
    assert [row[0] for row in rows] == [name for name in PRESETS if name != "smollm2_cpu"]
    for _, gib, total, *parts in rows:
        assert int(gib) < 74.5
        whole, *some = (int(x.replace(",", "")) for x in (total, *parts))
        assert abs(sum(some) - whole) <= 1  # each is rounded by itself
        assert min(some) > 0


def test_the_record_between_the_marks_is_that_of_the_folder(make_gpu):
    """Or nothing, while there is none."""
    from sim.records.store import Store

    keys, said = Store(make_gpu.STORE).keys(), between(FULL, make_gpu.MARKS["record"])
    if not keys:
        assert said == ""
        return
    (key,) = keys
    assert make_gpu.on_record(Store(make_gpu.STORE).load(key)) in said
    assert (ROOT / "docs" / "smollm2.svg").is_file()


def test_a_mark_that_is_missing_is_told(make_gpu):
    page = "a\n" + "\n".join(make_gpu.MARKS["costs"]) + "\nb"
    assert make_gpu.written(page, "costs", "| x |").splitlines()[2] == "| x |"
    assert make_gpu.written(make_gpu.written(page, "costs", "y"), "costs", "z") == make_gpu.written(page, "costs", "z")
    with pytest.raises(ValueError, match="a mark of record is missing"):
        make_gpu.written(page, "record", "x")


# --- names ------------------------------------------------------------------------------------------------------------


def test_every_preset_is_named():
    for name in PRESETS:
        assert f"`{name}`" in GPU or f" {name}" in GPU, name


def test_every_module_and_name_that_is_mentioned_exists():
    found = set(re.findall(r"\b((?:fullscale|minimodel|sim|studies)(?:\.(?!md)\w+)+)", PAGES))
    assert len(found) >= 5
    for dotted in found:
        names, rest = dotted.split("."), list[str]()
        while not _module(names):
            rest.append(names.pop())
        assert len(rest) <= 1, dotted
        module = importlib.import_module(".".join(names))
        assert all(hasattr(module, each) for each in rest), dotted


def _module(names):
    try:
        return importlib.util.find_spec(".".join(names)) is not None
    except ModuleNotFoundError:
        return False


def test_every_path_and_link_leads_somewhere():
    paths = set(re.findall(r"`((?:tests|fullscale|docs|studies)/[\w/.]+)`", PAGES))
    links = set(re.findall(r"\]\((?!http)([\w./-]+)\)", PAGES))
    assert paths
    assert links
    missing = [p for p in paths if not (ROOT / p).exists()] + [x for x in links if not (ROOT / "docs" / x).exists()]
    assert missing == []


def test_every_make_target_exists():
    targets = set(re.findall(r"`make ([\w-]+)`", PAGES.replace("make\nfullscale-smoke", "make fullscale-smoke")))
    rules = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert "fullscale-smoke" in targets
    assert targets <= rules


def test_every_column_in_the_table_is_one_of_a_run():
    """With `...` for more of the kind and `/*` for all below."""

    columns = set(begin(training(steps=1)).go())
    rows = re.findall(r"^\| (`[a-z]+/.*?) \|", FULL, re.M)
    assert len(rows) >= 8
    for row in rows:
        name = re.match(r"`([^`]+)`", row)[1]
        head = name.partition("*")[0].replace("CONTEXT/ACTION", "start/search")
        assert any(c.startswith(head) for c in columns) or name.startswith(("eval/", "engine/")), name
    for name in ("mismatch/max", "mismatch/kl", "mismatch/coverage", "staleness/newest", "staleness/token_mean"):
        assert name in columns


def test_tags_are_those_of_the_protocol():
    assert all(f"`<{name}>`" in FULL for name in ARGUMENT)
    assert "`<information>`" in FULL


# --- commands ---------------------------------------------------------------------------------------------------------

BLOCKS = re.findall(r"```\n(.*?)```", PAGES, re.DOTALL)
COMMANDS = [re.sub(r"\s+#.*", "", line).strip() for block in BLOCKS for line in block.splitlines()]


@pytest.mark.parametrize("line", [x for x in COMMANDS if "fullscale.train" in x])
def test_a_training_command_is_accepted(line):
    words = shlex.split(line.partition("fullscale.train")[2])
    seen = {}

    def noted(**options):
        seen.update(options)
        return 0

    import inspect

    noted.__signature__ = inspect.signature(train_command)
    noted.__annotations__ = train_command.__annotations__
    tyro.cli(noted, args=words)
    assert seen["preset"] in PRESETS
    assert configured(seen["preset"], seen["set"]).steps > 0


def test_other_programs_are_there():
    programs = set(re.findall(r"python -m ([\w.]+)", "\n".join(COMMANDS)))
    assert {"fullscale.smoke", "fullscale.validate_gpu"} <= programs
    assert all(importlib.util.find_spec(name) is not None for name in programs)
    scripts = set(re.findall(r"`python (docs/\w+\.py)`", PAGES))
    assert scripts
    assert all((ROOT / script).is_file() for script in scripts)


@pytest.mark.parametrize("line", [x for x in COMMANDS if x.startswith("metastable ")])
def test_a_command_of_the_kit_has_these_options(line, capsys):
    for command in line.split(" ; "):
        words = shlex.split(command)[1:]
        names = [word for word in words[:2] if word.islower()][: 2 if words[0] == "runs" else 1]
        with pytest.raises(SystemExit) as ended:
            metastable([*names, "--help"])
        assert ended.value.code == 0
        said = capsys.readouterr().out
        assert all(word in said for word in words if word.startswith("--")), command


def test_help_says_every_option_of_the_page():
    done = subprocess.run(
        [sys.executable, "-m", "fullscale.train", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    for option in ("--set", "--seed", "--estimate", "--anyway", "--folder", "--store", "--device", *PRESETS):
        assert option in done.stdout, option


# --- code -------------------------------------------------------------------------------------------------------------

NAMES = {
    "replace": replace, "cispo": cispo, "AtVllm": AtVllm, "AtSglang": AtSglang, "OwnLlama": OwnLlama,
    "Asynchronous": Asynchronous, "Capacity": Capacity, "Order": Order, "MaxStaleness": MaxStaleness,
    "Compaction": Compaction, "EvidenceFirst": EvidenceFirst, "Judged": Judged,
    "at_tokens": 100, "address": "http://127.0.0.1:1", "model": "m", "k": 1, **PRESETS,
    **{name: getattr(schedule, name) for name in ("Lag", "InFlight")},
}  # fmt: skip


def test_configs_on_the_pages_are_configs():
    calls = re.findall(r"`(replace\(.*?\))`[ .,]", PAGES.replace("\n", " "))
    assert len(calls) >= 2
    for call in calls:
        assert isinstance(eval(call, dict(NAMES)), Training), call
    values = {
        "schedule": re.findall(r"`schedule=(Asynchronous\(.*?\))`", PAGES),
        "sampler.compaction": re.findall(r"`sampler.compaction=(Compaction\(\w+\))`", PAGES),
        "monitor": re.findall(r"`monitor=(\w+\(\))`", PAGES),
        "judge": re.findall(r"`judge=(\w+\(\w+\))`", PAGES),
        "sampler.server": re.findall(r"`((?:OwnLlama|AtVllm|AtSglang)\([\w, ]*\))`", PAGES),
    }
    assert all(values.values())
    for name, texts in values.items():
        for text in texts:
            value = eval(text, dict(NAMES))
            served = {"sampler.server": OwnLlama()} if name == "schedule" else {}
            assert replace(search_r1_qwen3_8b(), {name: value} | served), text


def test_fields_that_are_named_are_fields():
    owners = {"data": Data, "sampler": Sampler}
    found = re.findall(r"`(data|sampler)\.(\w+)", PAGES)
    assert found
    for owner, name in found:
        assert hasattr(owners[owner](), name), f"{owner}.{name}"
