"""Fills the registry."""

from docs.pictures import command_pictures, cost_pictures, probe_pictures, screens

MODULES = (probe_pictures, command_pictures, cost_pictures, screens)
