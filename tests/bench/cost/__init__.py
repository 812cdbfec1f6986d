"""What operations cost, in counts that are the same in each run; and the ratio to another commit."""
