"""The page that says how the verdicts changed, and why."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction_page.committed import PaperResults
from reproduction_page.glance import papers_glance

_TEXT = """# What changed in the verdicts

Up to fedloom 0.1.0 the pages of this section had other verdicts. No cell was run again for the change: the same
measurements are judged by another rule. Since then FedSSA's Tables 1 and 2 have got two more seeds, which the counts
below contain.

## Why

A printed value was *reproduced* if it lay inside the 95 % t interval of our mean. The wider the interval, the more
often that happens, so a noisy measurement passed and an exact one failed. FedAvg on CIFAR-10 in FedDW's Table I was
"reproduced" although it was 4.6 points off, and FedAvg on MNIST was only "near" at 0.1 points. Simulated with three
seeds and a true difference of three points, the old rule said "reproduced" for a quarter of the tables with a spread
of one point, and for 82 % of those with a spread of three. The new rule says it for at most 0.1 %.

## What

- **Equivalence with a margin.** A value is reproduced if the difference is shown to be below one point, and differs
  if it is shown to be above. All else is undecided, and the page says how many seeds would decide. "Near" is no
  verdict any more.
- **One seed decides nothing,** neither a value nor an order nor a gain. Three seeds are the least.
- **One rule for gains.** Ahead and behind need p < 0.05 after Holm's correction over the comparisons of a column.
  Before, each uncorrected interval was read by itself.
- **The paper's own method is counted apart.** Its gains are over every baseline of the table. The one gain that was
  seen in FedDW's Table I is that of FedProx over FedAvg.
- **Orders have an "undecided",** and an order differs only if a pair of rows is seen to contradict.
- **Data that are not the paper's are not called its own.** CIFAR's images were JPEG files of quality 95, so values on
  CIFAR are not comparable; their differences are still printed. The original pixels are not at hand. Encoded once
  more at quality 95, 5 % of the values of the first 4,000 test images of CIFAR-10 change, by 0.05 grey levels on
  average (60.6 dB). That is the second step, which finds hardly anything left to lose; it bounds nothing about the
  first one, which is noted as 39.8 dB where the files come from.
- **A maximum is not compared with a single run.** FedSSA prints the best result of a search over rounds, epochs and
  batch sizes. Its Tables 1 and 2 were compared with one point of that search, and ten values counted as not
  reproduced.
- **Claims in texts and figures** have a row and a verdict.

## Counts before

| paper | values: reproduced / near / not reproduced | orders reproduced | gains seen |
|---|---|---|---|
| Fed-CO2 | 0 / 0 / 5 | 2 of 6 | 7 of 23 |
| FedDW | 5 / 2 / 2 | 0 of 1 | 2 of 14 |
| FedSC | – | 0 of 2 | 0 of 24 |
| FedSKC | – | 0 of 3 | 2 of 8 |
| FedSSA | 0 / 0 / 10 | 0 of 2 | 8 of 15 |

## Counts now
"""


def change_page(papers: Sequence[PaperResults]) -> str:
    """The page as Markdown: why and how the rule changed, and the counts before and now."""
    return f"{_TEXT}\n{papers_glance(papers)}\n"
