#!/usr/bin/env python3
"""20 kills of a saving process per store; test_kill_slow.py has 500."""

import kill_loop

if __name__ == "__main__":
    kill_loop.run(20)
