"""The conductor with a real player: a tiny model's engine in this process, one worker."""

import numpy as np

from fullscale.agent.rollouts import play
from fullscale.rollout.conductor import Conductor
from fullscale.rollout.staleness import staleness
from minimodel.agent.collect import Draws
from sim.cluster.scheduling import Capacity
from tests.fullscale.agent.small import QUESTIONS, dialogue, engine, environment, model, settings
from tests.fullscale.rollout.driving import books
from tests.fullscale.rollout.players import PATIENCE_S


def test_a_ticket_is_played_as_it_would_be_without_threads():
    world, weights = environment(), model()
    writer = engine(0, weights)
    talk, how = dialogue(world), settings(world, turn_tokens=4)

    def played(ticket):
        asked, draws = [QUESTIONS[ticket.number % 2]], Draws(3, "conducted", f"play{ticket.play}")
        return play(writer, world, talk, asked, 2, how, draws, ticket.number)

    with Conductor(played, books(Capacity(1), group=2, tickets=4), workers=1) as conductor:
        first = conductor.take(PATIENCE_S)
        conductor.drain(PATIENCE_S)  # all four are played by version 0
        writer.publish(1, weights)
        conductor.published(1)
        conductor.resume()
        second = conductor.take(PATIENCE_S)
    assert [ticket.number for ticket, _ in first + second] == [0, 1, 2, 3]
    writer.publish(0, weights)
    for ticket, value in first + second:
        alone = played(ticket)
        np.testing.assert_array_equal(value.ids, alone.ids)
        np.testing.assert_array_equal(value.logp, alone.logp)
    assert len({value.ids.tobytes() for _, value in first + second}) == 4
    found = staleness(second[0][1].version, second[0][1].sampled, 1)
    assert (found["staleness/oldest"], found["staleness/coverage"]) == (1, 1)
