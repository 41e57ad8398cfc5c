from probes import *
