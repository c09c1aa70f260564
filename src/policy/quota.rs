//! What a process is shown of its device under a quota.

/// What cuMemGetInfo and cuDeviceTotalMem answer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Free memory.
    pub free: u64,
    /// Total memory.
    pub total: u64,
}

/// total = min(limit, real), free = min(real free, limit − used); a limit of 0 is no limit.
pub fn shown(real_free: u64, real_total: u64, used: u64, limit: u64) -> Shown {
    if limit == 0 {
        return Shown { free: real_free, total: real_total };
    }
    let total = limit.min(real_total);
    Shown { free: real_free.min(total.saturating_sub(used)), total }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_is_the_card() {
        assert_eq!(shown(10, 16, 3, 8), Shown { free: 5, total: 8 });
        assert_eq!(shown(2, 16, 3, 8), Shown { free: 2, total: 8 }, "others may have taken the card");
        assert_eq!(shown(10, 16, 9, 8), Shown { free: 0, total: 8 }, "a limit lowered below the use");
        assert_eq!(shown(10, 16, 3, 0), Shown { free: 10, total: 16 }, "no limit");
        assert_eq!(shown(10, 16, 3, 64), Shown { free: 10, total: 16 }, "a limit above the card");
    }
}
