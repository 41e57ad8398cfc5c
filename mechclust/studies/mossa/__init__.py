"""MOSSA (Zhao, Ziser & Cohen): which layers hold which tasks after tuning."""
