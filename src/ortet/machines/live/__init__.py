"""The process engine: machines whose processes are captured by CRIU."""
