"""Runs handed over to other programs: as Parquet files, or as the event files of TensorBoard."""
