//! The names that a record's `kind` field points into.

/// Driver and runtime functions that allocate, by the number stored in a record.
/// Append only: record files of older processes hold these numbers.
pub const APIS: &[&str] = &[
    "?",
    "cuMemAlloc",
    "cuMemAlloc_v2",
    "cuMemAllocPitch",
    "cuMemAllocPitch_v2",
    "cuMemAllocManaged",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuMemCreate",
    "cuArrayCreate",
    "cuArrayCreate_v2",
    "cuArray3DCreate",
    "cuArray3DCreate_v2",
    "cuMipmappedArrayCreate",
    "cuMemPoolCreate",
    "cuGraphLaunch",
    "cuGraphLaunch_ptsz",
    "cuGraphUpload",
    "cuGraphUpload_ptsz",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cudaMalloc",
    "cudaMallocManaged",
    "cudaMallocPitch",
    "cudaMalloc3D",
    "cudaMallocArray",
    "cudaMalloc3DArray",
    "cudaMallocMipmappedArray",
    "cudaMallocAsync",
    "cudaMallocFromPoolAsync",
    "cudaMallocAsync_ptsz",
    "cudaMallocFromPoolAsync_ptsz",
];

/// The number of a name, 0 where it has none.
pub const fn number(name: &str) -> u16 {
    let mut at = 0;
    while at < APIS.len() {
        if equal(APIS[at].as_bytes(), name.as_bytes()) {
            return at as u16;
        }
        at += 1;
    }
    0
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}
