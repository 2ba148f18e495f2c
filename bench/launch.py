"""launch.py FD COMMAND...: run it, write its exit code, seconds and largest resident size to FD.

A process of its own, and a small one: a child is charged with the resident size of whoever started
it until it has replaced itself, so that started by the benchmark all peers would look alike.
"""

import os
import sys
import time

report, words = int(sys.argv[1]), sys.argv[2:]
begin = time.perf_counter()
pid = os.posix_spawnp(words[0], words, os.environ)
_, status, usage = os.wait4(pid, 0)
seconds = time.perf_counter() - begin
os.write(report, f"{os.waitstatus_to_exitcode(status)} {seconds} {usage.ru_maxrss}".encode())
