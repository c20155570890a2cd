"""The checks of `scripts/gpu_check.py`. Each imports what it needs itself: what is missing then hides no other."""
