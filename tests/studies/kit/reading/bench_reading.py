"""Reading rollouts against parsing their lines and nothing else."""

import json

import numpy as np
import pytest

from studies.kit.reading.formats import open_run
from tests.measuring import cpu_ratio

ROLLOUTS = 2000
TARGET = 4.0  # times the CPU time of json.loads of every line


def rollout(rng):
    """A rollout of the usual size: a prompt with tools, none to three searches of three passages, thoughts, an answer."""

    def words(number):
        return " ".join(
            rng.choice(["the", "author", "of", "Emma", "was", "born", "in", "1775", "–", "Hampshire"], number)
        )

    def passages():
        return "\n".join(f"Doc {k + 1}(Title: Emma) {words(100)}" for k in range(3))

    rounds = [
        f"<think>{words(60)}</think>\n<search> {words(6)} </search>\n\n<information>{passages()}</information>\n\n"
        for _ in range(rng.integers(4))
    ]
    output = "".join(rounds) + f"<think>{words(60)}</think>\n<answer> {words(2)} </answer>"
    prompt = f"{words(150)} Question: {words(12)}?\n"
    return {"input": prompt, "output": output, "gts": "Austen", "score": float(rng.integers(2)), "step": 1}


@pytest.mark.benchmark(group="reading")
def bench_reading_against_parsing(benchmark, tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "1.jsonl"
    lines = [json.dumps(rollout(rng), ensure_ascii=False) for _ in range(ROLLOUTS)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def ours():
        return sum(1 for _ in open_run(path))

    def peer():
        with path.open(encoding="utf-8") as stream:
            return sum(1 for line in stream if json.loads(line))

    assert ours() == peer() == ROLLOUTS
    ratio, seconds, _ = cpu_ratio(ours, peer, rounds=15)
    benchmark.extra_info.update(
        peer="json.loads of every line (standard library)",
        ratio=round(ratio, 2),
        target=TARGET,
        met=ratio <= TARGET,
        episodes_per_cpu_second=round(ROLLOUTS / seconds),
        megabytes_per_cpu_second=round(path.stat().st_size / seconds / 1e6, 1),
    )
    benchmark(ours)
