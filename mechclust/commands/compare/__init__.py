"""``mechclust compare``: which layers did tuning change, for which tasks?"""
