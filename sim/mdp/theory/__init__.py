"""What theory says before anything is simulated: drift, fold, waiting, passage, escape, dilution."""
