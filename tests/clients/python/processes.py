"""Processes that multiprocessing starts, each of which keeps memory: processes.py METHOD COUNT BYTES [first]

With "first" the parent uses CUDA before it starts them. Prints {pid: what its allocation gave}, the parent's too.
"""

import json
import multiprocessing
import os
import sys
import threading

from cuda.bindings import driver


def keep(size):
    """Makes a context and keeps `size` bytes; the name of the first code that is no success."""
    code = driver.cuInit(0)[0]
    if code == driver.CUresult.CUDA_SUCCESS:
        code, context = driver.cuDevicePrimaryCtxRetain(0)
    if code == driver.CUresult.CUDA_SUCCESS:
        code = driver.cuCtxSetCurrent(context)[0]
    if code == driver.CUresult.CUDA_SUCCESS:
        code = driver.cuMemAlloc(size)[0]
    return code.name


def child(size, answers, go, end):
    go.wait()
    answers.put((os.getpid(), keep(size)))
    # All live at once, so that the quota is that of all.
    end.wait()


def main():
    method, count, size, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["first"]
    said = {}
    if first:
        said[os.getpid()] = keep(size)
    # Other threads of the parent, as a training program has them.
    idle = threading.Event()
    threads = [threading.Thread(target=idle.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    context = multiprocessing.get_context(method)
    answers, go, end = context.Queue(), context.Event(), context.Event()
    children = [context.Process(target=child, args=(size, answers, go, end)) for _ in range(count)]
    for process in children:
        process.start()
    go.set()
    for _ in children:
        pid, name = answers.get(timeout=60)
        said[pid] = name
    if not first:
        said[os.getpid()] = keep(size)
    end.set()
    for process in children:
        process.join()
        assert process.exitcode == 0, process.exitcode
    idle.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"parent": os.getpid(), "said": said}))


if __name__ == "__main__":
    main()
