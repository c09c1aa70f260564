//! What a process is shown of its device under a quota.

/// What cuMemGetInfo, cuDeviceTotalMem and NVML answer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Free memory.
    pub free: u64,
    /// Total memory.
    pub total: u64,
}

impl Shown {
    /// What is taken, which is never more than there is.
    pub fn used(&self, used: u64) -> u64 {
        used.min(self.total)
    }

    /// What is neither taken nor free: the part of the quota that others have on the card.
    pub fn reserved(&self, used: u64) -> u64 {
        self.total.saturating_sub(self.used(used)).saturating_sub(self.free)
    }
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
        for (free, used, limit) in [(10, 3, 8), (2, 3, 8), (10, 9, 8), (0, 0, 8), (10, 3, 64)] {
            let shown = shown(free, 16, used, limit);
            assert_eq!(shown.used(used) + shown.free + shown.reserved(used), shown.total);
        }
        assert_eq!(shown(2, 16, 3, 8).reserved(3), 3, "what others took of the card");
        assert_eq!(shown(10, 16, 3, 0), Shown { free: 10, total: 16 }, "no limit");
        assert_eq!(shown(10, 16, 3, 64), Shown { free: 10, total: 16 }, "a limit above the card");
    }
}
