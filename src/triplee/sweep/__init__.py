"""Sweeps: an experiment becomes runs, an engine trains them on this machine or on a cluster, tables come out."""
