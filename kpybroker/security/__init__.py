"""Who somebody is: credentials. Nobody logs in yet."""
