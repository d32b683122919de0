"""Mutation testing of the core: which tests decide, and what is left of its mutants (`make mutants`)."""
