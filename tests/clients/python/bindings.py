"""cuda-bindings as a client: allocates, leaks, meets its quota. Prints one JSON object.

Usage: bindings.py KEEP_BYTES FREE_BYTES TOO_MUCH_BYTES
Keeps one allocation of each of cuMemAlloc, cuMemAllocPitch and cuMemAllocAsync of KEEP_BYTES, frees one of
FREE_BYTES, then asks for TOO_MUCH_BYTES.
"""

import json
import sys

from cuda.bindings import driver


def good(result):
    """The values of a call that must succeed; the bindings return (code, value, ...)."""
    code, *values = result
    assert code == driver.CUresult.CUDA_SUCCESS, code.name
    return values[0] if len(values) == 1 else values


keep, free, too_much = map(int, sys.argv[1:])
good(driver.cuInit(0))
device = good(driver.cuDeviceGet(0))
context = good(driver.cuDevicePrimaryCtxRetain(device))
good(driver.cuCtxSetCurrent(context))

good(driver.cuMemAlloc(keep))
_, pitch = good(driver.cuMemAllocPitch(keep // 16, 16, 4))
good(driver.cuMemAllocAsync(keep, 0))
good(driver.cuMemFree(good(driver.cuMemAlloc(free))))

refused, *_ = driver.cuMemAlloc(too_much)
free_bytes, total = good(driver.cuMemGetInfo())
print(json.dumps({
    "refused": refused.name,
    "pitched": pitch * 16,
    "free": free_bytes,
    "total": total,
    "device_total": good(driver.cuDeviceTotalMem(device)),
}))
