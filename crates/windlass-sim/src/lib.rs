//! Simulation for Windlass.
