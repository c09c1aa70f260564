//! What a refusal says: how much of the quota is in use, and who has it.

use crate::ledger::Denied;
use crate::ledger::view::Holder;
use crate::report::size::bytes as size;

/// Holders that are named; the others are summed up.
const NAMED: usize = 3;

/// One or two sentences. `what` was refused, as in "cuMemAlloc of 2.00 GiB". `holders`: the living, largest first.
pub fn text(what: &str, device: u8, denied: Denied, holders: &[Holder], own_pid: u32) -> String {
    let Denied { used, limit } = denied;
    let contexts = holders.iter().map(|holder| holder.context_bytes).fold(0, u64::saturating_add);
    let by_contexts = match contexts {
        0 => String::new(),
        bytes => format!(", {} of that by contexts", size(bytes)),
    };
    format!(
        "{what} was refused on device {device}: {} of the {} quota are in use{by_contexts}{}. Further refusals are \
         counted, not logged.",
        size(used),
        size(limit),
        by_whom(holders, own_pid)
    )
}

/// Nothing where this process is the only one.
fn by_whom(holders: &[Holder], own_pid: u32) -> String {
    let pid = |holder: &Holder| holder.who.map_or(0, |who| who.pid);
    if holders.iter().all(|holder| pid(holder) == own_pid) {
        return String::new();
    }
    let name = |holder: &Holder| match pid(holder) {
        own if own == own_pid => "this process".to_owned(),
        0 => "one that is starting".to_owned(),
        other => format!("pid {other}"),
    };
    let mut parts: Vec<String> =
        holders.iter().take(NAMED).map(|holder| format!("{} {}", name(holder), size(holder.bytes))).collect();
    let rest = holders.get(NAMED..).unwrap_or_default();
    if !rest.is_empty() {
        let bytes = rest.iter().map(|holder| holder.bytes).fold(0, u64::saturating_add);
        parts.push(format!("{} more {}", rest.len(), size(bytes)));
    }
    format!(" ({})", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::liveness::Who;

    fn holder(pid: u32, bytes: u64, context_bytes: u64) -> Holder {
        let who = Who { pid, start_ticks: 1, stack_start: 1, pid_namespace: 1, boot_id: [0; 16] };
        Holder { slot: 0, who: Some(who), is_alive: true, bytes, context_bytes, since_ns: 0 }
    }

    fn said(holders: &[Holder]) -> String {
        let text = text("cuMemAlloc_v2 of 2.00 GiB", 1, Denied { used: 3 << 30, limit: 4 << 30 }, holders, 7);
        let end = text.find(". Further").unwrap();
        text[..end].to_owned()
    }

    #[test]
    fn who_has_it() {
        let begins =
            "cuMemAlloc_v2 of 2.00 GiB was refused on device 1: 3.00 GiB of the 4.00 GiB quota are in use";
        assert_eq!(said(&[holder(7, 3 << 30, 0)]), begins);
        assert_eq!(said(&[holder(7, 3 << 30, 256 << 20)]), format!("{begins}, 256 MiB of that by contexts"));
        assert_eq!(
            said(&[holder(8, 2 << 30, 0), holder(7, 1 << 30, 0)]),
            format!("{begins} (pid 8 2.00 GiB, this process 1.00 GiB)")
        );
        let many: Vec<Holder> = (1..=6).map(|n| holder(n, (u64::from(n) * 100) << 20, 0)).rev().collect();
        assert_eq!(
            said(&many),
            format!("{begins} (pid 6 600 MiB, pid 5 500 MiB, pid 4 400 MiB, 3 more 600 MiB)")
        );
    }
}
