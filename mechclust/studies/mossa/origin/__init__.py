"""The method's origin: models trained from scratch on several domains, against controls of one domain each.

Zhao, Ziser & Cohen, "Understanding Domain Learning in Language Models Through Subpopulation Analysis" (BlackboxNLP
2022, arXiv 2210.12553), in miniature.
"""
