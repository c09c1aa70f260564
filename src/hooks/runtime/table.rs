//! The runtime's functions that have entries, and the version nodes at which they are exported.

use crate::record::api::number;
use core::ffi::CStr;

/// Calls a macro with all rows: `name => nodes`. The nodes are those whose runtime has the function.
#[macro_export]
macro_rules! for_each_runtime_call {
    ($then:ident) => {
        $then! {
            cudaDeviceReset => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaFree => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaFreeArray => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaFreeAsync => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaFreeAsync_ptsz => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaFreeMipmappedArray => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaGetDeviceCount => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaGetDeviceProperties => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaGetDeviceProperties_v2 => "libcudart.so.12",
            cudaGetDriverEntryPoint => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaGetDriverEntryPointByVersion => "libcudart.so.12" "libcudart.so.13",
            cudaGetDriverEntryPointByVersion_ptsz => "libcudart.so.12" "libcudart.so.13",
            cudaGetDriverEntryPoint_ptsz => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaInitDevice => "libcudart.so.12" "libcudart.so.13",
            cudaMalloc => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaMalloc3D => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaMalloc3DArray => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaMallocArray => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaMallocAsync => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaMallocAsync_ptsz => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaMallocFromPoolAsync => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaMallocFromPoolAsync_ptsz => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaMallocManaged => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaMallocMipmappedArray => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaMallocPitch => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaMemGetInfo => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
            cudaSetDevice => "libcudart.so.11.0" "libcudart.so.12" "libcudart.so.13",
        }
    };
}

/// One function of the runtime.
#[derive(Debug)]
pub struct Call {
    /// The exported name.
    pub name: &'static str,
    /// The number by which records name it, 0 where it allocates nothing.
    pub api: u16,
}

macro_rules! calls {
    ($($name:ident => $($node:literal)+,)*) => {
        /// The rows by name.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Id { $($name),* }

        /// All rows, in the order of [`Id`].
        pub static CALLS: &[Call] = &[$(Call { name: stringify!($name), api: number(stringify!($name)) }),*];

        /// The names again, for the library's own tables.
        static NAMES: &[&CStr] = &[$(match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        }),*];

        /// How many rows there are.
        pub const COUNT: usize = [$(stringify!($name)),*].len();

        const _: () = assert!($($(Node::number($node) != Node::UNKNOWN)&&+)&&*);
    };
}
for_each_runtime_call!(calls);
const _: () = assert!(COUNT < 256);

/// The row of an exported name, exactly.
pub(in crate::hooks) fn call_of(name: &CStr) -> Option<usize> {
    NAMES.iter().position(|known| *known == name)
}

/// The exported name of a row.
pub(super) fn name_of(call: usize) -> Option<&'static CStr> {
    NAMES.get(call).copied()
}

/// A version node of libcudart that we export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Node {
    /// All of 11.0 to 11.8.
    V11,
    /// All of 12.x.
    V12,
    /// All of 13.x.
    V13,
}

impl Node {
    const ALL: [(Node, &CStr); 3] =
        [(Node::V11, c"libcudart.so.11.0"), (Node::V12, c"libcudart.so.12"), (Node::V13, c"libcudart.so.13")];

    const UNKNOWN: u32 = 0xff;

    pub(super) fn from_u8(value: u8) -> Option<Node> {
        Node::ALL.get(usize::from(value)).map(|(node, _)| *node)
    }

    pub(super) fn named(name: &CStr) -> Option<Node> {
        Node::ALL.iter().find(|(_, known)| *known == name).map(|(node, _)| *node)
    }

    pub(super) fn name(self) -> &'static CStr {
        Node::ALL.get(self as usize).map_or(c"", |(_, name)| name)
    }

    pub(super) fn major(self) -> u32 {
        self as u32 + 11
    }

    pub(super) fn all() -> impl Iterator<Item = Node> {
        Node::ALL.iter().map(|(node, _)| *node)
    }

    /// By the node's name, for the indices of entries.
    pub const fn number(name: &str) -> u32 {
        match name.as_bytes() {
            b"libcudart.so.11.0" => Node::V11 as u32,
            b"libcudart.so.12" => Node::V12 as u32,
            b"libcudart.so.13" => Node::V13 as u32,
            _ => Node::UNKNOWN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_names_agree() {
        for (at, call) in CALLS.iter().enumerate() {
            assert_eq!(name_of(at).unwrap().to_str(), Ok(call.name));
            assert_eq!(call_of(name_of(at).unwrap()), Some(at));
            assert_eq!(call.api != 0, call.name.starts_with("cudaMalloc"), "{}", call.name);
        }
        assert_eq!(call_of(c"cudaMallocHost"), None);
        assert_eq!(Id::cudaSetDevice as usize, COUNT - 1);
    }

    #[test]
    fn nodes_by_name_and_number() {
        for node in Node::all() {
            assert_eq!(Node::named(node.name()), Some(node));
            assert_eq!(Node::number(node.name().to_str().unwrap()), node as u32);
            assert_eq!(Node::from_u8(node as u8), Some(node));
        }
        assert_eq!(Node::named(c"libcudart.so.10"), None);
    }
}
