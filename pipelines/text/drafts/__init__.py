"""Who proposes tokens ahead."""
