"""Fills the registry."""

from docs.pictures import command_pictures, probe_pictures, screens

MODULES = (probe_pictures, command_pictures, screens)
