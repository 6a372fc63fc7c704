"""What people would run in place of edgeswarm: plain PyTorch on one device, DistributedDataParallel, Schedule1F1B.

Each script is one process on one device, as a competent user would write it; launch.py starts one on each.
"""
