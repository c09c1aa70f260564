// Frees at the end of the process, in an exit handler and in the destructor of a static object; an exception is
// thrown and caught in between.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, std::size_t bytes);
int cuMemFree_v2(unsigned long long address);
}

static unsigned long long in_handler;

struct Holder {
    unsigned long long address = 0;
    ~Holder() { std::printf("freed %d by a destructor\n", cuMemFree_v2(address)); }
};

int main() {
    static Holder holder;
    void *context;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    if (cuMemAlloc_v2(&holder.address, 1000) || cuMemAlloc_v2(&in_handler, 2000)) return 2;
    std::atexit([] {
        try {
            throw std::runtime_error("thrown");
        } catch (const std::exception &) {
            std::puts("caught in an exit handler");
        }
        std::printf("freed %d by atexit\n", cuMemFree_v2(in_handler));
    });
    return 0;
}
