"""Runs on many machines: queues, workers, and the monitor that watches them."""
