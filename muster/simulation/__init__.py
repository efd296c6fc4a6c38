"""Simulations on a clock of their own: simulated or real members against the real coordinator."""
