/* Linear, pitched, managed, page-locked. */

static void linear_v1(bool keep) {
    CUdeviceptr_v1 a, b;
    TAKES(1, p_cuMemAlloc(&a, 1000));
    TAKES(1, p_cuMemAlloc(&b, 4097));
    OK(p_cuMemFree(a));
    if (!keep) OK(p_cuMemFree(b));
}

static void linear_v2(bool keep) {
    CUdeviceptr a, b, c;
    TAKES(1, p_cuMemAlloc_v2(&a, 1));
    TAKES(1, p_cuMemAlloc_v2(&b, 4096));
    TAKES(1, p_cuMemAlloc_v2(&c, 3 * MIB + 1));
    OK(p_cuMemFree_v2(b));
    if (keep) return;
    OK(p_cuMemFree_v2(c));
    OK(p_cuMemFree_v2(a));
}

static void pitched(bool keep) {
    CUdeviceptr_v1 old;
    CUdeviceptr new, third;
    unsigned old_pitch;
    size_t pitch;
    TAKES(1, p_cuMemAllocPitch(&old, &old_pitch, 100, 7, 4));
    TAKES(1, p_cuMemAllocPitch_v2(&new, &pitch, 513, 9, 16));
    TAKES(1, p_cuMemAllocPitch_v2(&third, &pitch, 512, 1, 8));
    OK(p_cuMemFree_v2(third));
    if (keep) return;
    OK(p_cuMemFree(old));
    OK(p_cuMemFreeAsync(new, NULL));
}

static void managed(bool keep) {
    CUdeviceptr a, b;
    TAKES(1, p_cuMemAllocManaged(&a, 12345, CU_MEM_ATTACH_GLOBAL));
    TAKES(1, p_cuMemAllocManaged(&b, 54321, CU_MEM_ATTACH_HOST));
    OK(p_cuMemFree_v2(a));
    if (!keep) OK(p_cuMemFree_v2(b));
}

static void page_locked(bool keep) {
    void *p;
    OK(p_cuMemHostAlloc(&p, 4096, 0));
    if (!keep) OK(p_cuMemFreeHost(p));
}

/* Every free that CUDA allows for a pointer, whoever made it. */
static void freed_otherwise(bool keep) {
    CUdeviceptr p, pitch_p;
    size_t pitch;
    TAKES(1, p_cuMemAllocAsync(&p, 7000, NULL));
    OK(p_cuMemFree_v2(p));
    TAKES(1, p_cuMemAllocAsync_ptsz(&p, 7001, NULL));
    OK(p_cuMemFree_v2(p));
    TAKES(1, p_cuMemAlloc_v2(&p, 7002));
    OK(p_cuMemFreeAsync(p, NULL));
    TAKES(1, p_cuMemAlloc_v2(&p, 7003));
    OK(p_cuMemFreeAsync_ptsz(p, NULL));
    TAKES(1, p_cuMemAllocPitch_v2(&pitch_p, &pitch, 10, 10, 4));
    OK(p_cuMemFreeAsync(pitch_p, CU_STREAM_LEGACY));
    TAKES(1, p_cuMemAllocAsync(&p, 7004, CU_STREAM_PER_THREAD));
    if (!keep) OK(p_cuMemFree_v2(p));
}
