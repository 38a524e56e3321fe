"""The doors for training reports, what is admitted, and the runs that they tell of."""
