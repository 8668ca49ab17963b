"""Rows packed to buckets by message, shuffled, handed to the kernel: on Spark or in this process."""
