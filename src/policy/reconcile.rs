//! What the driver says of a process beyond the books.

/// A context's share where nobody has measured it, in bytes.
const CONTEXT: u64 = 512 << 20;

/// The driver's figure for a process less what it is charged, where they are further apart than one context's share;
/// otherwise 0. Bytes.
pub fn unaccounted(drivers: u64, charged: u64, context_cost: Option<u64>) -> i64 {
    let apart = drivers.abs_diff(charged);
    if apart <= context_cost.unwrap_or(CONTEXT) {
        return 0;
    }
    let apart = i64::try_from(apart).unwrap_or(i64::MAX);
    if drivers > charged { apart } else { -apart }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_within_one_contexts_share_is_explained() {
        for (nvml, charged, cost, expected) in [
            (900, 600, Some(300), 0),
            (901, 600, Some(300), 301),
            (600, 901, Some(300), -301),
            (600, 900, Some(300), 0),
            (512, 0, None, 0),
            (513, 0, None, 513),
            (0, 513, None, -513),
        ] {
            let found = unaccounted(nvml * MIB, charged * MIB, cost.map(|cost| cost * MIB));
            assert_eq!(found, expected * MIB as i64, "{nvml} {charged} {cost:?}");
        }
        assert_eq!(unaccounted(u64::MAX, 0, None), i64::MAX);
        assert_eq!(unaccounted(0, u64::MAX, Some(0)), -i64::MAX);
    }
}
