"""A script for the tests of the fork server: reports what it is, then ends as it is told."""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading


class Here:
    pass


def say(**facts: object) -> None:
    print(json.dumps(facts))


if __name__ == "__main__":
    atexit.register(lambda: say(at_exit=Here.__name__))
    how = sys.argv[1]
    if how == "facts":
        import torch

        say(
            argv=sys.argv,
            file=__file__,
            module=Here.__module__,
            main=sys.modules["__main__"].Here is Here,
            pid=os.getpid(),
            session=os.getsid(0),
            cwd=os.getcwd(),
            path=sys.path[0],
            marker=os.environ.get("MARKER"),
            torch_threads=torch.get_num_threads(),
            threads=len(os.listdir("/proc/self/task")),
            files=sorted(map(int, os.listdir("/proc/self/fd"))),
            draw=torch.rand(1).item(),
        )
    elif how == "raise":
        raise ValueError("as asked")
    elif how == "exit":
        sys.exit(7)
    elif how == "exit-words":
        sys.exit("words")
    elif how == "thread":
        threading.Thread(target=lambda: say(from_thread=Here.__name__)).start()
    elif how == "wait":
        say(ready=True)
        signal.pause()
    elif how == "orphan":
        left = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
        say(orphan=left.pid)
        signal.pause()
