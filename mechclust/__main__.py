"""``python -m mechclust``: the command ``mechclust``."""

import sys

from mechclust_start import main

if __name__ == "__main__":
    sys.exit(main())
