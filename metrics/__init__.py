"""Latency metrics: raw events in, intervals, percentiles and goodput out."""
