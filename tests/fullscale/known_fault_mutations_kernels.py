"""Each known fault put into the shipped kernels, with the test of ``test_known_faults_kernels.py`` that must then fail."""

import sys
from dataclasses import replace

import torch

from fullscale.kernels import arguments, chunked, merging, reference
from tests.mutations import Mutation, around, entering

MUTATIONS: list[tuple[str, str, Mutation]] = []
"""(name of a test, the fault in words, mutation that makes it fail)."""

fails = entering(MUTATIONS)

# the package gives these names to functions
linear_logprob = sys.modules["fullscale.kernels.linear_logprob"]
head_loss = sys.modules["fullscale.kernels.head_loss"]


def both(*mutations):
    """Put several in at once."""

    def mutate(patch, tests):
        for mutation in mutations:
            mutation(patch, tests)

    return mutate


# --- two sides of a ratio ---------------------------------------------------------------------------------------------

F9 = "test_f9_one_temperature_on_both_sides"
F9_GRADIENT = "test_f9_the_gradient_is_at_that_temperature"
F10 = "test_f10_one_support_on_both_sides"
F10_WHOLE = "test_f10_the_support_is_the_whole_of_a_large_vocabulary_and_no_more"
F11 = "test_f11_a_position_scores_its_own_target"


def at(wrong):
    """Give the problem the temperatures `wrong(those asked for)`."""
    return around(arguments, "_temperature", lambda shipped, *given: wrong(shipped(*given)))


fails(F9, F9_GRADIENT)(at(torch.ones_like), "the learner is at temperature 1")
fails(F9, F9_GRADIENT)(at(torch.reciprocal), "logits are multiplied by the temperature")
fails(F9)(at(lambda T: T.mean().expand_as(T)), "all rows are at the mean temperature")
fails(F9_GRADIENT)(
    around(
        chunked._Slopes,
        "of",
        lambda shipped, problem, *given: shipped(
            replace(problem, temperature=torch.ones_like(problem.temperature)), *given
        ),
    ),
    "the gradient forgets the temperature",
)


def sums(wrong):
    """Change what a strip comes to: `wrong(m, z - m, e)` returns its mass."""

    def strip_sums(shipped, z, scratch):
        top, _ = shipped(z, scratch)
        return top, wrong(top, z, scratch)

    return around(chunked, "strip_sums", strip_sums)


def of_the_likeliest(top, z, e):
    return (e * (z > -1.5)).sum(1)


def with_columns_beyond(top, z, e):
    """Tiles of 1,024 columns, whose rest is logit 0."""
    return e.sum(1) + -z.shape[1] % 1024 * torch.exp(-top)


def without_the_least(shipped, partials):
    least = partials.top <= partials.top.amin(1, keepdim=True)
    return shipped(replace(partials, mass=partials.mass.masked_fill(least, 0)))


fails(F10, F10_WHOLE)(around(chunked, "merge", without_the_least), "the least likely columns are left out")
fails(F10_WHOLE)(sums(of_the_likeliest), "renormalised over the likeliest")
fails(F10, F10_WHOLE)(sums(with_columns_beyond), "columns beyond the vocabulary are logit zero")
fails(F10, F10_WHOLE)(
    around(arguments, "strips", lambda shipped, *given: shipped(*given)[:-1]), "the last strip is left out"
)
fails(F10_WHOLE)(
    around(merging, "_ascending", lambda shipped, terms: shipped(terms[:, :4])),
    "strips beyond the fourth are not merged",
)


def targets_rolled(by):
    return around(arguments, "_targets", lambda shipped, targets, *given: shipped(targets.roll(by), *given))


fails(F11)(targets_rolled(-1), "targets are shifted inside as well")
fails(F11)(targets_rolled(1), "targets are shifted the other way")
fails(F11)(
    around(
        arguments,
        "gathered",
        lambda shipped, x, rows: shipped(x.roll(-1, 0) if x.is_floating_point() else x, rows),
    ),
    "hidden states are those of the next position",
)
fails(F11)(
    around(arguments, "_rows", lambda shipped, rows, *given: shipped(rows, *given).sort()[0]),
    "rows come back in ascending order",
)


# --- masks ------------------------------------------------------------------------------------------------------------

F12_RATIO = "test_f12_a_masked_ratio_that_overflows_leaves_no_nan"
F12_MASKED = "test_f12_what_masked_rows_hold_is_multiplied_by_nothing"
F12_CLIPPED = "test_f12_a_row_without_coefficient_is_multiplied_by_nothing"
F16 = "test_f16_a_fully_masked_batch_has_no_loss_and_no_gradient"
F16_IDLE = "test_f16_rows_of_which_none_has_a_coefficient_leave_no_gradient"


def in_both(name, wrong):
    """Replace a function that both ways to call share by one that is given the shipped one first."""
    shipped = getattr(linear_logprob, name)

    def mutate(patch, tests):
        for module in (linear_logprob, head_loss):
            patch.setattr(module, name, lambda *given, **options: wrong(shipped, *given, **options))

    return mutate


def to_every_row(shipped, gradient, rows, size, dtype):
    """Masked rows get the mean gradient of the others."""
    found = shipped(gradient, rows, size, dtype)
    return found if rows is None else found + gradient.mean(0) * (found == 0).all(1)[:, None]


def times_nothing(shipped, gradient, rows, size, dtype):
    """Masked rows are multiplied by a mask of 0, and hold what is not finite."""
    found = shipped(gradient, rows, size, dtype)
    return found if rows is None else found + torch.nan * (found == 0).all(1)[:, None]


fails(F12_MASKED, F12_CLIPPED)(in_both("spread", times_nothing), "masked rows are multiplied by a mask")
fails(F12_RATIO, F12_MASKED)(in_both("spread", to_every_row), "masked rows share the gradient of the others")
fails(F12_CLIPPED)(
    in_both("active_rows", lambda shipped, coefficients, problem: None), "rows without coefficient are multiplied by it"
)
fails(F12_MASKED)(
    in_both(
        "add_gradients",
        lambda shipped, backend, problem, found, coefficients, *given, **options: shipped(
            backend, problem, found, replace(coefficients, logp=coefficients.logp * torch.nan), *given, **options
        ),
    ),
    "a coefficient is inf times zero",
)
fails(F16)(
    around(arguments, "_rows", lambda shipped, rows, *given: shipped(rows if len(rows) else None, *given)),
    "no rows are all rows",
)
fails(F16)(
    around(head_loss, "_pieces", lambda shipped, n, *given: shipped(n, *given) if n else iter([slice(0, 0)])),
    "coefficients of no rows are asked for",
)


def unwritten(shipped, backend, problem, *given, **options):
    """What no row is added to keeps what its memory held."""
    if problem.rows:
        shipped(backend, problem, *given, **options)


fails(F16, F16_IDLE)(in_both("add_gradients", unwritten), "the gradient of no rows is unwritten memory")


def never_begun(shipped, self):
    self._begun = True
    return shipped(self)


fails(F16, F16_IDLE)(
    around(head_loss._Sums, "gradients", never_begun), "the gradient of a loss of no rows is unwritten memory"
)


# --- entropy ----------------------------------------------------------------------------------------------------------

F17 = "test_f17_entropy_of_a_distribution_by_hand"
F17_PADS = "test_f17_surprisal_is_another_quantity_and_pads_are_in_neither"


def merged(wrong):
    """Change what rows come to."""
    return both(
        *(
            around(m, "merge", lambda shipped, partials: wrong(shipped(partials), partials))
            for m in (chunked, reference)
        )
    )


fails(F17, F17_PADS)(merged(lambda found, _: replace(found, entropy=-found.logp)), "surprisal is called entropy")
fails(F17, F17_PADS)(
    merged(lambda found, _: replace(found, entropy=found.entropy / torch.tensor(2.0).log())), "entropy is in bits"
)
fails(F17)(
    merged(
        lambda found, partials: replace(found, entropy=found.log_mass - partials.moment.sum(1) / found.log_mass.exp())
    ),
    "moments of strips are added where they are",
)
fails(F17_PADS)(
    around(arguments, "_rows", lambda shipped, rows, *given: shipped(None, *given)), "pads are rows like others"
)
