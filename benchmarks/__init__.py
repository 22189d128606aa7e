"""What records the course's stored results: ``python -m benchmarks PART --out FILE``, one results file a part."""
