"""Planted layers: does comparing a model with the one it was tuned from find the layers that changed?"""

from mechclust.studies.planted_layers.config import PlantedConfig
from mechclust.studies.planted_layers.measure import change_of, measure_planted, patch_layers
from mechclust.studies.planted_layers.plant import plant_in, rounded_in

__all__ = ["PlantedConfig", "change_of", "measure_planted", "patch_layers", "plant_in", "rounded_in"]
