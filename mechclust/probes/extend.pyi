from probes.extend import *
