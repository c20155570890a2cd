"""The benchmark behind `make bench`: comparisons in ratios, rounds interleaved, one subject busy at a time."""
