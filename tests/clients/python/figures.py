"""What nvidia-ml-py and nvitop say of the first device and its processes, as JSON."""

import json

import pynvml
from nvitop import Device


def sizes(processes):
    return {str(process.pid): process.usedGpuMemory for process in processes}


pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
first = pynvml.nvmlDeviceGetMemoryInfo(handle)
second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
said = {
    "first": [first.total, first.free, first.used],
    "second": [second.total, second.free, second.used, second.reserved],
    "processes": sizes(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    "processes_v2": sizes(pynvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)),
    "details": sizes(pynvml.nvmlDeviceGetRunningProcessDetailList(handle, pynvml.nvmlProcessDetailList_v1, 0)),
    "graphics": sizes(pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)),
    "mps": sizes(pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)),
}
pynvml.nvmlShutdown()
device = Device(0)
said["nvitop"] = [device.memory_total(), device.memory_free(), device.memory_used()]
said["nvitop_processes"] = {str(pid): process.gpu_memory() for pid, process in device.processes().items()}
print(json.dumps(said))
