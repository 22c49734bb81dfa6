"""An escalation written by hand, of the finding in conftest."""

from studies.kit.escalation import Below, Escalation, Foreseen, Made, Plan, Rule

MADE = Made("2026-12-01T10:00:00+00:00", "abc123", "f" * 64, "s" * 16, {"python": "3.11", "torch": "2.13"})
UNDER = Below("sim", "supported", 64, 0.0, 0.0, 0.056, 3, 3, "abc123", "e" * 64)
WRITTEN = Escalation(
    schema=1,
    claim="never-flips",
    says="Tabular GRPO never flips.",
    study="never_flips",
    attempt=1,
    to="minimodel",
    below=UNDER,
    prediction=Foreseen("supported", 0.0, 0.0, 0.056, "measured at sim, n = 64"),
    rule=Rule("rate", "share of seeds", "share of runs", "supported if ...", False, None, 0.1),
    plan=Plan("fresh:1234000", 8, 16, None, "d" * 16, "its CPU time is not known"),
    made=MADE,
    configs={"sequence mean": {"rule.clip": 0.2, "steps": 40, "start.script": "x"}, "token mean": {"rule": "y"}},
)
