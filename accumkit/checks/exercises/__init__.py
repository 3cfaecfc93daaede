"""The exercises, one file each: to add one is to add a file with a ``PROBLEM``."""
