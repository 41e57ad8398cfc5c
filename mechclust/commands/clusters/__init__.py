"""``mechclust clusters``: at which layers do a model's hidden states cluster by task?"""

from mechclust.commands.clusters.config import ClustersConfig as ClustersConfig
from mechclust.commands.clusters.measure import measure_clusters as measure_clusters
from mechclust.commands.clusters.result import ClustersResult as ClustersResult
