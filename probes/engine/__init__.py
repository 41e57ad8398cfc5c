"""Run probes on a model: hook points, sites, readouts, states, the contract of a probe, and its result."""
