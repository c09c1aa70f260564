//! Which processes NVML's lists show.

/// An entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The process.
    pub pid: u32,
    /// What it has, in bytes.
    pub bytes: u64,
    /// GPU instance and compute instance; [`NO_INSTANCE`] on a whole card.
    pub instance: [u32; 2],
    /// Of what it has, protected by confidential computing, in bytes.
    pub protected: u64,
}

/// On a card that is not in MIG mode.
pub const NO_INSTANCE: [u32; 2] = [u32::MAX; 2];
/// NVML_VALUE_NOT_AVAILABLE
pub const NOT_AVAILABLE: u64 = u64::MAX;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All that have a CUDA context.
    Compute,
    /// Those with a graphics context, or clients of MPS: what the ledger does not know.
    Other,
}

/// What a list shows, by pid. `real`: what NVML gives. `ours`: what the ledger has of the living processes that can be
/// named here, in bytes. A process that holds nothing is shown where NVML shows it: it has a context that is not counted.
pub fn shown(kind: Kind, real: &[Listed], ours: &[Listed]) -> Vec<Listed> {
    let of_real = |one: &Listed| {
        real.iter().find(|other| other.pid == one.pid && other.instance == one.instance).or_else(|| {
            // The first version of the list does not say which instance.
            real.iter().find(|other| other.pid == one.pid && other.instance == NO_INSTANCE)
        })
    };
    let mut shown: Vec<Listed> = ours
        .iter()
        .filter(|one| (kind == Kind::Compute && one.bytes > 0) || of_real(one).is_some())
        .map(|one| Listed { protected: of_real(one).map_or(NOT_AVAILABLE, |real| real.protected), ..*one })
        .collect();
    crate::order::sort(&mut shown, |a, b| (a.pid, a.instance) < (b.pid, b.instance));
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(pid: u32, bytes: u64, instance: [u32; 2]) -> Listed {
        Listed { pid, bytes, instance, protected: NOT_AVAILABLE }
    }

    fn one(pid: u32, bytes: u64) -> Listed {
        on(pid, bytes, NO_INSTANCE)
    }

    #[test]
    fn only_ours_with_the_ledger_s_bytes() {
        let real = [one(7, 700), one(5, 500), one(3, 300)];
        assert_eq!(shown(Kind::Compute, &real, &[one(9, 90), one(5, 50)]), [one(5, 50), one(9, 90)]);
        assert_eq!(shown(Kind::Other, &real, &[one(9, 90), one(5, 50)]), [one(5, 50)]);
        assert_eq!(shown(Kind::Compute, &real, &[]), []);
        assert_eq!(
            shown(Kind::Compute, &[], &[one(5, 50)]),
            [one(5, 50)],
            "NVML does not see into containers"
        );
    }

    #[test]
    fn one_that_holds_nothing_is_shown_where_it_has_a_context() {
        assert_eq!(shown(Kind::Compute, &[one(5, 500)], &[one(5, 0), one(6, 0)]), [one(5, 0)]);
    }

    #[test]
    fn instances_are_told_apart() {
        let ours = [on(5, 10, [1, 0]), on(5, 20, [2, 0])];
        assert_eq!(shown(Kind::Compute, &[], &ours), ours);
        assert_eq!(shown(Kind::Other, &[on(5, 1, [2, 0])], &ours), [ours[1]]);
        assert_eq!(shown(Kind::Other, &[one(5, 1)], &ours), ours);
    }

    #[test]
    fn what_is_protected_is_known_to_nvml_alone() {
        let real = Listed { protected: 3, ..one(5, 500) };
        assert_eq!(shown(Kind::Compute, &[real], &[one(5, 50)]), [Listed { protected: 3, ..one(5, 50) }]);
    }
}
