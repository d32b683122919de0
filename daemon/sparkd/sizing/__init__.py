"""The memory that a model and its settings need, phase by phase. Pure: what is read comes as values."""
