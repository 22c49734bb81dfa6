"""Print the benchmarks of benchmarks/latest.json, and leave in the file only what another machine can use."""

import json
from pathlib import Path

PATH = Path(__file__).parent / "latest.json"


def main() -> None:
    """Rewrite the file without host names and raw timings; print one line a benchmark."""
    data = json.loads(PATH.read_text())
    machine = data.get("machine_info", {})
    cpu = machine.get("cpu", {})
    brand = cpu.get("brand_raw", "") if isinstance(cpu, dict) else cpu
    kept = {
        "recorded": data.get("recorded", data.get("datetime")),
        "machine": {"cpu": brand, "system": machine.get("system"), "python": machine.get("python_version")}
        if "cpu" in machine and isinstance(cpu, dict)
        else machine,
        "benchmarks": [{"name": b["name"], "extra_info": b["extra_info"]} for b in data["benchmarks"]],
    }
    if "machine_info" not in data:
        kept["machine"] = data["machine"]
    PATH.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    for b in kept["benchmarks"]:
        info = b["extra_info"]
        met = "no target" if info["met"] is None else "met" if info["met"] else "NOT met"
        ratio, target = ("-" if info[name] is None else info[name] for name in ("ratio", "target"))
        print(f"{b['name']:<40} ratio {ratio:<6} target {target:<6} {met:<9} against {info['peer']}")  # noqa: T201


if __name__ == "__main__":
    main()
