"""The command line: serve a broker, and the daily needs of working with one."""
