//! What an allocation takes of a device, where the driver's rule is known. Bytes.

use crate::cuda::abi::{
    CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_DEFERRED_MAPPING, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_LAYERED,
    CUDA_ARRAY3D_SPARSE,
};

/// False for what no device has. Such a request is the driver's to refuse, with the answer that it gives without
/// us; to reserve it would overflow the account and take what others have reserved with it.
#[inline]
pub fn is_possible(bytes: u64) -> bool {
    bytes < 1 << 44
}

/// A pitched allocation: the pitch that the driver chose times the height.
pub fn pitched(pitch: u64, height: u64) -> u64 {
    pitch.saturating_mul(height)
}

/// An array: elements × channels × bytes of a channel. Sparse arrays and those with deferred mapping take
/// nothing by themselves.
pub fn array(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> u64 {
    level(descriptor, 0)
}

/// A mipmapped array: the sum of its levels. Every level halves width, height and, unless it counts layers,
/// depth. The driver stops at a level of 1 × 1 × 1, whatever was asked for.
pub fn mipmapped_array(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> u64 {
    let largest = descriptor.Width.max(descriptor.Height).max(descriptor.Depth).max(1);
    let levels = levels.min(largest.ilog2() + 1);
    (0..levels).fold(0u64, |sum, n| sum.saturating_add(level(descriptor, n)))
}

fn level(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, level: u32) -> u64 {
    if descriptor.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) != 0 {
        return 0;
    }
    let halved = |extent: usize| (extent as u64).checked_shr(level).unwrap_or(0).max(1);
    let layered = descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let depth = if layered { (descriptor.Depth as u64).max(1) } else { halved(descriptor.Depth) };
    let elements = halved(descriptor.Width).saturating_mul(halved(descriptor.Height)).saturating_mul(depth);
    elements_bytes(elements, descriptor.Format, u64::from(descriptor.NumChannels))
}

/// Bytes of so many elements in one of the `CU_AD_FORMAT_…` formats of cuda.h 13.5.
fn elements_bytes(elements: u64, format: u32, channels: u64) -> u64 {
    let each = |bytes: u64| elements.saturating_mul(bytes);
    match format {
        0x01 | 0x08 => each(channels),
        0x02 | 0x09 | 0x10 => each(channels.saturating_mul(2)),
        0x03 | 0x0a | 0x20 => each(channels.saturating_mul(4)),
        // UNORM and SNORM name their channels: 8-bit x1, x2, x4, then 16-bit x1, x2, x4.
        0xc0 | 0xc6 => each(1),
        0xc1 | 0xc7 | 0xc3 | 0xc9 => each(2),
        0xc2 | 0xc8 | 0xc4 | 0xca => each(4),
        0xc5 | 0xcb => each(8),
        // Block compression: BC1 and BC4 half a byte an element, the others one.
        0x91 | 0x92 | 0x97 | 0x98 => elements / 2 + elements % 2,
        0x93..=0x96 | 0x99..=0x9e => each(1),
        // Planar and packed video formats, 4:2:0, 4:2:2 and 4:4:4 sampling, 8 and 16 bits.
        0xb0 | 0x53 | 0x59 => elements.saturating_mul(3) / 2,
        0x9f | 0xa1 | 0x54 | 0x5a => each(3),
        0xa2 | 0xa5 | 0x51 | 0x55 | 0x5b => each(2),
        0xa3 | 0xa4 | 0xa6 | 0xa7 | 0x56 | 0x5c => each(4),
        0xb2 | 0xb4 | 0x52 | 0x57 | 0x5d => each(3),
        0xb3 | 0xb5 | 0x58 | 0x5e => each(6),
        0xa8 | 0xa9 | 0x50 => each(4),
        0xb1 => each(8),
        // A later format: at least a byte a channel.
        _ => each(channels.max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(width: usize, height: usize, depth: usize, format: u32, channels: u32, flags: u32) -> u64 {
        array(&of(width, height, depth, format, channels, flags))
    }

    fn of(
        width: usize,
        height: usize,
        depth: usize,
        format: u32,
        channels: u32,
        flags: u32,
    ) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: width,
            Height: height,
            Depth: depth,
            Format: format,
            NumChannels: channels,
            Flags: flags,
        }
    }

    #[test]
    fn arrays() {
        assert_eq!(descriptor(1024, 0, 0, 0x20, 1, 0), 4096, "1D float");
        assert_eq!(descriptor(64, 64, 0, 0x01, 4, 0), 16384, "2D uchar4");
        assert_eq!(descriptor(8, 8, 8, 0x10, 2, 0), 2048, "3D half2");
        assert_eq!(descriptor(8, 8, 6, 0x20, 4, CUDA_ARRAY3D_CUBEMAP), 6144);
        assert_eq!(descriptor(64, 64, 0, 0x20, 4, CUDA_ARRAY3D_SPARSE), 0);
        assert_eq!(descriptor(64, 64, 0, 0xb0, 3, 0), 6144, "NV12: 12 bits an element");
        assert_eq!(descriptor(usize::MAX, usize::MAX, 2, 0x20, 4, 0), u64::MAX, "absurd sizes saturate");
    }

    #[test]
    fn mipmaps_halve_until_one() {
        assert_eq!(mipmapped_array(&of(4, 4, 0, 0x01, 1, 0), 3), 16 + 4 + 1);
        assert_eq!(mipmapped_array(&of(4, 4, 0, 0x01, 1, 0), u32::MAX), 16 + 4 + 1);
        assert_eq!(mipmapped_array(&of(4, 4, 3, 0x01, 1, CUDA_ARRAY3D_LAYERED), 2), 48 + 12, "layers stay");
        assert_eq!(mipmapped_array(&of(8, 8, 8, 0x01, 1, 0), 2), 512 + 64);
    }
}
