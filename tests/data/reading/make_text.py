"""Make the fixtures of verl and Search-R1, which have no package that writes them on a CPU: by their documented layout.

    python tests/data/reading/make_text.py FOLDER

verl: what `RayPPOTrainer._dump_generations` (2026-01) writes of texts that a Qwen chat template renders and `batch_decode`
strips of special tokens. Search-R1: the log that its scripts `tee` (2025-10): what `RayPPOTrainer.fit`, `_validate` and
`qa_em.compute_score_em` print, with the process that Ray puts in front of a line.
"""

import json
import sys
from pathlib import Path

TOOLS = (
    'You may call functions within <tool_call></tool_call> tags:\n<tool_call>\n{"name": <function-name>}\n</tool_call>'
)
INSTRUCTION = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first. Call a search engine by "
    "<search> query </search>; results come between <information> and </information>. Answer inside <answer> and "
    "</answer>. For example, <answer> Beijing </answer>."
)


def chat(question):
    return f"system\nYou are a helpful assistant.\n{TOOLS}\nuser\n{question}\nassistant\n"


def call(name, query):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"query": "{query}"}}}}\n</tool_call>'


def replied(*texts):
    responses = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts)
    return f"\nuser\n{responses}\nassistant\n"


def verl():
    """Steps 9 and 10: two prompts with two rollouts each, and one that was cut in its thoughts."""
    emma, waves = chat("Who wrote Emma?"), chat("Who wrote The Waves?")
    looked = "<think>\nI look it up.\n</think>\n\n" + call("search", "Emma") + replied("Emma: a novel by Jane Austen")
    twice = call("search", "Waves") + replied("No result.") + call("Verify", "Woolf") + replied("Woolf: yes")
    both = call("search", "Emma") + "\n" + call("verify", "Austen") + replied("a novel", "yes")
    rows = {
        9: [
            (emma, looked + "Jane Austen", "Jane Austen", 1.0, {"acc": True, "pred": "Jane Austen"}),
            (emma, "George Eliot", "Jane Austen", -1.0, {"acc": False, "pred": "George Eliot"}),
            (waves, twice + "Virginia Woolf", "Virginia Woolf", 1.0, {"acc": True, "pred": "Virginia Woolf"}),
            (waves, "<think>\nIt could be", "Virginia Woolf", -1.0, {"acc": False, "pred": None}),
        ],
        10: [
            (emma, both + "It is Jane Austen – surely.", "Jane Austen", 1.0, {"acc": True, "pred": "Jane Austen"}),
            (emma, call("search", "Emma")[:25], "Jane Austen", -1.0, {"acc": False, "pred": None}),
        ],
    }
    for step, entries in rows.items():
        names = ("input", "output", "gts", "score")
        lines = [{**dict(zip(names, row, strict=False)), "step": step, **row[4]} for row in entries]
        yield f"{step}.jsonl", "\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n"


def sequence(question, response):
    return f"{INSTRUCTION} Question: {question}\n{response}"


def printed(gold, found, text):
    return ["-" * 32, f"Golden answers: {gold}", f"Extracted answer: {found}", f"Solution string: {text}"]


def rollouts():
    found = "\n\n<information>Doc 1(Title: Emma) Emma is a novel by Jane Austen</information>\n\n"
    invalid = (
        "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
        "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
    )
    search = "<think> I look it up. </think>\n<search> who wrote Emma </search>"
    yield "Who wrote Emma?", f"{search}{found}<answer> Jane Austen </answer>", "Jane Austen", "Jane Austen", 1.0
    yield "Who wrote Emma?", "<answer> George Eliot </answer>", "Jane Austen", "George Eliot", 0.0
    yield "Who wrote Nana?", f"Zola?{invalid}<answer> Zola </answer>", "Zola", "Zola", 1.0
    yield "Who wrote Nana?", f"{search}{found[:40]}<think> hm </think>\n<search> Nana", "Zola", None, 0.0


def log():
    """Return the lines of a log: a validation before training, two steps, and another process that speaks between."""
    texts = [(sequence(q, text), gold, found) for q, text, gold, found, _ in rollouts()]
    ray = "\x1b[36m(main_task pid=4711)\x1b[0m "
    lines = ["validation generation end", *printed(["x"], "None", texts[1][0]), "Initial validation metrics: {}"]
    for step, some in ((1, texts[:2]), (2, texts[2:])):
        lines += [f"epoch 0, step {step}", "ACTIVE_TRAJ_NUM: [512, 300, 2, 0]"]
        for text, gold, found in some:
            lines += printed([gold], found, text + "<|endoftext|>")
        lines += ["validation generation end", *printed(["y"], "None", texts[0][0])] * (step == 2)
        lines += [f"step:{step} - critic/score/mean:0.500 - timing_s/gen:9.000"]
    whole = [ray + line for line in "\n".join(lines).split("\n")]
    place = next(k for k, line in enumerate(whole) if "<information>Doc" in line)
    whole.insert(place, "\x1b[36m(WorkerDict pid=4999)\x1b[0m WARNING cache is full")
    return "\n".join(["INFO worker.py -- Started a local Ray instance.", *whole]) + "\n"


def lines():
    for step in (1, 2):
        for question, text, gold, _, score in rollouts():
            row = {"step": step, "sequences_str": sequence(question, text), "score": score}
            yield json.dumps({**row, "ground_truth": {"target": [gold]}, "data_source": "nq"})


def main(folder):
    for name, text in verl():
        (folder / "verl").mkdir(parents=True, exist_ok=True)
        (folder / "verl" / name).write_text(text, encoding="utf-8")
    (folder / "search_r1").mkdir(parents=True, exist_ok=True)
    (folder / "search_r1" / "nq-search-r1-ppo.log").write_text(log(), encoding="utf-8")
    (folder / "search_r1_lines").mkdir(parents=True, exist_ok=True)
    (folder / "search_r1_lines" / "rollouts.jsonl").write_text("\n".join(lines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
