"""Hold the commands without a package of their own."""
