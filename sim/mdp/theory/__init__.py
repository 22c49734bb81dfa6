"""What theory says before anything is simulated: drift, spread, length windows, fold, waiting, bounds, passage, escape."""
