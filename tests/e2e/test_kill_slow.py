#!/usr/bin/env python3
"""500 kills of a saving process per store (`make kill-test`)."""

import kill_loop

if __name__ == "__main__":
    kill_loop.run(500)
