import numpy as np
import pytest

from studies.kit.crossing import crossings, figure, ladder_table
from studies.kit.records import record


def test_the_table_of_rungs_and_the_picture(tmp_path, finding):
    (tmp_path / "study_a.py").write_text(
        '@claim("up", rungs=("sim", "minimodel"))\n@claim("low")\ndef study_a(study): ...\n'
    )
    records = tmp_path / "records"
    up = {"claim": "up", "rungs": ("sim", "minimodel")}
    record(records, finding(**up), "")
    record(
        records,
        finding(**up, rung="minimodel", n=8, effect=0.25, low=0.03, high=0.65, verdict="undecided", expect="undecided"),
        "",
    )
    record(records, finding(claim="low", verdict="refuted", expect="refuted"), "")
    lines = ladder_table(tmp_path).splitlines()
    assert lines[0].split() == ["claim", "sim", "minimodel", "fullscale", "next"]
    assert lines[1] == "up     S (64) 0/0  ? (8) 0/0  .          stops at minimodel: undecided"
    assert len(lines) == 3
    assert "low    R (64) 0/0  .          .          stops at sim: refuted" in ladder_table(tmp_path, every=True)
    (crossed,) = crossings(tmp_path)
    assert (crossed.below.effect, crossed.above.effect) == (0.0, 0.25)
    axes = figure([crossed]).axes[0]
    assert axes.get_xlim()[0] < 0
    assert axes.get_ylim()[1] > 0.65
    assert np.allclose(axes.get_lines()[1].get_data(), ([0.0], [0.25]))
    with pytest.raises(ValueError, match="nothing to draw"):
        figure([])
    (tmp_path / "study_a.py").unlink()
    assert "no claim in" in ladder_table(tmp_path)
