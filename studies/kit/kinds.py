"""The kinds of a claim: what is measured, which data it takes, and what it promises.

| kind | data | interval | settled with power .8, 8 seeds | 20 seeds |
|---|---|---|---|---|
| ``identity(tolerance)`` | ``value`` | none | | |
| ``agreement(tolerance)`` | ``value``, ``reference`` | none | | |
| ``rate()`` | ``outcomes`` | Clopper-Pearson | .47 from 1/2 | .30 |
| ``rate_difference()`` | ``treated``, ``control`` | Newcombe 10, exact limits, McNemar | .80 against 0 | .37 |
| ``trend()`` | ``arms`` | as above, exact trend p | .80 | .37 |
| ``mean(...)`` | ``differences`` or two arms | paired t | 1.2 sd | .66 sd |
| ``median()`` | ``values`` | order statistics | 1.9 sd | .84 sd |
| ``time()`` | ``times``, ``censored_at`` | order statistics, censored | .97 on one side | .80 |
| ``rank()`` | ``positive``, ``negative`` | Newcombe 5 with t | area .92 | .76 |
| ``bootstrap()`` | ``value``, ``replicates`` | percentile of 100 or more | 2.8 se | 2.8 se |

``kind.promises(n)`` computes the last columns; the calibration tests hold each kind to its row and to an error of 2.5 %
on either side, on the nulls that its ``estimate`` declares itself fit for.

Seeds that share something drawn, such as a supervised start, are not independent. ``mean``, ``median``, ``time``,
``rate`` and ``rate_difference`` take ``clusters``, one label a seed (``rank`` a pair of them); the first three then count
clusters, the shares as many seeds as the clusters are worth. Without it every seed is a unit of its own.
"""

from studies.kit.exact import Agreement, Identity, agreement, identity
from studies.kit.locations import Mean, Median, Time, mean, median, time
from studies.kit.ranks import Rank, rank
from studies.kit.resampling import Bootstrap, bootstrap
from studies.kit.shares import Rate, RateDifference, Trend, rate, rate_difference, trend

__all__ = [
    "Agreement",
    "Bootstrap",
    "Identity",
    "Mean",
    "Median",
    "Rank",
    "Rate",
    "RateDifference",
    "Time",
    "Trend",
    "agreement",
    "bootstrap",
    "identity",
    "mean",
    "median",
    "rank",
    "rate",
    "rate_difference",
    "time",
    "trend",
]
