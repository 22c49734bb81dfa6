from dataclasses import replace

import numpy as np
import pytest

from minimodel.tasks.structure import compiled, node_places
from sim.mdp.exact import expected_return
from sim.mdp.policy import tables
from sim.mdp.worlds import PRESETS, Verify, seed_a, verify_world


@pytest.mark.parametrize("name", PRESETS)
def test_it_is_the_worlds_own_graph(name):
    """Where no probability is 0 or 1."""
    own, roomy = PRESETS[name]().graph().compiled(), compiled(PRESETS[name]())
    for field in own.__dataclass_fields__:
        if field != "source":
            np.testing.assert_allclose(getattr(roomy, field), getattr(own, field), rtol=1e-12, err_msg=field)
    assert [p.at for p in node_places(PRESETS[name]())] == [s.name.split()[0] for s in own.source.states]


@pytest.mark.parametrize(
    "world",
    [
        replace(seed_a(), hit_known=1.0, hit_unknown=1.0, unknown_kinds=1, icc=0.0),
        replace(seed_a(), hit_known=0.0, hit_unknown=0.0, guess_known=1.0),
        replace(verify_world(), verify=Verify(1.0, 1.0), wrong_answer_ends=False),
    ],
)
def test_it_has_room_where_a_world_is_certain(world):
    """A search that always hits leaves no place for a wrong document, nor for the failure after it."""
    own, roomy = world.graph().compiled(), compiled(world)
    assert own.states < roomy.states
    assert {"fresh hit", "fresh miss", "failed (answered)"} <= {p.name for p in node_places(world)}
    policies = (tables(g, np.array([0.3 * ("answer" in n) for n in g.free_names])) for g in (own, roomy))
    mine, theirs = (expected_return(g, p) for g, p in zip((own, roomy), policies, strict=True))
    assert 0.05 < mine == pytest.approx(theirs)
