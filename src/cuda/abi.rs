//! Types of cuda.h, under CUDA's own names. Handles are opaque: they are compared and passed on, never followed.
//!
//! Source: cuda.h of 11.8, 12.9 and 13.5, whose layouts agree for everything here.
#![allow(non_camel_case_types, non_snake_case)]

pub use super::error::CUresult;
use core::ffi::c_void;

/// Device ordinal.
pub type CUdevice = i32;
/// Device address; 32 bits in the v1 functions.
pub type CUdeviceptr = u64;
/// Device address of the v1 functions.
pub type CUdeviceptr_v1 = u32;
/// Opaque.
pub type CUcontext = *mut c_void;
/// Opaque; 0 = the default stream, 1 = legacy, 2 = per thread.
pub type CUstream = *mut c_void;
/// Opaque.
pub type CUarray = *mut c_void;
/// Opaque.
pub type CUmipmappedArray = *mut c_void;
/// Opaque.
pub type CUmodule = *mut c_void;
/// Opaque.
pub type CUlibrary = *mut c_void;
/// Opaque.
pub type CUmemoryPool = *mut c_void;
/// Opaque.
pub type CUgraph = *mut c_void;
/// Opaque.
pub type CUgraphNode = *mut c_void;
/// Opaque.
pub type CUgraphExec = *mut c_void;
/// Opaque number.
pub type CUmemGenericAllocationHandle = u64;

/// 16 bytes that name a device or a private table.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUuuid {
    /// In printing order.
    pub bytes: [u8; 16],
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub const CU_MEM_LOCATION_TYPE_DEVICE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`: the low byte of the id is the device.
pub const CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: u32 = 6;

/// Where memory lies.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemLocation {
    /// `CU_MEM_LOCATION_TYPE_…`
    pub kind: u32,
    /// Meaning depends on the type.
    pub id: i32,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationProp {
    /// `CU_MEM_ALLOCATION_TYPE_…`
    pub kind: u32,
    /// Bit mask.
    pub requestedHandleTypes: u32,
    /// Where the memory lies.
    pub location: CUmemLocation,
}

/// The leading part of `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolProps {
    /// `CU_MEM_ALLOCATION_TYPE_…`
    pub allocType: u32,
    /// Bit mask.
    pub handleTypes: u32,
    /// Where the memory lies.
    pub location: CUmemLocation,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`: `CUmemPoolProps` has 88 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEM_ALLOC_NODE_PARAMS {
    /// In.
    pub poolProps: CUmemPoolProps,
    /// The rest of `CUmemPoolProps`.
    pub poolPropsRest: [u64; 9],
    /// In.
    pub accessDescs: *const c_void,
    /// In.
    pub accessDescCount: usize,
    /// In, bytes.
    pub bytesize: usize,
    /// Out.
    pub dptr: CUdeviceptr,
}

/// `CUDA_ARRAY_DESCRIPTOR_v1`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY_DESCRIPTOR_v1 {
    /// Elements.
    pub Width: u32,
    /// Elements; 0 = one-dimensional.
    pub Height: u32,
    /// `CU_AD_FORMAT_…`
    pub Format: u32,
    /// Per element.
    pub NumChannels: u32,
}

/// `CUDA_ARRAY_DESCRIPTOR_v2`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY_DESCRIPTOR {
    /// Elements.
    pub Width: usize,
    /// Elements; 0 = one-dimensional.
    pub Height: usize,
    /// `CU_AD_FORMAT_…`
    pub Format: u32,
    /// Per element.
    pub NumChannels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v1`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY3D_DESCRIPTOR_v1 {
    /// Elements.
    pub Width: u32,
    /// Elements; 0 = one-dimensional.
    pub Height: u32,
    /// Elements, or layers; 0 = two-dimensional.
    pub Depth: u32,
    /// `CU_AD_FORMAT_…`
    pub Format: u32,
    /// Per element.
    pub NumChannels: u32,
    /// `CUDA_ARRAY3D_…`
    pub Flags: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v2`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY3D_DESCRIPTOR {
    /// Elements.
    pub Width: usize,
    /// Elements; 0 = one-dimensional.
    pub Height: usize,
    /// Elements, or layers; 0 = two-dimensional.
    pub Depth: usize,
    /// `CU_AD_FORMAT_…`
    pub Format: u32,
    /// Per element.
    pub NumChannels: u32,
    /// `CUDA_ARRAY3D_…`
    pub Flags: u32,
}

/// No memory behind it until something is mapped.
pub const CUDA_ARRAY3D_SPARSE: u32 = 0x40;
/// No memory behind it until something is mapped.
pub const CUDA_ARRAY3D_DEFERRED_MAPPING: u32 = 0x80;
/// Depth counts layers.
pub const CUDA_ARRAY3D_LAYERED: u32 = 0x01;
/// Depth counts faces.
pub const CUDA_ARRAY3D_CUBEMAP: u32 = 0x04;

/// One entry of `cuMemMapArrayAsync`: 96 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUarrayMapInfo {
    /// Array or mipmapped array.
    pub resourceType: u32,
    /// The array's handle.
    pub resource: u64,
    /// Level or mip tail.
    pub subresourceType: u32,
    /// The part of the array that is meant.
    pub subresource: [u64; 4],
    /// [`CU_MEM_OPERATION_TYPE_MAP`] or unmap.
    pub memOperationType: u32,
    /// Always generic.
    pub memHandleType: u32,
    /// The memory to map.
    pub memHandle: CUmemGenericAllocationHandle,
    /// Bytes into the memory.
    pub offset: u64,
    /// One bit a device.
    pub deviceBitMask: u32,
    /// 0
    pub flags: u32,
    /// 0
    pub reserved: [u32; 2],
}
const _: () = assert!(size_of::<CUarrayMapInfo>() == 96);

/// `CU_MEM_OPERATION_TYPE_MAP`; 2 is unmap.
pub const CU_MEM_OPERATION_TYPE_MAP: u32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_MANAGED`
pub const CU_MEM_ALLOCATION_TYPE_MANAGED: u32 = 2;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
pub const CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: u32 = 5;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: u32 = 2;
/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT`
pub const CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: u32 = 0;
/// `CU_GRAPH_NODE_TYPE_GRAPH`: a child graph.
pub const CU_GRAPH_NODE_TYPE_GRAPH: u32 = 4;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`
pub const CU_GRAPH_NODE_TYPE_MEM_ALLOC: u32 = 10;
/// `CU_STREAM_CAPTURE_STATUS_NONE`
pub const CU_STREAM_CAPTURE_STATUS_NONE: u32 = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`
pub const CU_STREAM_CAPTURE_MODE_RELAXED: u32 = 2;
/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND` and its kin are passed on as they are.
pub type CUdriverProcAddressQueryResult = u32;
