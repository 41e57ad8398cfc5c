from tasks import *
