"""Handed-in exercise notebooks run and marked, and learners' progress files summed up: what a teacher needs."""
