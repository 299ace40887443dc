"""Backends made of PyTorch calls: ``loop``, on any device, and ``lstm``, on CPUs."""
