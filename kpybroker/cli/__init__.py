"""The command line: run brokers and administer them."""
