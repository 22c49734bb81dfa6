"""The model of record: a SimPy calendar with callbacks where events are many, processes where they are few."""
