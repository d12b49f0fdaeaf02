"""Bound the numbers that a job may give.

Beyond these nothing can be measured, while tables, products of sizes and clocks would overflow after hours. No bound
lets infinity or NaN through.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Interval

LARGEST = 2**31 - 1
"""What indices of 32 bits reach, as kernels have them."""
Count = Annotated[int, Interval(gt=0, le=LARGEST)]
"""A size of a dimension, of a batch too; channels, threads."""
Padding = Annotated[int, Interval(ge=0, le=LARGEST)]
Replicates = Annotated[int, Interval(gt=0, le=1000)]
Samples = Annotated[int, Interval(ge=3, le=1_000_000)]
Seconds = Annotated[float, Interval(gt=0, le=1e6)]
"""Up to eleven days."""
Repeats = Annotated[float, Interval(ge=0, le=1000)]
"""Of the time that the first measuring took."""
Price = Annotated[float, Interval(gt=0, le=1e6)]
"""USD an hour."""
MOST_ENTRIES = 2000
"""Of a list in a job."""
MOST_CASES = 100_000
"""Of a run: the product of the axes, summed over the models. At a second each, a day."""
MOST_NAME_BYTES = 120
"""Of a name or label, two of which are in the names of files."""
