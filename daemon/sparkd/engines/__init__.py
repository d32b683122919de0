"""PURE: plan + node + backend + engine version -> argv and environment; what a line means for the phase.

No await, clock, random, environment, logging, file or network.
"""
