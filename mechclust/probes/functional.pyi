from probes.functional import *
