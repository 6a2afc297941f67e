"""Rules that replace a loop-carried value by a reduction, a prefix sum or a linear recurrence."""
