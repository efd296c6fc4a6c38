"""What an operator sees of a running job: metrics, probes, log lines. The query needs none."""
