from probes.testing import *
