"""nvidia-ml-py as a client, before, after or without CUDA. Prints what it sees of the devices.

Usage: nvml.py [nvml|cuda]...   the order of initialisation
"""

import ctypes
import sys

import pynvml


def nvml():
    # An error's text, before anything is initialised: programs do ask for it.
    text = ctypes.CDLL("libnvidia-ml.so.1").nvmlErrorString
    text.restype = ctypes.c_char_p
    print(text(9))
    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        print(index, pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle))
        print(pynvml.nvmlDeviceGetMemoryInfo(handle).total)


def cuda():
    libcuda = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int(-1)
    print("cuInit", libcuda.cuInit(0))
    print("cuDeviceGetCount", libcuda.cuDeviceGetCount(ctypes.byref(count)), count.value)


for step in sys.argv[1:]:
    {"nvml": nvml, "cuda": cuda}[step]()
if "nvml" in sys.argv[1:]:
    pynvml.nvmlShutdown()
